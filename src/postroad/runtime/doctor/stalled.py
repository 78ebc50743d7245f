"""Checks of what has come to a standstill: effects without an outcome, and schedules that make no runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from postroad.clock import seconds
from postroad.runtime.doctor import checks
from postroad.runtime.doctor.upkeep import span
from postroad.schedules.sheet import BY as SCHEDULER
from postroad.sql import queries

if TYPE_CHECKING:
    import asyncpg

    from postroad.effects import Effect
    from postroad.runtime.doctor.findings import Finding
    from postroad.runtime.doctor.subject import Limits, Subject

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

QUERIES: Final = queries(__package__, "stalled.sql")


async def stalled(connection: Connection, schema: str, subject: Subject | None, limits: Limits) -> list[Finding]:
    """Look at effects and schedules; `subject` says which are declared, and how long a look-up may take."""

    async def rows(name: str, *args: Any) -> Sequence[Any]:
        return await connection.fetch(QUERIES.text(name, schema), *args)

    declared = None if subject is None else subject.declarations
    effects = {} if declared is None else {one.name: one for one in declared.effects}
    names = [] if declared is None else [one.name for one in declared.schedules]
    standing = [row["name"] for row in await rows("declared", names)]
    return [
        *judge_effects(await rows("open_effects"), effects, limits),
        *judge_paused(await rows("paused")),
        *judge_planners(await rows("planners"), set(names).difference(standing), limits),
        *judge_retired(await rows("retired"), limits),
    ]


# --- effects --------------------------------------------------------------------------------------------------------


def judge_effects(rows: Sequence[Any], declared: Mapping[str, Effect[Any]], limits: Limits) -> list[Finding]:
    """What it means that effects have no outcome yet: a person's turn, look-ups without an end, a window. Pure."""
    person, unknown, window = [], [], []
    for row in rows:
        told = f"{row['name']}: {row['count']}, the oldest (effect {row['one']}) for {span(row['seconds'])}"
        told += f", rows of work that wait for it: {row['waiting']}" if row["waiting"] else ""
        if row["manual"]:
            person.append(checks.PERSON.warning(told))
            continue
        effect = declared.get(row["name"])
        if seconds(row["seconds"]) >= (limits.look_up_age if effect is None else bound(effect)):
            why = "no App given here declares it" if effect is None else "this App declares it"
            unknown.append(checks.UNKNOWN.warning(f"{told}; {why}"))
        if row["remembered"] is not None and seconds(row["remembered"]) <= limits.key_left:
            left = f"{row['name']}: the provider forgets the first key in {span(row['remembered'])}"
            window.append(checks.KEY_WINDOW.warning(left))
    return [
        *(person or [checks.PERSON.ok("none")]), *(unknown or [checks.UNKNOWN.ok("none for long")]),
        *(window or [checks.KEY_WINDOW.ok("none runs out soon")]),
    ]  # fmt: skip


def bound(effect: Effect[Any]) -> timedelta:
    """How long an outcome may be unknown where look-ups get their answers: the call, its settling, the last looks."""
    return effect.timeout + effect.settle + effect.answers * (effect.looks.most + effect.timeout)


# --- schedules ------------------------------------------------------------------------------------------------------


def judge_paused(rows: Sequence[Any]) -> list[Finding]:
    """Pauses: Postroad's own after a failure, and those that persons meant. Pure."""
    found = []
    for row in rows:
        told = f"{row['name']}, for {span(row['seconds'])}, by {row['paused_by']}"
        told += f": {row['pause_reason']}" if row["pause_reason"] else ""
        failed = row["paused_by"] == SCHEDULER
        found.append(checks.PAUSED.warning(told) if failed else checks.PAUSED.note(told))
    return found or [checks.PAUSED.ok("none")]


def judge_planners(rows: Sequence[Any], unknown: Collection[str], limits: Limits) -> list[Finding]:
    """Who plans, and how late; `unknown` are declared schedules of which the database has never heard. Pure."""
    owners, late = [], []
    for row in rows:
        behind = None if row["seconds"] is None else seconds(row["seconds"])
        overdue = behind is not None and behind >= limits.orphan_age
        whose = f"no process plans the schedules of App {row['app']} ({row['count']})"
        due = f"{row['name']} is overdue for {span(row['seconds'] or 0)}"
        if row["held"]:
            late += [checks.LATE.warning(f"App {row['app']}: {due}")] if overdue else []
        elif overdue:
            owners.append(checks.PLANNER.warning(f"{whose}; {due}"))
        else:
            owners.append(checks.PLANNER.note(f"{whose}; nothing is overdue yet"))
    if unknown:
        text = f"declared here, and not in the database: {', '.join(sorted(unknown))}"
        owners.append(checks.PLANNER.note(text))
    return [
        *(owners or [checks.PLANNER.ok("every App with schedules has a process that plans")]),
        *(late or [checks.LATE.ok("none")]),
    ]


def judge_retired(rows: Sequence[Any], limits: Limits) -> list[Finding]:
    """What waits of schedules that are gone. Pure."""
    found = [
        checks.RETIRED.warning(f"{row['name']}: {row['count']}, the oldest for {span(row['seconds'])}")
        for row in rows
        if seconds(row["seconds"]) >= limits.orphan_age
    ]
    return found or [checks.RETIRED.ok("nothing waits of schedules that are gone")]
