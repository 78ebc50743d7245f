"""What an operator sees of effects and may say about them, as pipelines that record who did it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from postroad.audit import Act, Chosen, entries, record
from postroad.effects.decide import State
from postroad.effects.ledger import subject
from postroad.effects.outcome import Done, Refused
from postroad.errors import UsageError
from postroad.sql.statement import queries
from postroad.work.erase import names, spellings
from postroad.work.wire import kept

if TYPE_CHECKING:
    from postroad.audit import Entry
    from postroad.effects.outcome import Outcome
    from postroad.sql.statement import Pipeline

QUERIES: Final = queries("postroad.effects", "operate.sql")
_IN_DOUBT: Final = frozenset({State.SENT, State.UNKNOWN, State.RECONCILING})
_OPEN: Final = frozenset({State.UNKNOWN, State.RECONCILING, State.MANUAL})
_MOST_ENTRIES: Final = 100


@dataclass(frozen=True, slots=True)
class Listed:
    """An effect as people see it; the command is never shown. `outcome` is the ref, or the code of a refusal."""

    id: int
    name: str
    key: str
    state: str
    attempt: int
    outcome: str | None
    reason: str | None
    looks: int
    intended_at: datetime
    sent_at: datetime | None
    next_check_at: datetime | None
    finished_at: datetime | None
    run: int


@dataclass(frozen=True, slots=True)
class Shown(Listed):
    """Everything about one effect; `waiting` counts the rows of work that wait for its outcome."""

    provider_key: str
    fingerprint: str
    absences: int
    settles_at: datetime | None
    valid_until: datetime | None
    waiting: int


@dataclass(frozen=True, slots=True)
class Changed:
    """What a person's word did to an effect."""

    id: int
    name: str
    was: str
    state: str
    by: str


@dataclass(frozen=True, slots=True)
class Left:
    """Effects of one name that are left to a person: how many, since when, the latest id, and that one's reason."""

    name: str
    count: int
    oldest: datetime
    latest: datetime
    oldest_seconds: float
    last: int
    reason: str


def left(
    schema: str, *, name: str | None, since: datetime | None = None, until: datetime | None = None
) -> Pipeline[Sequence[Left]]:
    """Effects whose outcome nothing finds out any more, by name; those that have waited longest first."""
    rows = yield QUERIES.statement("left", schema, kept(name), since, until)
    return [Left(*row.values()) for row in rows]


def asked(
    schema: str, name: str, *, since: datetime | None, until: datetime | None, after: int, last: int, limit: int,
    by: str,
) -> Pipeline[list[int]]:  # fmt: skip
    """Have the next ones that are left to a person looked up once more, each with its entry in the audit; their ids."""
    rows = yield QUERIES.statement("next_left", schema, kept(name), since, until, after, last, limit)
    ids = [row["id"] for row in rows]
    for number in ids:
        yield from look_up(schema, number, by=by, reason=None)
    return ids


def listed(
    schema: str, *, name: str | None, state: str | None, everything: bool, limit: int
) -> Pipeline[Sequence[Listed]]:
    """Effects without an outcome, latest first; those with one, too, where `everything` or a `state` says so."""
    rows = yield QUERIES.statement("list", schema, kept(name), state, everything, limit)
    return [Listed(*row.values()) for row in rows]


def shown(schema: str, id: int) -> Pipeline[tuple[Shown, Sequence[Entry]]]:  # noqa: A002 - the column
    """One effect, and what the audit has of it: look-ups and people's words, latest first.

    Raises:
        UsageError: PR114, there is none.
    """
    rows = yield QUERIES.statement("show", schema, id)
    if not rows:
        raise _none(id)
    acts = yield from entries(schema, Chosen(subject=subject(id)), limit=_MOST_ENTRIES)
    return Shown(*rows[0].values()), acts


def look_up(schema: str, id: int, *, by: str, reason: str | None) -> Pipeline[Changed]:  # noqa: A002 - the column
    """Have a working process look it up now; run it in a transaction.

    Raises:
        UsageError: PR114, there is none, or its outcome is not in doubt.
    """
    row = yield from _doubted(schema, id)
    yield QUERIES.statement("look_up", schema, id)
    return (yield from _noted(schema, row, State.UNKNOWN, act="effect.ask", by=by, reason=reason))


def resolve(
    schema: str, id: int, outcome: Outcome | None, *, by: str, reason: str | None  # noqa: A002 - the column
) -> Pipeline[Changed]:  # fmt: skip
    """Say for good what became of it; None is that nothing happened, so that it may be sent again.

    Raises:
        UsageError: PR114, there is none, or its outcome is not in doubt.
    """
    row = yield from _doubted(schema, id)
    state, said = State.NOT_FOUND, None
    if isinstance(outcome, Done):
        state, said = State.SUCCEEDED, outcome.ref
    elif isinstance(outcome, Refused):
        state, said = State.REJECTED, outcome.code
    yield QUERIES.statement("resolve", schema, id, state.value, kept(said), f"resolved by {kept(by)}")
    return (yield from _noted(schema, row, state, act="effect.resolve", by=by, reason=reason))


def erase(schema: str, key: str, *, dry_run: bool) -> Pipeline[tuple[int, int]]:
    """Erase the commands that are `key`'s or name it: how many, and how many stay until there is an outcome.

    With an outcome there is none any more; one that may have left is needed to look it up, or else it would be a
    person's turn for want of it alone. Key, fingerprint, provider key and ref stay: they keep it from happening twice.
    """
    rows = yield QUERIES.statement("commands", schema, *spellings(key))
    found = [row for row in rows if row["key"] == key or names(bytes(row["command"]), key)]
    erased = [row["id"] for row in found if row["state"] not in _IN_DOUBT]
    if erased and not dry_run:
        yield QUERIES.statement("erase", schema, erased)
    return len(erased), len(found) - len(erased)


def _doubted(schema: str, id: int) -> Pipeline[Mapping[str, Any]]:  # noqa: A002 - the column
    rows = yield QUERIES.statement("lock", schema, id)
    if not rows:
        raise _none(id)
    row: Mapping[str, Any] = rows[0]
    if row["state"] not in _OPEN:
        text = "its outcome is known" if row["outcome"] is not None else "wait for its run to end"
        raise UsageError("PR114", f"effect {id} is {row['state']}: nothing is to be found out; {text}")
    return row


def _noted(
    schema: str, row: Mapping[str, Any], state: State, *, act: str, by: str, reason: str | None
) -> Pipeline[Changed]:
    done = Changed(row["id"], row["name"], row["state"], state.value, by)
    entry = Act(
        by=kept(by) or "", act=act, subject=subject(row["id"]), reason=kept(reason), before={"state": done.was},
        after={"state": done.state},
    )  # fmt: skip
    yield from record(schema, entry)
    return done


def _none(id: int) -> UsageError:  # noqa: A002 - the column
    return UsageError("PR114", f"there is no effect {id}; see `postroad effects list --all`")
