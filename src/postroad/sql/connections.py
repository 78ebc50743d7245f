"""Handlers' transactions on asynchronous psycopg connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

import psycopg
from psycopg.rows import tuple_row

from postroad.errors import Unavailable
from postroad.sql.drive import BlockUnit, kept
from postroad.sql.handed import HandedAsyncConnection, HandedAsyncCursor, HandedAsyncServerCursor
from postroad.sql.psycopg import AsyncPsycopgBlock
from postroad.sql.statement import Statement
from postroad.sql.threaded import CLEAN, NETWORK, WATCH

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

    from postroad.owner import Owner

_PID: Final = Statement("SELECT pg_backend_pid() AS pid", answered=True)
_CLEAN: Final = Statement(CLEAN.decode(), command=True)
_WATCH: Final = Statement(WATCH.decode(), command=True)


class AsyncConnections:
    """``on=AsyncConnections()``: ``async def`` handlers get an `psycopg.AsyncConnection` to the App's database.

    It is in a transaction, which commits with the inbox row: to end or change it is refused (PR111); nest
    ``async with delivery.tx.transaction():`` for a savepoint.
    """

    threaded: ClassVar[bool] = False

    def transactions(self, url: str, owner: Owner, *, size: int, name: str) -> AsyncPsycopgTransactions:  # noqa: ARG002
        """See `Form.transactions`."""
        return AsyncPsycopgTransactions(url, owner, name=name)


class AsyncPsycopgTransactions:
    """Implements `Transactions`; connections are opened as they are needed, and kept for the next."""

    def __init__(self, url: str, owner: Owner, *, name: str) -> None:
        """Connect to `url`; `name` is a label, and bounded. What is open is closed with the tasks of `owner`."""
        self._url = url
        self._owner = owner
        self._name = name
        self._idle: list[HandedAsyncConnection] = []
        self._keeping: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncPsycopgUnit]:
        """See `Transactions.begin`.

        Raises:
            Unavailable: PR301, the database cannot be reached.
        """
        connection = self._idle.pop() if self._idle else await self._connected()
        block = AsyncPsycopgBlock(connection)
        connection.savepoint = False
        try:
            async with kept(block):
                yield AsyncPsycopgUnit(connection, block)
        finally:
            await self._put_back(connection, block)

    async def _connected(self) -> HandedAsyncConnection:
        if self._keeping is None:
            self._keeping = self._owner.task(self._keep(), name=f"connections:{self._name}")
        options: dict[str, Any] = {"application_name": f"postroad {self._name}"[:63], **NETWORK}
        try:
            connection = await HandedAsyncConnection.connect(self._url, autocommit=True, **options)
        except psycopg.OperationalError as error:
            raise Unavailable("PR301", f"no connection for {self._name!r} ({type(error).__name__})") from error
        hand = AsyncPsycopgBlock(connection).hand
        ((told,),) = [row.values() for row in await hand.fetch(_PID)]
        if told != connection.info.backend_pid:
            connection.prepare_threshold = None  # A pooler stands in between, which may lose prepared statements.
        await hand.fetch(_WATCH)
        _as_new(connection)
        return connection

    async def _put_back(self, connection: HandedAsyncConnection, block: AsyncPsycopgBlock) -> None:
        usable = not (block.lost or block.intact) and self._keeping is not None and not self._keeping.done()
        if usable:
            try:
                await block.hand.fetch(_CLEAN)
            except psycopg.Error:
                usable = False
            except BaseException:
                await connection.shut()
                raise
        if usable:
            _as_new(connection)
            self._idle.append(connection)
        else:
            await connection.shut()

    async def _keep(self) -> None:
        """Close what is idle at the end."""
        try:
            await asyncio.Event().wait()
        finally:
            while self._idle:
                with suppress(psycopg.Error):
                    await self._idle.pop().shut()


class AsyncPsycopgUnit(BlockUnit):
    """One open transaction on an asynchronous psycopg connection."""

    __slots__ = ("tx",)

    def __init__(self, connection: HandedAsyncConnection, block: AsyncPsycopgBlock) -> None:
        """Speak for the transaction that is open on `connection`."""
        super().__init__(block)
        self.tx = connection

    def lent(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[TupleRow]]:
        """See `Unit.lent`."""
        return nullcontext(self.tx)

    @property
    def entangled(self) -> bool:
        """See `Unit.entangled`."""
        return self.tx.savepoint


def _as_new(connection: HandedAsyncConnection) -> None:
    connection.cursor_factory, connection.server_cursor_factory = HandedAsyncCursor, HandedAsyncServerCursor
    connection.row_factory = tuple_row
