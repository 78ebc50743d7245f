"""What may be said of rows of `work` while they run: the fence, progress, what operators ask, and many ends at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from postroad.sql import queries
from postroad.work.wire import kept

if TYPE_CHECKING:
    from postroad.sql import Pipeline
    from postroad.work.store import ClaimedRow

QUERIES: Final = queries("postroad.work", "running.sql")


@dataclass(slots=True)
class Finish:
    """How a claimed row ended."""

    id: int
    token: int
    outcome: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What operators ask of a process: the reasons of cancelled rows by their token, and the queues that are paused."""

    cancelled: dict[int, str]
    paused: frozenset[str]


def finish_many(schema: str, ends: Sequence[Finish]) -> Pipeline[frozenset[int]]:
    """Move claimed rows to `finished`, by one statement for each outcome; the ids of those that were still ours."""
    alike: dict[tuple[str, str | None], list[Finish]] = {}
    for end in ends:
        alike.setdefault((end.outcome, end.reason), []).append(end)
    ours: list[int] = []
    for (outcome, reason), some in alike.items():
        ids, tokens = [end.id for end in some], [end.token for end in some]
        rows = yield QUERIES.statement("finish_many", schema, ids, tokens, outcome, kept(reason))
        ours += [row["id"] for row in rows]
    return frozenset(ours)


def hold(schema: str, id: int, token: int) -> Pipeline[bool]:  # noqa: A002 - the column
    """Whether a claimed row is ours; if so, nobody takes it before this transaction has ended. Call it last in it."""
    return bool((yield QUERIES.statement("hold", schema, id, token)))


def report(schema: str, id: int, token: int, *, fraction: float, note: str | None) -> Pipeline[tuple[bool, str | None]]:  # noqa: A002
    """Note how far a claimed row has come: whether it is ours, and the reason if an operator has cancelled it."""
    rows = yield QUERIES.statement("report", schema, id, token, fraction, kept(note))
    if not rows:
        return False, None
    return True, (rows[0]["cancel_reason"] or "") if rows[0]["cancelled"] else None


def asked(schema: str, *, workers: Sequence[str], queues: Sequence[str]) -> Pipeline[Asked]:
    """What operators ask about rows that run under the leases `workers`, and about `queues`: one statement for all."""
    rows = yield QUERIES.statement("asked", schema, list(workers), list(queues))
    return Asked(
        cancelled={row["token"]: row["reason"] or "" for row in rows if row["token"] is not None},
        paused=frozenset(row["queue"] for row in rows if row["queue"] is not None),
    )


def bring_forward(schema: str, rows: Sequence[int]) -> Pipeline[frozenset[int]]:
    """Make those of `rows` ready that are put off; which of them run now, and may be put off a moment later."""
    found = yield QUERIES.statement("bring_forward", schema, list(rows))
    return frozenset(row["id"] for row in found)


def within_fleet(
    schema: str, queue: str, *, most: int, wanted: int, claim: Callable[[int], Pipeline[list[ClaimedRow]]]
) -> Pipeline[list[ClaimedRow]]:
    """Claim so many that no more than `most` rows of `queue` run in all processes; in a transaction.

    Processes take turns, so that each counts what the one before has claimed; whose turn it is not gets nothing. The
    turn is had by a statement of its own: the next sees what was committed before it.
    """
    turn = yield QUERIES.statement("fleet", schema, schema, queue)
    if not turn[0]["ours"]:
        return []
    counted = yield QUERIES.statement("count_running", schema, queue)
    room = min(wanted, most - int(counted[0]["count"]))
    return (yield from claim(room)) if room > 0 else []
