"""The psycopg connections that handlers are handed: a transaction of ours is open on each, and stays ours to end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, Self, TypeVar

import psycopg
from psycopg.rows import TupleRow
from psycopg.sql import Composable
from typing_extensions import override

from postroad.errors import UsageError
from postroad.sql.guard import refused, sets_savepoint

Row = TypeVar("Row")


class HandedConnection(psycopg.Connection[TupleRow]):
    """Refuses to end or change the transaction, to be closed, and transaction control in raw text.

    Nested blocks, ``with connection.transaction():``, are savepoints. The guard is against mistakes: who makes
    cursors of other classes, or reaches for ``pgconn``, is past it.
    """

    savepoint = False
    """See `HandedAsyncConnection`; nobody shares this one."""

    def end(self, *, commit: bool) -> None:
        """End the transaction: for whoever opened it."""
        if commit:
            super().commit()
        else:
            super().rollback()

    def shut(self) -> None:
        """Close it: for whoever opened it."""
        super().close()

    @override
    def commit(self) -> NoReturn:
        """Refused."""
        _refuse("commit()")

    @override
    def rollback(self) -> NoReturn:
        """Refused; raise an error instead, or use a block of its own."""
        _refuse("rollback()")

    @override
    def close(self) -> NoReturn:
        """Refused."""
        _refuse("close()")

    @override
    def __enter__(self) -> NoReturn:
        _refuse("`with connection:`, which commits and closes,")

    @override
    def set_autocommit(self, value: bool) -> NoReturn:
        """Refused."""
        _refuse("autocommit")

    @override
    def set_isolation_level(self, value: Any) -> NoReturn:
        """Refused."""
        _refuse("isolation_level")

    @override
    def set_read_only(self, value: bool | None) -> NoReturn:
        """Refused."""
        _refuse("read_only")

    @override
    def set_deferrable(self, value: bool | None) -> NoReturn:
        """Refused."""
        _refuse("deferrable")

    @override
    def tpc_begin(self, xid: Any) -> NoReturn:
        """Refused."""
        _refuse("tpc_begin()")

    @override
    def tpc_prepare(self) -> NoReturn:
        """Refused."""
        _refuse("tpc_prepare()")

    @override
    def tpc_commit(self, xid: Any = None) -> NoReturn:
        """Refused."""
        _refuse("tpc_commit()")

    @override
    def tpc_rollback(self, xid: Any = None) -> NoReturn:
        """Refused."""
        _refuse("tpc_rollback()")


class HandedAsyncConnection(psycopg.AsyncConnection[TupleRow]):
    """The same for ``async def`` handlers, which may share its transaction."""

    savepoint = False
    """Whether a handler has set a savepoint by SQL of its own."""

    async def shut(self) -> None:
        """Close it: for whoever opened it."""
        await super().close()

    @override
    async def commit(self) -> NoReturn:
        """Refused."""
        _refuse("commit()")

    @override
    async def rollback(self) -> NoReturn:
        """Refused; raise an error instead, or use a block of its own."""
        _refuse("rollback()")

    @override
    async def close(self) -> NoReturn:
        """Refused."""
        _refuse("close()")

    @override
    async def __aenter__(self) -> NoReturn:
        _refuse("`async with connection:`, which commits and closes,")

    @override
    async def set_autocommit(self, value: bool) -> NoReturn:
        """Refused."""
        _refuse("autocommit")

    @override
    async def set_isolation_level(self, value: Any) -> NoReturn:
        """Refused."""
        _refuse("isolation_level")

    @override
    async def set_read_only(self, value: bool | None) -> NoReturn:
        """Refused."""
        _refuse("read_only")

    @override
    async def set_deferrable(self, value: bool | None) -> NoReturn:
        """Refused."""
        _refuse("deferrable")

    @override
    async def tpc_begin(self, xid: Any) -> NoReturn:
        """Refused."""
        _refuse("tpc_begin()")


class _Guarded:
    """Looks at the text before a cursor sends it."""

    connection: Any

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        """See psycopg."""
        _check(self, query)
        return super().execute(query, params, **options)  # type: ignore[misc, no-any-return]

    def executemany(self, query: Any, params_seq: Iterable[Any], **options: Any) -> None:
        """See psycopg."""
        _check(self, query)
        super().executemany(query, params_seq, **options)  # type: ignore[misc]

    def stream(self, query: Any, params: Any = None, **options: Any) -> Iterator[Any]:
        """See psycopg."""
        _check(self, query)
        return super().stream(query, params, **options)  # type: ignore[misc, no-any-return]

    def copy(self, statement: Any, params: Any = None, **options: Any) -> Any:
        """See psycopg."""
        _check(self, statement)
        return super().copy(statement, params, **options)  # type: ignore[misc]


class HandedCursor(_Guarded, psycopg.Cursor[Row]):
    """A cursor of a `HandedConnection`."""


class HandedServerCursor(_Guarded, psycopg.ServerCursor[Row]):
    """A cursor on the server, of a `HandedConnection`."""


class HandedAsyncCursor(_Guarded, psycopg.AsyncCursor[Row]):  # type: ignore[misc]  # It hands on what is awaited.
    """A cursor of a `HandedAsyncConnection`."""


class HandedAsyncServerCursor(_Guarded, psycopg.AsyncServerCursor[Row]):  # type: ignore[misc]
    """A cursor on the server, of a `HandedAsyncConnection`."""


def _check(cursor: _Guarded, query: Any) -> None:
    text = _text(query)
    found = refused(text)
    if found is not None:
        _refuse(found)
    if sets_savepoint(text):
        cursor.connection.savepoint = True


def _text(query: Any) -> str:
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode(errors="replace")
    if isinstance(query, Composable):
        return query.as_string(None)
    return ";".join(map(str, getattr(query, "strings", ())))  # A template string: its own text, without the values.


def _refuse(what: str) -> NoReturn:
    remedy = "it commits with the inbox when the handler returns; raise an error to roll back, or nest transaction()"
    raise UsageError("PR111", f"{what} is refused on the connection of a delivery: {remedy}")
