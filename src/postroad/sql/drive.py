"""The drivers of pipelines: each runs what a generator yields on one connection, and sends back what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

from postroad.clock import seconds
from postroad.errors import UsageError
from postroad.sql.statement import Call, Pipeline, Statement

if TYPE_CHECKING:
    from postroad.owner import Owner

T = TypeVar("T")
Tx_co = TypeVar("Tx_co", covariant=True)
Rows = Sequence[Mapping[str, Any]]

PATIENCE: Final = seconds(10)
"""How long the begin or end of a transaction may take on a connection that is not of our pool."""


class AsyncHand(Protocol):
    """Runs one statement on one asynchronous connection."""

    async def fetch(self, statement: Statement) -> Rows:
        """Run `statement`; its rows (none for a command). Driver errors come out as they are."""
        ...


async def drive(pipeline: Pipeline[T], hand: AsyncHand) -> T:
    """Run `pipeline` to its end on `hand` and return its value.

    An error of a step is thrown into the pipeline at its ``yield``, cancellation included: what it does not
    catch comes out here.
    """
    try:
        step = next(pipeline)
        while True:
            try:
                value = hand.fetch(step) if isinstance(step, Statement) else step.function()
                result = await value if hasattr(value, "__await__") else value
            except BaseException as error:  # noqa: BLE001 - the pipeline decides, cancellation included
                step = pipeline.throw(error)
            else:
                step = pipeline.send(result)
    except StopIteration as end:
        outcome: T = end.value
        return outcome
    finally:
        pipeline.close()


class SyncHand(Protocol):
    """Runs one statement on one blocking connection."""

    def fetch(self, statement: Statement) -> Rows:
        """Run `statement`; its rows (none for a command). Driver errors come out as they are."""
        ...


def drive_sync(pipeline: Pipeline[T], hand: SyncHand) -> T:
    """Run `pipeline` to its end on `hand`, in the calling thread, and return its value; errors as in `drive`."""
    try:
        step = next(pipeline)
        while True:
            try:
                result = _perform_sync(step, hand)
            except BaseException as error:  # noqa: BLE001 - the pipeline decides
                step = pipeline.throw(error)
            else:
                step = pipeline.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        pipeline.close()


def _perform_sync(step: Statement | Call, hand: SyncHand) -> Any:
    if isinstance(step, Statement):
        return hand.fetch(step)
    value = step.function()
    if not hasattr(value, "__await__"):
        return value
    if hasattr(value, "close"):
        value.close()
    raise UsageError("PR107", "a `def` handler returned something to be awaited, which nobody runs; write `async def`")


class Unit(Protocol[Tx_co]):
    """One open transaction: what the author's code gets, and the hand that runs our statements beside it."""

    def lent(self) -> AbstractAsyncContextManager[Tx_co]:
        """What one handler gets, for the block: the connection of a driver, or a session of its own on it.

        Left well, the block first sends what a session still holds back. Left by an error it sends nothing; what was
        sent is rolled back by whoever opened the transaction or a savepoint.
        """
        ...

    @property
    def lost(self) -> bool:
        """Whether the connection is gone: nothing of this transaction can be committed by us any more."""
        ...

    @property
    def intact(self) -> bool:
        """Whether the transaction is still open, as far as the last answer told; asks nobody."""
        ...

    @property
    def entangled(self) -> bool:
        """Whether a handler has set a savepoint by SQL of its own, which it may have left open."""
        ...

    async def drive(self, pipeline: Pipeline[T]) -> T:
        """Run `pipeline` in this transaction."""
        ...

    def terminate(self) -> None:
        """Cut the connection at once, from outside: code that does not end cannot commit any more."""
        ...


