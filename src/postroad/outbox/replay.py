"""The sole owner of the table ``replay``: what of the log is sent again, to whom, and how far that has come."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad.errors import LeaseLost, UsageError
from postroad.events.envelope import key_hash, shard_of
from postroad.events.redacted import PREFIX
from postroad.leases import fence
from postroad.sql.statement import Queries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroad.leases import Lease
    from postroad.sql import Pipeline

    Row = Mapping[str, Any]

CHOSEN: Final = """($1::uuid[] IS NULL OR id = ANY ($1)) AND ($2::text[] IS NULL OR type = ANY ($2))
    AND ($3::integer[] IS NULL OR version = ANY ($3)) AND ($4::text[] IS NULL OR key = ANY ($4))
    AND ($5::text IS NULL OR correlation = $5)
    AND recorded >= coalesce($6::timestamptz, '-infinity') AND recorded < coalesce($7::timestamptz, 'infinity')
    AND ($8::timestamptz IS NULL OR occurred >= $8) AND ($9::timestamptz IS NULL OR occurred < $9)"""

QUERIES: Final = Queries(
    files("postroad.outbox").joinpath("replay.sql").read_text("utf-8").replace("{chosen}", CHOSEN),
    source="postroad.outbox/replay.sql",
)

KEPT: Final = timedelta(days=7)
"""For how long the log keeps what a replay needs that was stopped."""

LOOKED: Final = 5000
"""How many events one step looks through at most, whatever it chooses of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which events of the log: by all that is given; of each None means all. `until` ends are exclusive.

    `since` and `until` are about the time at which an event was staged, and say which days of the log are read.
    """

    ids: Sequence[UUID] | None = None
    types: Sequence[str] | None = None
    versions: Sequence[int] | None = None
    keys: Sequence[str] | None = None
    correlation: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    occurred_since: datetime | None = None
    occurred_until: datetime | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What was asked for, as values of JSON."""
        return {
            name: [str(one) if isinstance(one, UUID) else one for one in value]
            if isinstance(value, (list, tuple))
            else value.isoformat() if isinstance(value, datetime) else value
            for name, value in asdict(self).items()
            if value is not None
        }  # fmt: skip

    @classmethod
    def read(cls, given: str | Mapping[str, Any]) -> Chosen:
        """What `given` says, as `Chosen.given` writes it."""
        values = dict(json.loads(given) if isinstance(given, str) else given)
        if "ids" in values:
            values["ids"] = [UUID(one) for one in values["ids"]]
        for name in ("since", "until", "occurred_since", "occurred_until"):
            if name in values:
                values[name] = datetime.fromisoformat(values[name])
        return cls(**values)

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The values of the parameters $1 to $9."""
        lists = (None if each is None else list(each) for each in (self.ids, self.types, self.versions, self.keys))
        return (*lists, self.correlation, self.since, self.until, self.occurred_since, self.occurred_until)


@dataclass(frozen=True, slots=True)
class Count:
    """How many events of one type and version are chosen, how many of them are erased, and when they were staged."""

    type: str
    version: int
    count: int
    redacted: int
    oldest: datetime
    newest: datetime
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class DroppedDays:
    """Days, of those asked for, of which the events that are kept for `kept_days` are gone."""

    kept_days: int
    first: date
    last: date
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay as it stands. `id` is what its deliveries carry; `total` is what was chosen when it was started.

    `waiting` of the `sent` ones are in the outbox, of which `refused` were refused by the broker, and why (`trouble`).
    """

    number: int
    id: UUID
    chosen: Chosen
    target: str | None
    rate: float
    state: str
    total: int
    sent: int
    redacted: int
    waiting: int
    refused: int
    trouble: str | None
    by: str
    reason: str
    started_at: datetime
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did; `again` says whether there may be more at once, `trouble` what it waits for."""

    target: str | None
    sent: int = 0
    redacted: int = 0
    again: bool = False
    trouble: str | None = None
    done: bool = False
    seconds: float = 0.0


def counts(schema: str, chosen: Chosen) -> Pipeline[list[Count]]:
    """What of the log is `chosen`, by type and version. It reads all the days that are chosen."""
    rows = yield QUERIES.statement("counts", schema, *chosen.parameters, PREFIX)
    return [Count(*row.values()) for row in rows]


def dropped(schema: str, chosen: Chosen) -> Pipeline[list[DroppedDays]]:
    """Which of the days that are `chosen` are gone, as far as this installation has had them."""
    rows = yield QUERIES.statement("dropped", schema, chosen.since, chosen.until, schema)
    return [DroppedDays(*row.values()) for row in rows]


def ids(schema: str, chosen: Chosen, *, after: int, limit: int) -> Pipeline[Sequence[Row]]:
    """The ids of what is `chosen`, a page in order of seq, without those of erased events."""
    rows = yield QUERIES.statement("ids", schema, *chosen.parameters, after, limit, PREFIX)
    found: Sequence[Row] = rows
    return found


# --- what operators do --------------------------------------------------------------------------------------------


def start(
    schema: str, identity: UUID, chosen: Chosen, found: Sequence[Count], *, target: str | None, rate: float, by: str,
    reason: str, held: bool,
) -> Pipeline[int]:  # fmt: skip
    """Add a replay of `found`; its number. Run it in the transaction that has counted.

    It ends at the last event that was seen then: what was committed before is in the log up to there, and what is
    committed later goes its own way, to whoever is bound by then.
    """
    (row,) = yield QUERIES.statement(
        "add", schema, identity, json.dumps(chosen.given), target, rate, "stopped" if held else "running",
        min(one.first for one in found) - 1, max(one.last for one in found), min(one.oldest for one in found),
        max(one.newest for one in found), sum(one.count for one in found), by, reason, KEPT,
    )  # fmt: skip
    return int(row["number"])


def listed(schema: str, *, number: int | None = None, limit: int = 100) -> Pipeline[list[Replay]]:
    """Replays, latest first; or the one of that `number`."""
    rows = yield QUERIES.statement("list", schema, number, limit)
    names = Replay.__dataclass_fields__.keys()
    return [Replay(**{**{name: row[name] for name in names}, "chosen": Chosen.read(row["chosen"])}) for row in rows]


def stop(schema: str, number: int) -> Pipeline[int]:
    """Stop a replay that runs; how many rows of it were taken out of the outbox again, to be sent when it goes on.

    What a dispatcher has in its hands goes. So does what is in the outbox for everyone: it counts as published.

    Raises:
        UsageError: PR115, there is no such replay, or it does not run.
    """
    row = yield from _looked(schema, number, wanted="running", verb="stop")
    (gone,) = yield QUERIES.statement("withdraw", schema, row["id"])
    first = row["cursor"] if gone["seq"] is None else gone["seq"] - 1
    between = (first, row["cursor"], row["oldest"], row["newest"])
    (passed,) = yield QUERIES.statement("passed", schema, *Chosen.read(row["chosen"]).parameters, *between, PREFIX)
    yield QUERIES.statement("halt", schema, number, first, passed["live"], passed["redacted"], KEPT)
    return int(gone["count"])


def resume(schema: str, number: int, *, rate: float | None) -> Pipeline[None]:
    """Let a stopped replay go on where it was.

    Raises:
        UsageError: PR115, there is no such replay, or it is not stopped.
    """
    yield from _looked(schema, number, wanted="stopped", verb="resume")
    yield QUERIES.statement("resume", schema, number, rate)


def erase(schema: str, key: str, *, dry_run: bool) -> Pipeline[int]:
    """Forget a person's key where a replay that is not done was asked for it; how many those are (or would be)."""
    rows = yield QUERIES.statement("of_key", schema, key)
    if rows and not dry_run:
        yield QUERIES.statement("erase", schema, [row["number"] for row in rows], key)
    return len(rows)


