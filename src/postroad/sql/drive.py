"""The drivers of pipelines: each runs what a generator yields on one connection, and sends back what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from postroad.errors import UsageError
from postroad.sql.statement import Call, Pipeline, Statement

T = TypeVar("T")
Tx_co = TypeVar("Tx_co", covariant=True)
Rows = Sequence[Mapping[str, Any]]


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

    @property
    def tx(self) -> Tx_co:
        """What a handler gets as ``delivery.tx``: a connection or session of the author's driver."""
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


class Transactions(Protocol[Tx_co]):
    """Where the transactions of a handler come from: whose connection, in which driver's form."""

    def begin(self) -> AbstractAsyncContextManager[Unit[Tx_co]]:
        """Open a transaction; leaving it commits, an error (cancellation included) rolls back.

        An error while committing comes out of the block's end: then the outcome may be unknown.
        """
        ...
