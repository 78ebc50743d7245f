"""Handlers' transactions on threads: each thread has a seat of its own, a blocking connection of some driver."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from postroad.clock import seconds
from postroad.errors import Unavailable
from postroad.sql.drive import SyncHand, drive_sync

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from postroad.owner import Owner, Slot
    from postroad.sql.statement import Pipeline

T = TypeVar("T")
Tx = TypeVar("Tx")
Tx_co = TypeVar("Tx_co", covariant=True)

LET_GO: Final = seconds(1)
"""How long a thread may take to come back after its connection was cut; after that it is stuck."""


class Seat(Protocol[Tx_co]):
    """A connection, used by one thread; only `cut`, `lost`, `usable` and `intact` are for others."""

    @property
    def lost(self) -> bool:
        """Whether it is gone, or cut."""
        ...

    @property
    def usable(self) -> bool:
        """Whether a transaction may begin on it."""
        ...

    @property
    def intact(self) -> bool:
        """Whether a transaction is open on it, as far as the last answer told."""
        ...

    @property
    def hand(self) -> SyncHand:
        """What runs our statements on it. The first statement, ours or the author's, begins the transaction."""
        ...

    def lent(self) -> AbstractContextManager[Tx_co]:
        """See `ThreadUnit.lent_here`."""
        ...

    def open(self) -> None:
        """Connect anew."""
        ...

    def commit(self) -> None:
        """Commit, and clean up behind the handler; raises where nothing was committed."""
        ...

    def rollback(self) -> None:
        """Roll back, and clean up; a connection that cannot is closed, which rolls back as well."""
        ...

    def cut(self) -> None:
        """Shut its socket down, from any thread: whoever waits on it wakes, and nothing can be sent any more."""
        ...

    def close(self) -> None:
        """Close the connection, if there is one."""
        ...


class Wire:
    """A duplicate of a driver's socket, so that it is surely the right one, to cut a connection by from any thread."""

    def __init__(self, number: int) -> None:
        """Of the socket with that file number."""
        self._socket = socket.socket(fileno=os.dup(number))

    def cut(self) -> None:
        """Shut it down."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the duplicate."""
        self._socket.close()


class ThreadTransactions(Generic[Tx]):
    """Handlers' transactions for ``def`` handlers: so many threads, and a seat for each.

    What runs on a thread cannot be stopped. When the task that waits for it is cancelled, its connection is cut from
    outside at once, so that nothing of it can be committed any more; a thread that has not come back `LET_GO` later
    is left alone, reported as stuck, and not given out again until it returns.
    """

    threaded: Final = True

    def __init__(self, owner: Owner, seat: Callable[[], Seat[Tx]], *, size: int, name: str) -> None:
        """Open up to `size` connections, as they are needed; `name` is a label, and bounded."""
        self._make = seat
        self._slots = owner.slots(size, name=name)
        self._seats: dict[Slot, Seat[Tx]] = {}

    @property
    def stuck(self) -> int:
        """How many threads run something that was given up."""
        return self._slots.stuck

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[ThreadUnit[Tx]]:
        """See `Transactions.begin`. Waits for a free thread; the first statement begins the transaction."""
        async with self._slots.take() as slot:
            unit = ThreadUnit(slot, self._seat(slot))
            await unit.open()
            try:
                yield unit
            except BaseException:
                await unit.rollback()
                raise
            await unit.commit()

    @asynccontextmanager
    async def seated(self) -> AsyncIterator[Seated[Tx]]:
        """Take a thread with its connection for the block, waiting for a free one: for calls that begin themselves."""
        async with self._slots.take() as slot:
            yield Seated(slot, self._seat(slot))

    def _seat(self, slot: Slot) -> Seat[Tx]:
        seat = self._seats.get(slot)
        if seat is None:
            seat = self._seats[slot] = self._make()
            slot.at_end = seat.close
        return seat


class ThreadUnit(Generic[Tx]):
    """One transaction on a seat and the thread that it belongs to."""

    __slots__ = ("_seat", "_slot")

    def __init__(self, slot: Slot, seat: Seat[Tx]) -> None:
        """Speak for the transaction on `seat`'s connection."""
        self._slot = slot
        self._seat = seat

    def lent(self) -> AbstractAsyncContextManager[Tx]:
        """See `Unit.lent`; never called: a thread's transaction is lent on the thread."""
        raise AssertionError("a thread's transaction is lent by `lent_here`")

    def lent_here(self) -> AbstractContextManager[Tx]:
        """See `Unit.lent`: the same, for the thread that it is called on, which is the unit's own."""
        return self._seat.lent()

    def drive_here(self, pipeline: Pipeline[T]) -> T:
        """See `Unit.drive`: the same, on the unit's own thread."""
        return drive_sync(pipeline, self._seat.hand)

    @property
    def lost(self) -> bool:
        """See `Unit.lost`."""
        return self._seat.lost

    @property
    def intact(self) -> bool:
        """See `Unit.intact`."""
        return not self.lost and self._seat.intact

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
        return await self._run(partial(self.drive_here, pipeline))

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


class Seated(Generic[Tx]):
    """A thread for one call that opens transactions as it goes, one after the other, on the thread's connection."""

    def __init__(self, slot: Slot, seat: Seat[Tx]) -> None:
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
    def begin(self) -> Iterator[SeatedUnit[Tx]]:
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


class SeatedUnit(Generic[Tx]):
    """One open transaction, for the thread that it runs on."""

    __slots__ = ("_seat",)

    def __init__(self, seat: Seat[Tx]) -> None:
        """Speak for the transaction on `seat`'s connection."""
        self._seat = seat

    def lent(self) -> AbstractContextManager[Tx]:
        """See `ThreadUnit.lent_here`."""
        return self._seat.lent()

    def drive(self, pipeline: Pipeline[T]) -> T:
        """Run `pipeline` in this transaction."""
        return drive_sync(pipeline, self._seat.hand)