def _looked(schema: str, number: int, *, wanted: str, verb: str) -> Pipeline[Row]:
    rows = yield QUERIES.statement("look", schema, number)
    if not rows:
        raise UsageError("PR115", f"there is no replay {number}; see `postroad replay list`")
    row: Row = rows[0]
    if row["state"] != wanted:
        raise UsageError("PR115", f"replay {number} is {row['state']}: there is nothing to {verb}")
    return row


# --- what carries them --------------------------------------------------------------------------------------------


def running(schema: str) -> Pipeline[dict[int, float]]:
    """The numbers of the replays that run, with their rates."""
    rows = yield QUERIES.statement("running", schema)
    return {row["number"]: row["rate"] for row in rows}


def step(
    schema: str, lease: Lease, number: int, *, batch: int, look: int = LOOKED
) -> Pipeline[Step | None]:  # fmt: skip
    """Put up to `batch` events of a replay into the outbox, and move it on past them; None where it does not run.

    At most `look` events of the log are looked through for them.

    Run it in a transaction: the rows and the cursor commit together, so that a crash leaves no gap and no double.
    Nothing is put while as many rows as two batches wait there, or any that was refused.

    Raises:
        LeaseLost: PR401, another process carries replays by now: roll back.
    """
    if lease.name not in (yield from fence(schema, [lease])):
        raise LeaseLost("PR401", f"the lease {lease.name!r} is another process's by now; this step changes nothing")
    rows = yield QUERIES.statement("lock", schema, number)
    if not rows:
        return None
    row: Row = rows[0]
    (waiting,) = yield QUERIES.statement("open", schema, row["id"], 2 * batch)
    if waiting["refused"] or waiting["count"] >= 2 * batch:
        return Step(row["target"], trouble=waiting["reason"])
    found, cursor = yield from _found(schema, row, batch=batch, look=look)
    live = [one for one in found if not one["redacted"]]
    if live:
        yield QUERIES.statement("put", schema, *_placed(live, row["target"]), row["target"], row["id"])
    done = cursor >= row["last"] and not live and not waiting["count"]
    if done or cursor > row["cursor"]:
        yield QUERIES.statement("move", schema, number, cursor, len(live), len(found) - len(live), done)
    lasted = (row["now"] - row["started_at"]).total_seconds() if done else 0.0
    return Step(
        row["target"], len(live), len(found) - len(live), row["cursor"] < cursor < row["last"], None, done, lasted
    )


