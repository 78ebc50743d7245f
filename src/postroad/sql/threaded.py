"""Handlers' transactions on blocking psycopg connections, each on a thread of its own."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

from postroad.clock import seconds
from postroad.errors import Unavailable, UsageError
from postroad.sql.drive import drive_sync
from postroad.sql.handed import HandedConnection, HandedCursor, HandedServerCursor
from postroad.sql.psycopg import PsycopgHand

if TYPE_CHECKING:
    from postroad.owner import Owner, Slot
    from postroad.sql.statement import Pipeline

T = TypeVar("T")

LET_GO: Final = seconds(1)
"""How long a thread may take to come back after its connection was cut; after that it is stuck."""

# A server that runs a statement looks this often whether we are still there: what was cut ends there too.
_WATCH: Final = b"SET client_connection_check_interval = '500ms'"
# The same as asyncpg's: handlers may leave settings, cursors and locks behind.
_CLEAN: Final = b"SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL; " + _WATCH
_NETWORK: Final[dict[str, Any]] = {
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}  # fmt: skip


class PsycopgTransactions:
    """Handlers' transactions for ``def`` handlers: so many threads, and a connection for each.

    What runs on a thread cannot be stopped. When the task that waits for it is cancelled, its connection is cut from
    outside at once, so that nothing of it can be committed any more; a thread that has not come back `LET_GO` later
    is left alone, reported as stuck, and not given out again until it returns.
    """

    threaded: Final = True

    def __init__(self, url: str, owner: Owner, *, size: int, name: str) -> None:
        """Open up to `size` connections to `url`, as they are needed; `name` is a label, and bounded."""
        self._url = url
        self._name = name
        self._slots = owner.slots(size, name=name)
        self._seats: dict[Slot, _Seat] = {}

    @property
    def stuck(self) -> int:
        """How many threads run something that was given up."""
        return self._slots.stuck

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[PsycopgUnit]:
        """See `Transactions.begin`. Waits for a free thread; the first statement begins the transaction."""
        async with self._slots.take() as slot:
            unit = PsycopgUnit(slot, self._seat(slot))
            await unit.open()
            try:
                yield unit
            except BaseException:
                await unit.rollback()
                raise
            await unit.commit()

    @asynccontextmanager
    async def seated(self) -> AsyncIterator[Seated]:
        """Take a thread with its connection for the block, waiting for a free one: for calls that begin themselves."""
        async with self._slots.take() as slot:
            yield Seated(slot, self._seat(slot))

    def _seat(self, slot: Slot) -> _Seat:
        seat = self._seats.get(slot)
        if seat is None:
            seat = self._seats[slot] = _Seat(self._url, self._name)
            slot.at_end = seat.close
        return seat


class PsycopgUnit:
    """One transaction on a psycopg connection and the thread that it belongs to."""

    __slots__ = ("_seat", "_slot")

    def __init__(self, slot: Slot, seat: _Seat) -> None:
        """Speak for the transaction on `seat`'s connection."""
        self._slot = slot
        self._seat = seat

    @property
    def tx(self) -> HandedConnection:
        """See `Unit.tx`."""
        return self._seat.connected

    @property
    def lost(self) -> bool:
        """See `Unit.lost`."""
        return self._seat.lost

    @property
    def intact(self) -> bool:
        """See `Unit.intact`."""
        return not self.lost and self.tx.info.transaction_status is not TransactionStatus.IDLE

    @property
    def entangled(self) -> bool:
        """See `Unit.entangled`: nobody shares this one."""
        return False

    async def open(self) -> None:
        """Have a connection; most often it stands already."""
        if not self._seat.usable:
            await self._run(self._seat.open)

    async def drive(self, pipeline: Pipeline[T]) -> T:
        """See `Unit.drive`; the pipeline and what it calls run on the thread. Cancelled, it cuts the connection."""
        return await self._run(partial(drive_sync, pipeline, PsycopgHand(self.tx)))

    async def commit(self) -> None:
        """Commit. Cancelled meanwhile, it waits a moment for the answer: otherwise nobody would know the outcome."""
        await self._run(self._seat.commit, patience=LET_GO.total_seconds())

    async def rollback(self) -> None:
        """Roll back, where there is still something to roll back."""
        if self._slot.idle and not self.lost:
            await self._run(self._seat.rollback, patience=LET_GO.total_seconds())

    def terminate(self) -> None:
        """See `Unit.terminate`."""
        self._seat.cut()

    async def _run(self, function: Callable[[], T], *, patience: float = 0.0) -> T:
        try:
            return await self._slot.call(function)
        except asyncio.CancelledError:
            if not (patience and await self._slot.quiet(patience)):
                self.terminate()
                await self._slot.quiet(LET_GO.total_seconds())
            raise


