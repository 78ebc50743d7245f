"""Which database of Django's is meant: its connection, checked, and its address."""

from __future__ import annotations

import asyncio
import getpass
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from django.db import connections, transaction
from django.db.utils import ConnectionDoesNotExist

from postroad.errors import UsageError
from postroad.outbox.publish import outside_transaction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.sql.drive import SyncHand

_REMEDY: Final = "open one: `with transaction.atomic():`, or set ATOMIC_REQUESTS"
_ASYNC: Final = (
    "Django has no transactions in async code: put atomic() and it into one function, and await "
    "sync_to_async(function)()"
)
_TLS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "target_session_attrs")
"""The options of a connection that asyncpg's addresses know as well."""


def connection_of(alias: str) -> Any:
    """This thread's connection of the database `alias`; nothing is sent.

    Raises:
        UsageError: PR107, there is none of that name, or it is not PostgreSQL; PR108, its driver is psycopg2.
    """
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist as error:
        raise UsageError("PR107", f"DATABASES has no {alias!r}; name one that it has: `using=`") from error
    problem = unfit(connection)
    if problem is not None:
        raise problem
    return connection


def unfit(connection: Any) -> UsageError | None:
    """Why Postroad cannot work on a connection of Django's, if it cannot: its backend or its driver."""
    if connection.vendor != "postgresql":
        message = (
            f"database {connection.alias!r} of DATABASES is {connection.display_name}, and Postroad's is PostgreSQL"
        )
        return UsageError("PR107", f"{message}; set its ENGINE, or name another: `using=`")
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    if is_psycopg3:
        return None
    remedy = "install psycopg 3, which Django then takes: pip install 'postroad[psycopg]'"
    return UsageError("PR108", f"database {connection.alias!r} of DATABASES is used by psycopg2; {remedy}")


def check_open(alias: str, what: str) -> Any:
    """This thread's connection, on which a block of the author's is open.

    The blocks of a `TestCase` are not the author's: a publish that would be refused in production is refused there.

    Raises:
        UsageError: as `connection_of`; PR105, no block is open, or this is async code.
    """
    connection = connection_of(alias)
    if not connection.in_atomic_block or all(block._from_testcase for block in connection.atomic_blocks):  # noqa: SLF001 - as Django's own `durable`
        raise outside_transaction(what, remedy=_ASYNC if _in_async_code() else _REMEDY)
    return connection


def _in_async_code() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def writing(connection: Any) -> Iterator[SyncHand]:
    """The hand for the block that is open on `connection`, under Django's own rules.

    Errors of the driver come out as Django's, and mark the block to be rolled back; in a block that is marked already,
    on a thread that is not the connection's, and in async code Django refuses.
    """
    from postroad.sql.psycopg import PsycopgHand

    connection.ensure_connection()
    connection.validate_thread_sharing()
    connection.validate_no_broken_transaction()
    with transaction.mark_for_rollback_on_error(using=connection.alias), connection.wrap_database_errors:
        yield PsycopgHand(connection.connection)


def url_of(alias: str) -> str:
    """The address of the database `alias`, for Postroad's own connections.

    Raises:
        UsageError: as `connection_of`; PR201, it is told by a service file, which only libpq reads.
    """
    given = connection_of(alias).settings_dict
    options = given["OPTIONS"]
    if "service" in options:
        message = f"database {alias!r} of DATABASES is told by OPTIONS['service']; set POSTROAD_DATABASE_URL besides"
        raise UsageError("PR201", message)
    hosts, ports = str(given["HOST"] or "").split(","), str(given["PORT"] or "").split(",")
    query = {name: str(options[name]) for name in _TLS if options.get(name)}
    place = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports * len(hosts), strict=False))
    if hosts[0].startswith("/"):
        query |= {"host": hosts[0]} | ({"port": ports[0]} if ports[0] else {})
        place = ""
    user = quote(str(given["USER"] or os.environ.get("PGUSER") or getpass.getuser()), safe="")
    password = f":{quote(str(given['PASSWORD']), safe='')}" if given["PASSWORD"] else ""
    asked = f"?{urlencode(query)}" if query else ""
    return f"postgresql://{user}{password}@{place}/{quote(str(given['NAME']), safe='')}{asked}"
