"""PostgreSQL's TLS comes by the URL: ``sslmode=verify-full`` verifies authority and host name, and never does without.

The wheel's server speaks no TLS; a few lines before it do, as PostgreSQL's own protocol has it (SSLRequest).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from certificates import Authority
from postroad.errors import AccessRefused, Unavailable
from postroad.sql.manager import Manager, connect

_SSL_REQUEST = 8


class Front:
    """Takes TLS off before a PostgreSQL server; `upgraded` counts."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self._to = urlsplit(url)
        self.context = context
        self.upgraded = 0
        self.port = 0

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readexactly(_SSL_REQUEST)
            writer.write(b"S")
            await writer.start_tls(self.context)
            self.upgraded += 1
            theirs, ours = await asyncio.open_connection(self._to.hostname, self._to.port)
            await asyncio.wait([asyncio.create_task(pipe(reader, ours)), asyncio.create_task(pipe(theirs, writer))])
        writer.close()


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
async def front(database: str, authority: Authority) -> AsyncIterator[Front]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("database"))
    front = Front(database, context)
    server = await front.serve()
    yield front
    server.close()


def through(front: Front, database: str, authority: Authority, *, host: str = "localhost") -> str:
    parts = urlsplit(database)
    where = f"{parts.username}@{host}:{front.port}{parts.path}"
    return f"postgresql://{where}?sslmode=verify-full&sslrootcert={authority.certificate}"


async def test_the_right_authority_and_name_are_let_through_by_asyncpg_and_psycopg(
    front: Front, database: str, authority: Authority
) -> None:
    url = through(front, database, authority)
    connection = await connect(url)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()
    manager = await Manager.open(url, schema="postroad", size=1)
    assert await manager.answers()
    await manager.close()
    theirs = await psycopg.AsyncConnection.connect(url)
    await theirs.close()
    assert front.upgraded == 3


async def test_another_authority_and_another_host_name_are_refused(
    front: Front, database: str, authority: Authority, tmp_path: Path
) -> None:
    for url in (
        through(front, database, Authority(tmp_path / "other")), through(front, database, authority, host="127.0.0.1"),
    ):  # fmt: skip
        with pytest.raises(AccessRefused, match=r"not trusted.*sslrootcert") as caught:
            await connect(url)
        assert "\n" not in str(caught.value)
        with pytest.raises(psycopg.OperationalError):
            await psycopg.AsyncConnection.connect(url)
    assert front.upgraded == 0


async def test_a_server_that_speaks_no_tls_is_not_talked_to_without(database: str, authority: Authority) -> None:
    plain = f"{database}?sslmode=verify-full&sslrootcert={authority.certificate}"
    with pytest.raises(Unavailable):
        await connect(plain)


async def test_a_rotated_authority_is_taken_up_by_the_next_connection_of_the_pool(
    front: Front, database: str, authority: Authority
) -> None:
    manager = await Manager.open(through(front, database, authority), schema="postroad", size=1)
    assert await manager.answers()
    anew = Authority(authority.folder, "anew")
    front.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    front.context.load_cert_chain(*anew.issue("database"))
    killer = await connect(database)
    await killer.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                         " AND datname = current_database()")  # fmt: skip
    await killer.close()
    async with asyncio.timeout(10):
        while not await manager.answers():  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0.05)
    assert front.upgraded == 2
    await manager.close()


@pytest.mark.sabotage
async def test_a_mode_that_does_not_verify_would_let_any_certificate_through(
    front: Front, database: str, tmp_path: Path
) -> None:
    url = through(front, database, Authority(tmp_path / "other")).replace("verify-full", "require")
    connection = await connect(url.partition("&sslrootcert")[0])
    await connection.close()
    assert front.upgraded == 1