def _found(schema: str, row: Row, *, batch: int, look: int) -> Pipeline[tuple[list[Row], int]]:
    """The next events of a replay, at most `batch`, and how far the log is looked through with them."""
    if row["cursor"] >= row["last"]:
        return [], row["cursor"]
    between = (row["cursor"], row["last"], row["oldest"], row["newest"])
    chosen = Chosen.read(row["chosen"])
    rows = yield QUERIES.statement("page", schema, *chosen.parameters, *between, look, batch, PREFIX)
    found = [one for one in rows if one["seq"] is not None]
    looked = rows[0]["reached"] if rows[0]["looked"] >= look else row["last"]
    cursor = found[-1]["seq"] if len(found) >= batch else looked
    if row["target"] is not None and found:
        seqs = [one["seq"] for one in found]
        (taken,) = yield QUERIES.statement("taken", schema, row["target"], seqs, row["id"])
        if taken["seq"] is not None:  # It may be withdrawn with its replay: it is waited for.
            found, cursor = [one for one in found if one["seq"] < taken["seq"]], taken["seq"] - 1
    return found, cursor


def _placed(found: Sequence[Row], target: str | None) -> tuple[list[Any], ...]:
    """The columns of the outbox. Rows for one consumer have no key there: refused, they must not hold back others."""
    hashes = [None if one["key"] is None else key_hash(one["key"]) for one in found]
    return (
        [shard_of(one["seq"] if hashed is None else hashed) for one, hashed in zip(found, hashes, strict=True)],
        [one["seq"] for one in found],
        [one["recorded"] for one in found],
        [one["retention"] for one in found],
        [f"{one['type']}.v{one['version']}" for one in found],
        hashes if target is None else [None for _ in found],
    )
