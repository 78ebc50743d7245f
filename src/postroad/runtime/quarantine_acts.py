"""What an operator may do with quarantine: look, release and discard, one row, a group of one fault, or a choice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, TypeVar

import asyncpg

from postroad.audit import Act, record
from postroad.clock import SYSTEM_CLOCK
from postroad.consume.release import all_released
from postroad.effects import operate as effects
from postroad.errors import UsageError
from postroad.outbox.release import released as release_event
from postroad.runtime.operations import connected
from postroad.schedules import store as occurrences
from postroad.sql import drive, migrations
from postroad.sql.asyncpg import AsyncpgHand
from postroad.work import kept, release

if TYPE_CHECKING:
    from postroad.runtime.operations import Connection
    from postroad.runtime.settings import Settings
    from postroad.sql import Pipeline
    from postroad.work.kept import Chosen, Group, Total, Whole
    from postroad.work.store import Kept

T = TypeVar("T")

LONGEST_REASON: Final = 500
EFFECT: Final = "effect"
"""Begins the fingerprint of a group of effects, before a colon and their name."""
NOT_GIVEN_UP: Final = "an effect is not given up: say what became of it by `postroad effects resolve ID --as ...`"
_BATCH: Final = 500
_BATCHES_A_SECOND: Final = 5
"""How finely a rate is spread; a stop is heard between two batches."""
_LOCKED: Final = "0.5s"
"""After how long of waiting for a lock it is looked whether to stop."""
_LATE: Final = 1.0
"""How many seconds that a slow database cost are caught up with: a rate is what the consumers can bear."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What an act would touch: how many rows in which queues, the oldest's age, and the latest id, where it ends.

    `unreleasable` of them stay, whatever is done: nothing vouches for their identity.
    """

    count: int
    oldest_seconds: float
    unreleasable: int
    last: int
    queues: Sequence[Total]


@dataclass(frozen=True, slots=True)
class Done:
    """How far an act has come: rows that it changed, rows that it had to leave, and whether it was stopped."""

    done: int = 0
    left: int = 0
    stopped: bool = False


async def groups(settings: Settings, chosen: Chosen, *, limit: int) -> Sequence[Group]:
    """What lies open by fault, the group that has lain longest first; effects that are left to a person, by name.

    Raises:
        AccessRefused: the role may not, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away. Every act here raises these three.
    """
    async with _hand(settings) as hand:
        found = await drive(kept.groups(settings.schema, chosen, limit=limit), hand)
        found += await drive(_effects(settings.schema, chosen), hand)
    return sorted(found, key=lambda group: (group.oldest, group.fingerprint))[:limit]


async def rows(settings: Settings, chosen: Chosen, *, limit: int) -> Sequence[Kept]:
    """What lies open, latest first, without bodies and headers.

    Raises:
        UsageError: PR107, the group is of effects, which have a list of their own.
    """
    refuse_effects(chosen, "effects are not listed here; see `postroad effects list --state manual`")
    async with _hand(settings) as hand:
        return await drive(kept.listed(settings.schema, chosen, limit=limit), hand)


async def row(settings: Settings, number: int, *, payload: bool) -> Whole:
    """Everything about one row, open or resolved; body and headers only where `payload` asks for them.

    Raises:
        UsageError: PR112, there is none, or no more.
    """
    async with _hand(settings) as hand:
        found = await drive(kept.show(settings.schema, number, payload=payload), hand)
    if found is None:
        raise UsageError("PR112", f"there is no row {number} in quarantine; see `postroad quarantine list`")
    return found


async def preview(settings: Settings, chosen: Chosen) -> Preview:
    """How much is `chosen`, where, since when. Changes nothing."""
    async with _hand(settings) as hand:
        found = await drive(_totals(settings.schema, chosen), hand)
    return Preview(
        sum(each.count for each in found), max((each.oldest_seconds for each in found), default=0.0),
        sum(each.unreleasable for each in found), max((each.last for each in found), default=0), found,
    )  # fmt: skip


async def retry(
    settings: Settings, chosen: Chosen, *, last: int, by: str, rate: float | None = None,
    stop: asyncio.Event | None = None, told: Callable[[Done], None] = lambda _: None,
) -> Done:  # fmt: skip
    """Release what is `chosen` up to the row `last`, as `by`, at most `rate` rows a second, until `stop` is set.

    Rows go in the order in which they were quarantined, so that of one key the first one is ready first. It runs in
    transactions of a fifth of a second's rows, each with its entry in the audit: killed or stopped, it has released
    whole ones, and the same call goes on with the rest. A row is released once, however often it is called, and what
    fails again comes back behind `last`. A row that somebody else has locked is waited for, and a stop is heard
    meanwhile. Of a group of effects each is looked up once more. `told` hears how far it is after each transaction.
    """
    size = _BATCH if rate is None else max(1, min(_BATCH, round(rate / _BATCHES_A_SECOND)))
    due, after, sum_ = -inf, 0, Done()
    stop = stop or asyncio.Event()
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        while not stop.is_set():
            pipeline = _released(settings.schema, chosen, after=after, last=last, limit=size, by=by)
            try:
                ids, done = await _impatiently(connection, pipeline)
            except asyncpg.LockNotAvailableError:  # Nothing was changed.
                continue
            if not ids:
                return sum_
            after, sum_ = ids[-1], Done(sum_.done + done, sum_.left + len(ids) - done)
            told(sum_)
            if rate is not None:
                now = SYSTEM_CLOCK.monotonic()
                due = (now if due == -inf else max(due, now - _LATE)) + len(ids) / rate
                await _pause(stop, due - SYSTEM_CLOCK.monotonic())
    return Done(sum_.done, sum_.left, stopped=True)


async def discard(settings: Settings, chosen: Chosen, *, last: int, by: str, reason: str) -> Done:
    """Resolve what is `chosen` up to the row `last` as *discarded*, as `by`: it is never tried again. Safe to repeat.

    The rows are shown for 90 days more. A redelivery of what has a key stays a duplicate.

    Raises:
        UsageError: PR107, the reason is empty or not one line.
    """
    check_reason(reason)
    refuse_effects(chosen, NOT_GIVEN_UP)
    after, sum_ = 0, Done()
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        while True:
            pipeline = _discarded(settings.schema, chosen, after=after, last=last, by=by, reason=reason)
            try:
                ids = await _impatiently(connection, pipeline)
            except asyncpg.LockNotAvailableError:
                continue
            if not ids:
                return sum_
            after, sum_ = ids[-1], Done(sum_.done + len(ids))


def refuse_effects(chosen: Chosen, why: str) -> None:
    """Check that no group of effects is meant.

    Raises:
        UsageError: PR107, one is; `why`.
    """
    if _effect(chosen) is not None:
        raise UsageError("PR107", f"--group {chosen.fingerprint!r}: {why}")


def check_reason(reason: str) -> None:
    """Check that somebody says why.

    Raises:
        UsageError: PR107, the reason is empty or not one line.
    """
    if not reason.strip() or len(reason) > LONGEST_REASON or not reason.isprintable():
        raise UsageError("PR107", f"--reason is one line of 1 to {LONGEST_REASON} characters: why it is done")


def _released(
    schema: str, chosen: Chosen, *, after: int, last: int, limit: int, by: str
) -> Pipeline[tuple[list[int], int]]:  # fmt: skip
    """One batch: the ids that were looked at, and how many of them were released."""
    effect = _effect(chosen)
    if effect is not None:
        asked = yield from effects.asked(
            schema, effect, since=chosen.since, until=chosen.until, after=after, last=last, limit=limit, by=by
        )
        return asked, len(asked)
    found = yield from kept.following(schema, chosen, after=after, last=last, limit=limit)
    ids = [number for number, _ in found]
    made = yield from all_released(schema, [number for number, kind in found if kind != "event"], by=by)
    for each in made:
        if each.kind == "job":
            yield from occurrences.reopened(schema, key=each.key, work_id=each.number)
    done = len(made)
    for number in (number for number, kind in found if kind == "event"):
        done += yield from _event_released(schema, number, by)
    if done:
        yield from record(schema, _act("quarantine.retry", chosen, ids, done, by=by, reason=None))
    return ids, done


def _effect(chosen: Chosen) -> str | None:
    """The name of the effects that are meant, where a group of effects is."""
    prefix, _, name = (chosen.fingerprint or "").partition(":")
    return name if prefix == EFFECT else None


def _effects(schema: str, chosen: Chosen) -> Pipeline[list[Group]]:
    """Effects as groups: nobody knows what became of them, and a person has to say."""
    name = _effect(chosen)
    if chosen.given.keys() - {"queue", "fingerprint", "since", "until"} or (chosen.fingerprint and name is None):
        return []
    if None not in {name, chosen.queue} and name != chosen.queue:
        return []
    found = yield from effects.left(schema, name=name or chosen.queue, since=chosen.since, until=chosen.until)
    return [
        kept.Group(
            f"{EFFECT}:{one.name}", one.count, one.oldest, one.latest, [one.name], [], "manual", "manual",
            "OutcomeUnknown", one.reason,
        )
        for one in found
    ]  # fmt: skip


def _totals(schema: str, chosen: Chosen) -> Pipeline[list[Total]]:
    name = _effect(chosen)
    if name is None:
        return (yield from kept.totals(schema, chosen))
    found = yield from effects.left(schema, name=name, since=chosen.since, until=chosen.until)
    return [kept.Total(one.name, one.count, one.oldest_seconds, one.last, 0) for one in found]


def _event_released(schema: str, number: int, by: str) -> Pipeline[int]:
    event = yield from release.look(schema, number)
    assert event is not None, "it is locked"
    try:
        yield from release_event(schema, event, by=by)
    except UsageError:  # The log does not hold it any more; nothing was changed.
        return 0
    return 1


def _discarded(
    schema: str, chosen: Chosen, *, after: int, last: int, by: str, reason: str
) -> Pipeline[list[int]]:  # fmt: skip
    found = yield from kept.following(schema, chosen, after=after, last=last, limit=_BATCH)
    ids = [number for number, _ in found]
    if ids:
        yield from kept.discard(schema, ids, by=by, reason=reason)
        yield from record(schema, _act("quarantine.discard", chosen, ids, len(ids), by=by, reason=reason))
    return ids


def _act(act: str, chosen: Chosen, ids: Sequence[int], items: int, *, by: str, reason: str | None) -> Act:
    subject = str(chosen.id or chosen.fingerprint or chosen.queue or "choice")
    after = {"first": ids[0], "last": ids[-1], "left": len(ids) - items}
    return Act(by=by, act=act, subject=subject, items=items, reason=reason, before=chosen.given, after=after)


async def _impatiently(connection: Connection, pipeline: Pipeline[T]) -> T:
    """Run `pipeline` in a transaction of its own that waits for no lock longer than `_LOCKED`.

    The next rows are read in order of their ids: where a planner that knows no better reads all that is left and sorts
    it, each batch costs as much as the whole.
    """
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{_LOCKED}'; SET LOCAL enable_sort = off")
        return await drive(pipeline, AsyncpgHand(connection))


async def _pause(stop: asyncio.Event, wait: float) -> None:
    try:
        async with asyncio.timeout(max(0.0, wait)):
            await stop.wait()
    except TimeoutError:
        return


@asynccontextmanager
async def _hand(settings: Settings) -> AsyncIterator[AsyncpgHand]:
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        yield AsyncpgHand(connection)