class Block(Protocol):
    """A READ COMMITTED transaction on a driver's own connection, begun and ended by plain statements.

    The driver, and whatever stands above it, knows it as in autocommit, and so sends none of its own.
    """

    @property
    def hand(self) -> AsyncHand:
        """What runs our statements on it."""
        ...

    @property
    def lost(self) -> bool:
        """See `Unit.lost`."""
        ...

    @property
    def intact(self) -> bool:
        """See `Unit.intact`."""
        ...

    async def begin(self) -> None:
        """Begin."""
        ...

    async def commit(self) -> None:
        """Commit; raises where nothing was committed, since an error was caught that had failed the transaction."""
        ...

    async def rollback(self) -> None:
        """Roll back."""
        ...

    def terminate(self) -> None:
        """See `Unit.terminate`."""
        ...


class BlockUnit:
    """What every `Unit` on a `Block` has alike; what it lends, and whether that was entangled, is for its subclass."""

    __slots__ = ("_block",)

    def __init__(self, block: Block) -> None:
        """Speak for the transaction of `block`, which is open."""
        self._block = block

    @property
    def lost(self) -> bool:
        """See `Unit.lost`."""
        return self._block.lost

    @property
    def intact(self) -> bool:
        """See `Unit.intact`."""
        return self._block.intact

    async def drive(self, pipeline: Pipeline[T]) -> T:
        """See `Unit.drive`."""
        return await drive(pipeline, self._block.hand)

    def terminate(self) -> None:
        """See `Unit.terminate`."""
        self._block.terminate()


class ThreadUnit(Unit[Tx_co], Protocol[Tx_co]):
    """One open transaction that belongs to a thread; these are called there."""

    def lent_here(self) -> AbstractContextManager[Tx_co]:
        """See `Unit.lent`, which is not called then."""
        ...

    def drive_here(self, pipeline: Pipeline[T]) -> T:
        """See `Unit.drive`."""
        ...


class Transactions(Protocol[Tx_co]):
    """Where the transactions of a handler come from: whose connection, in which driver's form."""

    def begin(self) -> AbstractAsyncContextManager[Unit[Tx_co]]:
        """Open a transaction; leaving it commits, an error (cancellation included) rolls back.

        An error while committing comes out of the block's end: then the outcome may be unknown.
        """
        ...


BEGIN: Final = Statement("BEGIN ISOLATION LEVEL READ COMMITTED", command=True)
COMMIT: Final = Statement("COMMIT", command=True)
ROLLBACK: Final = Statement("ROLLBACK", command=True)


def ended_by_handler() -> UsageError:
    """The error of a transaction that its handler has ended, past the guard."""
    return UsageError("PR111", "the handler ended the transaction of its delivery, which was not its own")


@asynccontextmanager
async def kept(block: Block) -> AsyncIterator[None]:
    """Begin `block`, and commit it at the end, or roll it back after an error; what cannot be ended is cut.

    Each of these may take `PATIENCE`: a server that never answers would hold up whoever waits.
    """
    try:
        async with asyncio.timeout(PATIENCE.total_seconds()):
            await block.begin()
        yield
        if not block.intact:
            raise ended_by_handler()  # noqa: TRY301 - what ends here is undone below
        async with asyncio.timeout(PATIENCE.total_seconds()):
            await block.commit()
    except BaseException:
        if block.intact and not block.lost:
            try:
                async with asyncio.timeout(PATIENCE.total_seconds()):
                    await block.rollback()
            except BaseException:
                block.terminate()
                raise
        raise


class Form(Protocol[Tx_co]):
    """What ``on=`` takes: whose transactions a handler gets, said before it is known which App runs it."""

    threaded: ClassVar[bool]
    """Whether they are for ``def`` functions, each on a thread, and not for ``async def``."""

    def transactions(self, url: str, owner: Owner, *, size: int, name: str) -> Transactions[Tx_co]:
        """The transactions of one consumer or queue of jobs in a process, at most `size` at once; `name` is a label.

        `url` is the App's database, which whoever has an address of his own must mean as well. What needs threads
        returns `ThreadTransactions`. What it opens is closed with the tasks and threads of `owner`.
        """
        ...
