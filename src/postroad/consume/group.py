"""The fast gear: several deliveries of one consumer in one transaction, each answering for itself alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import seconds
from postroad.consume import inbox
from postroad.consume.attempt import MARKED, REACHED, Outcome, connection_like, returned
from postroad.consume.gears import AGE
from postroad.consume.handler import HandlerRun
from postroad.consume.inbox import Claim
from postroad.consume.pipeline import Passage, Plan, demoted, passed, planned
from postroad.consume.turns import Turn, Turns
from postroad.failures import sqlstates
from postroad.signals.catalog import DeliveriesCommitted
from postroad.sql.statement import Call, Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from postroad.consume.arrival import Arrival
    from postroad.consume.attempt import Attempts
    from postroad.consume.consumer import Consumer
    from postroad.consume.gears import Gears
    from postroad.consume.lanes import Lanes
    from postroad.sql.statement import Pipeline

PATIENCE: Final = seconds(0.02)
"""How long a statement of a group waits for a lock: members before it hold theirs, and others may wait for those."""

STALLED: Final = seconds(1)
"""How long the members of a group wait for one that goes on: then it is rolled back, and each runs alone."""

ENTER: Final = Statement("SAVEPOINT postroad_member", command=True)
LEAVE: Final = Statement(
    # What the handler deferred is checked here, where it can still be told whose fault it is. One round trip.
    "SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED; "
    "RELEASE SAVEPOINT postroad_member; SAVEPOINT postroad_member",
    command=True,
)
UNDO: Final = Statement("ROLLBACK TO SAVEPOINT postroad_member; RELEASE SAVEPOINT postroad_member", command=True)

_NEEDS_ITS_OWN: Final = frozenset({"55P03", "40P01", "40001"})
"""Lock time-out, deadlock, serialization: what sharing a transaction brings about. Alone it may well succeed."""

_LOCK_TIME_OUT: Final = "55P03"

_HANDLER_COMMITTED: Final = frozenset({"25P01", "3B001"})
"""No transaction, no such savepoint: a handler ended ours, past the guard."""


class _TransactionEnded(Exception):
    """A handler ended our transaction, past the guard; the server would say so at the next savepoint."""

    sqlstate = "25P01"


class _SavepointLeft(Exception):
    """A handler has set a savepoint by its own SQL: a member after it could roll back to that, and undo others."""


_CLAIMED: Final = {Claim.DUPLICATE: Passage.DUPLICATE, Claim.BUSY: Passage.BUSY}


@dataclass(frozen=True, slots=True)
class Parting:
    """What became of the deliveries of a group: those with an outcome, those for the next group, those to run alone."""

    settled: Sequence[tuple[Arrival, Outcome, float]]
    later: Sequence[Arrival]
    alone: Sequence[Arrival]


@dataclass(slots=True)
class _Book:
    """What the members of an open group came to; it counts once the transaction is committed."""

    attempts: Attempts
    turn: Turn
    patience: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    began: float = 0.0
    ended: list[tuple[HandlerRun, Outcome]] = field(default_factory=list)
    plans: list[tuple[Arrival, Plan]] = field(default_factory=list)
    fresh: list[HandlerRun] = field(default_factory=list)
    at: int = 0
    later: list[HandlerRun] = field(default_factory=list)
    alone: list[HandlerRun] = field(default_factory=list)

    async def await_turn(self) -> None:
        """Wait until the members may run."""
        await self.turn.wait()
        self.began = self.attempts.clock.monotonic()
        self.patience.reschedule(asyncio.get_running_loop().time() + STALLED.total_seconds())

    def is_old(self) -> bool:
        """Whether the group commits before it runs another member."""
        return self.attempts.clock.monotonic() - self.began >= AGE.total_seconds()

    def reached(self, run: HandlerRun, passage: Passage) -> None:
        """`run` came so far."""
        self.ended.append((run, REACHED[passage]))

    def speaks_of_another(self, run: HandlerRun, error: Exception) -> bool:
        """Whether it has to be asked first whether a dependency is away, which takes longer than a group may."""
        return self.attempts.judge(run.error or error, run.arrival).dependency is not None

    def judged(self, run: HandlerRun, error: Exception) -> Plan | None:
        """`run` failed by itself: what becomes of it; None means: given back, uncharged."""
        attempts, arrival = self.attempts, run.arrival
        verdict = attempts.judge(run.error or error, arrival)
        plan = planned(attempts.consumer, arrival, verdict, chance=attempts.chance())
        if plan is None:
            self.ended.append((run, returned(verdict)))
        else:
            self.ended.append((run, Outcome(MARKED[plan.mark], plan.verdict.reason)))
            self.plans.append((arrival, plan))
        return plan


def grouped(
    schema: str, consumer: Consumer[Any], runs: Sequence[HandlerRun], book: _Book, *, savepoints: bool
) -> Pipeline[None]:
    """One inbox claim for all, then each handler, until the group is old or somebody ends it.

    With `savepoints` a member's own failure costs its effects alone, and its mark is changed here; whoever needs a
    transaction of his own, and whoever comes after him, has his mark taken back. Without them it comes out. Any error
    that comes out has broken the group.
    """
    others = yield from inbox.claim_many(schema, consumer.name, [_key(run) for run in runs], patience=PATIENCE)
    for run in runs:
        claim = others.get(_key(run), Claim.FRESH)
        if claim is Claim.FRESH:
            book.fresh.append(run)
        else:
            book.reached(run, _CLAIMED[claim])
    if not book.fresh:
        return
    yield Call(book.await_turn)
    member = _apart if savepoints else _joined
    if savepoints:
        yield ENTER
    for at, run in enumerate(book.fresh):
        book.at = at
        if at and book.is_old():
            book.later = book.fresh[at:]
            break
        if not (yield from member(schema, consumer, run, book)):
            book.alone = book.fresh[at:]
            break
    unreached = [_key(run) for run in (*book.later, *book.alone)]
    if unreached:
        yield from inbox.forget(schema, consumer.name, unreached)


def _joined(schema: str, consumer: Consumer[Any], run: HandlerRun, book: _Book) -> Pipeline[bool]:
    """Run one member, for better or worse."""
    assert run.unit is not None
    try:
        passage = yield from passed(schema, consumer, run.arrival, run)
    except Exception as error:
        if not run.unit.lost and not run.unit.intact:
            raise _TransactionEnded from error
        raise
    if not run.unit.intact:
        raise _TransactionEnded
    if run.unit.entangled:
        raise _SavepointLeft
    book.reached(run, passage)
    return True


def _apart(schema: str, consumer: Consumer[Any], run: HandlerRun, book: _Book) -> Pipeline[bool]:
    """Run one member in a savepoint; False where it must run alone, and the group is at its end."""
    try:
        passage = yield from passed(schema, consumer, run.arrival, run)
        yield LEAVE
    except Exception as error:  # noqa: BLE001 - the border around the author's handler
        yield UNDO
        if run.limited or not _NEEDS_ITS_OWN.isdisjoint(sqlstates(error)) or book.speaks_of_another(run, error):
            return False
        yield from demoted(schema, consumer, run.arrival, book.judged(run, error))
        yield ENTER
    else:
        book.reached(run, passage)
    return True


class Group:
    """Runs the groups of one consumer.

    Nothing of a group is told, and nothing may be acked, before its commit. While nothing fails, groups are
    optimistic: without savepoints, which saves every member a round trip. The first failure is rolled back with its
    whole group; its members are the first of the next one, with a savepoint for each, and so it stays for a minute. A
    lock time-out behind a commit that took long is nobody's failure: for a minute turns wait for commits.

    Whatever else ends a group than its age and its members' own failures charges nobody: its members come back to be
    run alone. Told of a lost connection it does not ask whether the commit was reached: the inbox knows, when they run
    again.
    """

    def __init__(self, attempts: Attempts) -> None:
        """Group for `attempts.consumer`."""
        self._attempts = attempts
        self._open: list[float] = []  # since when
        self._turns = Turns(STALLED.total_seconds())

    @property
    def full(self) -> bool:
        """Whether no further group would be started now."""
        return len(self._open) >= self._attempts.gears.open

    def stalled(self, now: float) -> bool:
        """Whether a member keeps a group open so long that the others should not wait for it."""
        return any(now - since > STALLED.total_seconds() for since in self._open)

    async def settle(self, arrivals: Sequence[Arrival]) -> Parting:
        """Take identified and validated deliveries to their outcomes. Cancellation rolls back and comes out.

        A lone one shares nothing, and has a transaction like that of the slow gear.
        """
        attempts, abreast = self._attempts, self._attempts.gears.abreast > 1
        first, copies = _distinct(arrivals)
        began = attempts.clock.monotonic()
        self._open.append(began)
        turn = self._turns.join(single=not abreast)
        try:
            if len(first) > 1:
                return await self._together(first, copies, _Book(attempts, turn), abreast=abreast)
            await turn.wait()
            outcome = await attempts.settle(first[0])
            return Parting([(first[0], outcome, attempts.clock.monotonic() - began)], copies, ())
        finally:
            turn.over()
            self._open.remove(began)

    async def _together(
        self, first: Sequence[Arrival], copies: Sequence[Arrival], book: _Book, *, abreast: bool
    ) -> Parting:
        attempts, gears = self._attempts, self._attempts.gears
        optimistic = gears.optimistic
        runs = [HandlerRun(attempts.around, arrival) for arrival in first]
        try:
            async with attempts.alone.beside(), attempts.transactions.begin() as unit:
                task = asyncio.current_task()
                for run in runs:
                    run.unit, run.task = unit, task
                pipeline = grouped(attempts.schema, attempts.consumer, runs, book, savepoints=not optimistic)
                try:
                    async with book.patience:
                        await unit.drive(pipeline)
                finally:
                    if gears.overlapping:
                        book.turn.end()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is found out who it is about
            if book.patience.expired():
                gears.punish()
                return Parting((), copies, first)
            if optimistic and _savepoints_would_help(error, runs):
                self._trust_less(error, book.turn, abreast=abreast)
                return Parting((), [*first, *copies], ())
            if any(run.error is not None and not run.lost for run in runs) or not connection_like(error):
                gears.ended(early=True)
            if not _HANDLER_COMMITTED.isdisjoint(sqlstates(error)):
                await self._take_back(book)
            for run in runs:
                attempts.lost_again(run)
            return Parting((), copies, first)
        finally:
            for run in runs:
                run.error = None  # Its traceback holds the frames of the handler, and with them the payload.
        gears.ended(early=bool(book.alone))
        return self._told(book, copies)

    def _trust_less(self, error: Exception, turn: Turn, *, abreast: bool) -> None:
        """An optimistic group ended by `error`: what those after it do without."""
        gears = self._attempts.gears
        if abreast and not _NEEDS_ITS_OWN.isdisjoint(sqlstates(error)):
            gears.collided()
        elif turn.behind and _LOCK_TIME_OUT in sqlstates(error):
            gears.overtook()
        else:
            gears.failed()

    def _told(self, book: _Book, copies: Sequence[Arrival]) -> Parting:
        attempts = self._attempts
        marked = sum(outcome.end in _MARKING for _, outcome in book.ended)
        if marked:
            attempts.signals.emit(DeliveriesCommitted(attempts.consumer.name, marked))
        for arrival, plan in book.plans:
            attempts.tell(arrival, plan)
        settled = [(run.arrival, outcome, run.seconds) for run, outcome in book.ended]
        later = [*(run.arrival for run in book.later), *copies]
        return Parting(settled, later, [run.arrival for run in book.alone])

    async def _take_back(self, book: _Book) -> None:
        """A handler committed, and with it the marks of those that have not run: they are taken back at once."""
        attempts = self._attempts
        early = [_key(run) for run in book.fresh[book.at + 1 :]]
        async with attempts.transactions.begin() as unit:
            await unit.drive(inbox.forget(attempts.schema, attempts.consumer.name, early))


async def run_groups(lanes: Lanes, gears: Gears, start: Callable[[Sequence[Arrival]], asyncio.Task[None]]) -> None:
    """Take from `lanes` what waits for a group and `start` it, as many at once as `gears` says, until they end.

    What becomes of each is its own task's to say. Cancellation cancels those that are open.
    """
    open_: set[asyncio.Task[None]] = set()
    try:
        while batch := await lanes.batch(lambda: gears.size):
            if len(open_) < gears.open:
                open_.add(start(batch))
            else:  # There was room for it when we began to wait.
                lanes.onward(batch)
            while len(open_) >= gears.open:
                open_ = await _some(open_)
        while open_:
            open_ = await _some(open_)
    finally:
        for one in open_:
            one.cancel()
        await asyncio.gather(*open_, return_exceptions=True)


async def _some(tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Those that are left when one has ended, or a moment has passed: what is waited for may have changed."""
    _, left = await asyncio.wait(tasks, timeout=STALLED.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
    return left


_MARKING: Final = frozenset({REACHED[Passage.HANDLED].end, *MARKED.values()})


def _key(run: HandlerRun) -> UUID:
    key = run.arrival.message_key
    assert key is not None
    return key


def _savepoints_would_help(error: Exception, runs: Sequence[HandlerRun]) -> bool:
    """Whether with savepoints only one member would have failed."""
    if isinstance(error, _TransactionEnded):
        return False
    for run in runs:
        if run.error is not None:
            return not (run.limited or run.lost)
    return not connection_like(error) and _HANDLER_COMMITTED.isdisjoint(sqlstates(error))


def _distinct(arrivals: Sequence[Arrival]) -> tuple[list[Arrival], list[Arrival]]:
    """The first of each message, and the copies: they wait for its outcome."""
    first: dict[UUID | None, Arrival] = {}
    copies = [arrival for arrival in arrivals if first.setdefault(arrival.message_key, arrival) is not arrival]
    return [*first.values()], copies