class Seated:
    """A thread for one call that opens transactions as it goes, one after the other, on the thread's connection."""

    def __init__(self, slot: Slot, seat: _Seat) -> None:
        """For one call."""
        self._slot = slot
        self._seat = seat
        self._over = False

    @property
    def lost(self) -> bool:
        """Whether the connection is gone, or cut."""
        return self._over or self._seat.lost

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread. Cancelled, it cuts the connection, and waits `LET_GO` for the thread.

        From then on nothing of the call can be committed: it gets no connection any more.
        """
        try:
            return await self._slot.call(function)
        except asyncio.CancelledError:
            self._over = True
            self._seat.cut()
            await self._slot.quiet(LET_GO.total_seconds())
            raise

    def cut(self) -> None:
        """Cut the connection, from any thread: a transaction that is open on it cannot commit any more."""
        self._seat.cut()

    @contextmanager
    def begin(self) -> Iterator[SeatedUnit]:
        """Open a transaction, on the thread: leaving the block commits, an error rolls back.

        Raises:
            Unavailable: the call was given up.
        """
        if self._over:
            raise Unavailable("PR301", "this call was given up, and its connection is cut")
        if not self._seat.usable:
            self._seat.open()
        unit = SeatedUnit(self._seat)
        try:
            yield unit
        except BaseException:
            if not self.lost:
                self._seat.rollback()
            raise
        self._seat.commit()


class SeatedUnit:
    """One open transaction, for the thread that it runs on."""

    __slots__ = ("_seat",)

    def __init__(self, seat: _Seat) -> None:
        """Speak for the transaction on `seat`'s connection."""
        self._seat = seat

    @property
    def tx(self) -> HandedConnection:
        """The connection."""
        return self._seat.connected

    def drive(self, pipeline: Pipeline[T]) -> T:
        """Run `pipeline` in this transaction."""
        return drive_sync(pipeline, PsycopgHand(self.tx))


class _Seat:
    """A connection, used by one thread; only `cut`, `lost` and `usable` are for others."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._connection: HandedConnection | None = None
        self._wire: socket.socket | None = None
        self._cut = False

    @property
    def connected(self) -> HandedConnection:
        """The connection."""
        assert self._connection is not None
        return self._connection

    @property
    def lost(self) -> bool:
        """Whether it is gone, or cut."""
        return self._cut or self._connection is None or self._connection.closed

    @property
    def usable(self) -> bool:
        """Whether a transaction may begin on it."""
        return not self.lost and self.connected.info.transaction_status is TransactionStatus.IDLE

    def cut(self) -> None:
        """Shut the socket down, from any thread: whoever waits on it wakes, and nothing can be sent any more.

        The socket is a duplicate of libpq's, so that it is surely the right one.
        """
        self._cut = True
        if self._wire is not None:
            with suppress(OSError):
                self._wire.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        """Connect anew."""
        self.close()
        self._cut = False
        connection = HandedConnection.connect(
            self._url, cursor_factory=HandedCursor, application_name=f"postroad {self._name}"[:63], **_NETWORK
        )
        connection.server_cursor_factory = HandedServerCursor
        told = connection.pgconn.exec_(b"SELECT pg_backend_pid()").get_value(0, 0)
        if told != str(connection.info.backend_pid).encode():
            connection.prepare_threshold = None  # A pooler stands in between, which may lose prepared statements.
        self._connection, self._wire = connection, socket.socket(fileno=os.dup(connection.fileno()))
        self._command(_WATCH)

    def commit(self) -> None:
        """Commit, and clean up behind the handler.

        When an error inside a transaction is caught and not answered by a savepoint, ``COMMIT`` succeeds and commits
        nothing: an ack after that would lose the message.
        """
        try:
            self._check(self.connected.info.transaction_status)
            self.connected.end(commit=True)
        except BaseException:
            self.close()
            raise
        self._clean()

    @staticmethod
    def _check(status: TransactionStatus) -> None:
        if status is TransactionStatus.INERROR:
            raise psycopg.errors.InFailedSqlTransaction("an earlier error in the transaction was caught: it rolls back")
        if status is TransactionStatus.IDLE:
            raise UsageError("PR107", "the handler ended the transaction of its delivery, which was not its own")

    def rollback(self) -> None:
        """Roll back, and clean up; a connection that cannot is closed, which rolls back as well."""
        try:
            self.connected.end(commit=False)
        except psycopg.Error:
            self.close()
        else:
            self._clean()

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, wire = self._connection, self._wire
        self._connection = self._wire = None
        if connection is not None:
            connection.shut()
        if wire is not None:
            wire.close()

    def _clean(self) -> None:
        try:
            self._command(_CLEAN)
        except psycopg.Error:
            self.close()
            return
        connection = self.connected
        connection.cursor_factory, connection.server_cursor_factory = HandedCursor, HandedServerCursor
        connection.row_factory = psycopg.rows.tuple_row

    def _command(self, text: bytes) -> None:
        """Run `text` outside of any transaction of psycopg's."""
        result = self.connected.pgconn.exec_(text)
        if result.status in {ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE}:
            raise psycopg.OperationalError("the connection could not be cleaned")
