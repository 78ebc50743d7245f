"""Puts an App's schedules into the database as the newest release that started declares them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID
from zoneinfo import TZPATH

from postroad import audit
from postroad.errors import UsageError
from postroad.leases import living
from postroad.schedules import decide, store
from postroad.schedules.held import Held, apply
from postroad.schedules.schedule import plan_of
from postroad.schedules.sheet import BY, Known
from postroad.schedules.store import QUERIES

if TYPE_CHECKING:
    from postroad.schedules.schedule import Schedule
    from postroad.sql import Pipeline

_TIMES: Final = ("timing", "zone")
"""What of a stored schedule says when it is due."""
_MOST_NAMED: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The schedules that one process declares for an App, and what it calls that set."""

    app: str
    schedules: Sequence[Schedule]
    tz_version: str
    fingerprint: str
    definitions: Mapping[str, dict[str, Any]] = field(repr=False)
    """What is kept of each, by name."""

    @classmethod
    def of(cls, app: str, schedules: Sequence[Schedule], *, tz_version: str | None = None) -> Release:
        """The same declarations have the same fingerprint in every process."""
        told = "\n".join(sorted(f"{one.name} {one.fingerprint()}" for one in schedules))
        name = sha256(told.encode()).hexdigest()[:16]
        return cls(
            app=app, schedules=tuple(schedules), tz_version=tz_version or zone_data_version(), fingerprint=name,
            definitions={one.name: _definition(one) for one in schedules},
        )  # fmt: skip

    @property
    def presence(self) -> str:
        """What the leases of its living processes begin with."""
        return presence_of(self.app, self.fingerprint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What came of a registration: the number of the release, 0 while a newer one lives; its schedules by their ids."""

    number: int
    known: Mapping[UUID, Known]
    new: int = 0
    changed: int = 0
    retired: int = 0


@dataclass(frozen=True, slots=True)
class _Stored:
    """A schedule that is in the table."""

    id: UUID
    name: str
    definition: dict[str, Any]
    tz_version: str | None
    retired: bool
    revision: int
    cursor: datetime
    paused_at: datetime | None


def presence_of(app: str, fingerprint: str) -> str:
    """What the leases of a release's living processes begin with."""
    return f"release:{app}:{fingerprint}:"


def register(schema: str, release: Release) -> Pipeline[Registered]:
    """Make `release` the newest, and the table say what it declares; run it in a transaction.

    Where a newer release has started and lives, nothing changes: an old process that starts again during a deploy does
    not undo it. Once the newer one is gone (a rollback) the old one is the newest again. What is not declared any more
    is retired, with what waits of it; what an operator has paused stays paused. What had come due by times that do not
    hold any more is recorded, and waits for the new release's policies. Repeating it changes nothing.

    Raises:
        UsageError: PR104, another App in this schema has a schedule of the same name.
    """
    yield QUERIES.statement("turn", schema, schema, release.app)
    number = yield from _number(schema, release)
    if not number:
        return Registered(number=0, known={})
    names = [one.name for one in release.schedules]
    rows = yield QUERIES.statement("standing", schema, release.app, names)
    _refuse_foreign(release, rows)
    stored = {
        row["name"]: _Stored(
            row["id"], row["name"], json.loads(row["definition"]), row["tz_version"], row["retired"], row["revision"],
            row["cursor"], row["paused_at"],
        )
        for row in rows
    }  # fmt: skip
    now, _ = yield from store.begin(schema, release.app)
    ids = {name: one.id for name, one in stored.items()}
    yield from _keep_due(schema, _leaving(release, stored), now)
    yield from _rezone(schema, release, [stored[name] for name in names if name in stored])
    new, changed = yield from _declare(schema, release, number, stored=stored, ids=ids, now=now)
    retired = yield from _retire(schema, release, number, stored)
    known = {ids[one.name]: Known(one, one.plan(str(ids[one.name]))) for one in release.schedules}
    return Registered(number=number, known=known, new=len(new), changed=len(changed), retired=retired)


def _number(schema: str, release: Release) -> Pipeline[int]:
    """The number of the release, the newest from now on; 0 where a newer one lives."""
    rows = yield QUERIES.statement("releases", schema, release.app)
    if rows and rows[0]["fingerprint"] == release.fingerprint:
        return int(rows[0]["number"])
    older = any(row["fingerprint"] == release.fingerprint for row in rows)
    if older and (yield from living(schema, presence_of(release.app, rows[0]["fingerprint"]))):
        return 0
    number = (rows[0]["number"] if rows else 0) + 1
    yield QUERIES.statement("add_release", schema, release.app, release.fingerprint, number)
    return int(number)


def _refuse_foreign(release: Release, rows: Sequence[Mapping[str, Any]]) -> None:
    foreign = [row for row in rows if row["app"] != release.app and not row["retired"]]
    if foreign:
        name, app = foreign[0]["name"], foreign[0]["app"]
        message = f"schedule {name!r} is declared by App {app!r} in this schema, and by App {release.app!r}; rename one"
        raise UsageError("PR104", message)


def _leaving(release: Release, stored: Mapping[str, _Stored]) -> list[_Stored]:
    """Those whose times do not hold any more: declared otherwise, or not at all."""
    given = release.definitions
    return [
        one
        for name, one in stored.items()
        if not one.retired and (name not in given or _times(given[name]) != _times(one.definition))
    ]


def _keep_due(schema: str, leaving: Sequence[_Stored], now: datetime) -> Pipeline[None]:
    """Record what came due by the old times and nobody has decided yet, as when nobody planned during a deploy.

    It waits: its start is by the old declaration's jitter, whether it runs by the new one's policies. What waits of a
    schedule that is retired is cancelled with the rest.
    """
    found = (yield from store.standing(schema, [one.id for one in leaving])) if leaving else {}
    for one in leaving:
        try:
            plan = plan_of(one.definition, str(one.id))
        except UsageError:
            continue  # Nobody here can tell its times, which the audit keeps (`schedule.change`, or the row itself).
        held = Held(
            id=one.id, name=one.name, revision=one.revision, tz_version=one.tz_version, cursor=one.cursor,
            paused_at=one.paused_at, now=now, plan=plan, found=found.get(one.id, []),
        )  # fmt: skip
        step = decide.arrive(plan, held.state, now)
        if step.decisions:
            yield from apply(schema, held, step)


def _declare(
    schema: str, release: Release, number: int, *, stored: Mapping[str, _Stored], ids: dict[str, UUID], now: datetime
) -> Pipeline[tuple[list[str], list[str]]]:
    """Write what is new and what has changed; the names of either."""
    given = release.definitions
    new = [name for name in given if name not in stored or stored[name].retired]
    changed = [name for name in given if name in stored and name not in new and stored[name].definition != given[name]]
    moved = [*new, *(name for name in changed if _times(stored[name].definition) != _times(given[name]))]
    written = [*new, *changed]
    if written:
        texts = [json.dumps(given[name]) for name in written]
        rows = yield QUERIES.statement(
            "declare", schema, release.app, number, release.tz_version, written, texts, moved, now
        )  # fmt: skip
        ids |= {row["name"]: row["id"] for row in rows}
    same = [stored[name].id for name in given if name not in written]
    if same:
        yield QUERIES.statement("keep", schema, same, number)
    if new:
        after = {"release": number, "names": sorted(new)[:_MOST_NAMED]}
        yield from audit.record(
            schema, audit.Act(by=BY, act="schedule.declare", subject=release.app, items=len(new), after=after)
        )
    for name in changed:
        before, after = stored[name].definition, given[name]
        keys = (before.keys() | after.keys()) - {"sources"}
        differs = sorted(key for key in keys if before.get(key) != after.get(key))
        act = audit.Act(
            by=BY, act="schedule.change", subject=name, before={key: before.get(key) for key in differs},
            after={"release": number} | {key: after.get(key) for key in differs},
        )  # fmt: skip
        yield from audit.record(schema, act)
    return new, changed


def _retire(schema: str, release: Release, number: int, stored: Mapping[str, _Stored]) -> Pipeline[int]:
    declared = {one.name for one in release.schedules}
    gone = [one for name, one in stored.items() if name not in declared and not one.retired]
    if gone:
        yield QUERIES.statement("retire", schema, [one.id for one in gone], number)
    for one in gone:
        act = audit.Act(by=BY, act="schedule.retire", subject=one.name, after={"release": number})
        yield from audit.record(schema, act)
    return len(gone)


def _rezone(schema: str, release: Release, standing: Sequence[_Stored]) -> Pipeline[None]:
    """Find due times anew where the zone data is another than that by which they were found."""
    old = [one for one in standing if not one.retired and one.tz_version != release.tz_version]
    if not old:
        return
    yield QUERIES.statement("rezone", schema, [one.id for one in old], release.tz_version)
    before = {"tz_version": old[0].tz_version, "names": sorted(one.name for one in old)[:_MOST_NAMED]}
    act = audit.Act(
        by=BY, act="schedule.rezone", subject=release.app, items=len(old), before=before,
        after={"tz_version": release.tz_version},
    )  # fmt: skip
    yield from audit.record(schema, act)


def _definition(schedule: Schedule) -> dict[str, Any]:
    """What is kept of a schedule: its properties, and where each comes from."""
    definition: dict[str, Any] = json.loads(json.dumps({**schedule.stored(), "sources": schedule.sources()}))
    return definition


def _times(definition: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(definition.get(name) for name in _TIMES)


def zone_data_version() -> str:
    """The version of the zone data that due times are found by here: the system's, else that of the package tzdata."""
    for folder in TZPATH:
        try:
            with (Path(folder) / "tzdata.zi").open(encoding="utf-8") as file:
                return file.readline().removeprefix("# version").strip()[:40] or "unknown"
        except (OSError, UnicodeDecodeError):
            continue
    try:
        return metadata.version("tzdata")
    except metadata.PackageNotFoundError:
        return "unknown"
