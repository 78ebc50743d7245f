"""The sole owner of the table ``effect``: every step of the state chart, as pipelines that are fenced by a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from postroad.effects.decide import State
from postroad.sql import queries
from postroad.work.wire import kept

if TYPE_CHECKING:
    from postroad.effects.decide import Conclusion
    from postroad.effects.effect import Request
    from postroad.sql import Pipeline

QUERIES: Final = queries("postroad.effects", "store.sql")
BATCH: Final = 500
REMEMBERED: Final = timedelta(days=90)
"""How long outcomes are kept: longer than messages are, and any provider's window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An effect as it stands; times are distances by the database's clock.

    `alive`: whoever sent it still has its row of work. `settles_in`: above zero while the request may be on its way.
    `remembered`: for how long the provider still knows the key, None where nobody counts on that.
    """

    id: int
    key: str
    state: State
    fingerprint: str
    provider_key: str
    attempt: int
    outcome: str | None
    reason: str | None
    looks: int
    absences: int
    token: int | None
    sent_at: datetime | None
    alive: bool
    settles_in: timedelta
    remembered: timedelta | None
    name: str = ""
    command: bytes | None = field(default=None, repr=False)


def durable(schema: str) -> Pipeline[None]:
    """Make the commit of this transaction durable, and let the server end it should we stand still. Call it first."""
    yield QUERIES.statement("durable", schema)


def intended(schema: str, name: str, request: Request, *, run: int, token: int) -> Pipeline[Entry]:
    """Note the intent of a run, unless its key is known; the effect as it stands, locked."""
    yield QUERIES.statement(
        "intend", schema, name, request.key, request.fingerprint, request.provider_key, run, token, request.body
    )
    (row,) = yield QUERIES.statement("look", schema, name, request.key)
    return _entry(row)


def adopt(schema: str, id: int, *, run: int, token: int) -> Pipeline[None]:  # noqa: A002 - the column
    """Make an intent this run's."""
    yield QUERIES.statement("adopt", schema, id, run, token)


def wait(schema: str, id: int, *, run: int) -> Pipeline[None]:  # noqa: A002 - the column
    """Have the row of work `run` woken when there is an outcome."""
    yield QUERIES.statement("wait", schema, id, run)


def sent(
    schema: str, id: int, *, run: int, token: int, settle: timedelta, repeat: bool, key_window: timedelta | None,  # noqa: A002
    command: bytes, timeout: timedelta,
) -> Pipeline[tuple[int, datetime] | None]:  # fmt: skip
    """Note that the request is about to leave: its number and time; None where it may not, since another moved first.

    `repeat`: it is the look-up of an unknown outcome, so that the provider's memory of the key is not counted anew; it
    does not leave where that ends within the `timeout`, whatever was seen before.
    """
    args = (id, run, token, settle, repeat, key_window, command, timeout)
    rows = yield QUERIES.statement("send", schema, *args)
    return (rows[0]["attempt"], rows[0]["sent_at"]) if rows else None


def settled(schema: str, id: int, token: int, *, state: State, outcome: str) -> Pipeline[bool]:  # noqa: A002
    """Record the owner's answer; whether the move was still this run's."""
    return bool((yield QUERIES.statement("settle", schema, id, token, state.value, kept(outcome))))


def doubted(schema: str, id: int, token: int, *, state: State, reason: str) -> Pipeline[bool]:  # noqa: A002
    """Note that nobody knows what became of what this run has sent; whether the move was still its own."""
    return bool((yield QUERIES.statement("doubt", schema, id, token, state.value, kept(reason))))


def doubt_orphans(schema: str, states: Mapping[str, State]) -> Pipeline[list[tuple[str, State]]]:
    """Doubt what was sent by runs that are gone; by effect what that leads to, and what was found."""
    rows = yield QUERIES.statement(
        "doubt_orphans", schema, list(states), [state.value for state in states.values()]
    )  # fmt: skip
    return [(row["name"], State(row["state"])) for row in rows]


def claim(schema: str, leases: Mapping[str, timedelta], *, limit: int) -> Pipeline[list[Entry]]:
    """Claim what is due to be looked up, each for as long as its effect's entry in `leases`."""
    rows = yield QUERIES.statement("claim", schema, list(leases), limit, list(leases.values()))
    return [_entry(row) for row in rows]


def conclude(schema: str, entry: Entry, conclusion: Conclusion) -> Pipeline[bool]:
    """Note what a look-up came to; whether it was still that one's turn."""
    said = (conclusion.state.value, kept(conclusion.outcome), kept(conclusion.reason))
    args = (entry.id, entry.token, *said, conclusion.absences, conclusion.next_in)
    return bool((yield QUERIES.statement("conclude", schema, *args)))


def past_window(schema: str, margins: Mapping[str, timedelta]) -> Pipeline[list[tuple[int, str]]]:
    """Leave to a person what can be repeated no more; the effects, with their names."""
    rows = yield QUERIES.statement("past_window", schema, list(margins), list(margins.values()))
    return [(row["id"], row["name"]) for row in rows]


def awaited(schema: str) -> Pipeline[list[tuple[int, Sequence[int]]]]:
    """Effects that rows of work need not wait for any more: the effect, and the rows."""
    rows = yield QUERIES.statement("awaited", schema, BATCH)
    return [(row["id"], row["waiting"]) for row in rows]


def told(schema: str, id: int, rows: Sequence[int]) -> Pipeline[None]:  # noqa: A002 - the column
    """Note that these rows of work were woken, or are gone."""
    yield QUERIES.statement("told", schema, id, list(rows))


def open_state(schema: str) -> Pipeline[list[tuple[str, str, int, float]]]:
    """Effects without an outcome: name, state, how many, and the age of the oldest in seconds."""
    rows = yield QUERIES.statement("state", schema)
    return [(row["name"], row["state"], row["count"], row["oldest"]) for row in rows]


def forget(schema: str, *, now: datetime) -> Pipeline[int]:
    """Delete a batch of effects whose outcome has been known for 90 days; how many."""
    rows = yield QUERIES.statement("forget", schema, now - REMEMBERED, BATCH * 10)
    return len(rows)


def _entry(row: Mapping[str, Any]) -> Entry:
    return Entry(**{**row, "state": State(row["state"])})
