"""Checks of how the schema is built against what the migrations make, of dead rows, and of leases and windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from postroad.reconcile.handled import Handled
from postroad.runtime.doctor import checks
from postroad.runtime.doctor.upkeep import span
from postroad.sql import queries
from postroad.sql.migrations.shape import Shape, shape

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    import asyncpg

    from postroad.reconcile import Reconciliation
    from postroad.runtime.doctor.findings import Finding
    from postroad.runtime.doctor.subject import Limits
    from postroad.runtime.doctor.upkeep import Look

    Connection = asyncpg.Connection[asyncpg.Record]

QUERIES = queries(__package__, "structure.sql")
_SHOWN: Final = 5


async def build(connection: Connection, schema: str) -> list[Finding]:
    """Whether tables, columns and functions are what the migrations make."""
    columns = await connection.fetch(QUERIES.text("columns", schema), schema)
    functions = await connection.fetch(QUERIES.text("functions", schema), schema)
    return judge_build(shape(schema), columns, {row["name"]: row["body"] for row in functions})


def judge_build(made: Shape, columns: Sequence[Any], functions: Mapping[str, str]) -> list[Finding]:
    """What stands against what the migrations make. Pure."""
    stands = {(row["name"], row["column"]): row["type"] for row in columns}
    wanted = {(table, column): kind for table, each in made.tables.items() for column, kind in each.items()}
    wrong = [f"{table}.{column} is missing" for table, column in sorted(wanted.keys() - stands.keys())]
    both = sorted(wanted.keys() & stands.keys())
    wrong += [f"{'.'.join(one)} is {stands[one]}, not {wanted[one]}" for one in both if stands[one] != wanted[one]]
    wrong += [f"function {name} is missing" for name in sorted(made.functions.keys() - functions.keys())]
    wrong += [
        f"function {name} was changed"
        for name, body in sorted(made.functions.items())
        if name in functions and functions[name].strip() != body.strip()
    ]
    extra = [f"{table}.{column}" for table, column in sorted(stands.keys() - wanted.keys()) if table in made.tables]
    found = [checks.BUILD.error(_some(wrong))] if wrong else []
    found += [checks.BUILD.note(f"not Postroad's: {_some(extra)}")] if extra else []
    return found or [checks.BUILD.ok(f"{len(made.tables)} tables as the migrations make them")]


async def indexes(connection: Connection, schema: str, _limits: Limits) -> list[Finding]:
    """Whether the indexes are those that the migrations make."""
    return judge_indexes(shape(schema), await connection.fetch(QUERIES.text("indexes", schema), schema))


def judge_indexes(made: Shape, rows: Sequence[Any]) -> list[Finding]:
    """The same of indexes. Pure."""
    stands = {row["name"] for row in rows}
    missing = sorted(made.indexes.keys() - stands)
    invalid = sorted(row["name"] for row in rows if not row["valid"] and row["name"] in made.indexes)
    extra = sorted(f"{row['name']} on {row['of']}" for row in rows if row["name"] not in made.indexes)
    found = [checks.INDEXES.error(f"missing: {_some(missing)}")] if missing else []
    found += [checks.INDEXES.error(f"not valid: {_some(invalid)}")] if invalid else []
    found += [checks.INDEXES.note(f"not Postroad's: {_some(extra)}")] if extra else []
    return found or [checks.INDEXES.ok(f"{len(made.indexes)} as the migrations make them")]


async def dead(connection: Connection, schema: str, limits: Limits) -> list[Finding]:
    """Dead rows of the tables that change all the time."""
    return judge_dead_rows(await connection.fetch(QUERIES.text("dead", schema), schema), limits)


def judge_dead_rows(rows: Sequence[Any], limits: Limits) -> list[Finding]:
    """Whether vacuum keeps up. Pure."""
    found = [
        checks.DEAD_ROWS.warning(f"{row['name']}: {row['dead']} dead, {row['live']} live, {_ago(row['seconds'])}")
        for row in rows
        if row["dead"] >= limits.dead_rows and row["dead"] > row["live"]
    ]
    return found or [checks.DEAD_ROWS.ok("vacuum keeps up")]


async def renewals(connection: Connection, schema: str, _limits: Limits) -> list[Finding]:
    """Leases that nobody renews."""
    return judge_renewals(await connection.fetch(QUERIES.text("leases", schema)))


def judge_renewals(rows: Sequence[Any]) -> list[Finding]:
    """What leases mean that were not renewed in time. Pure."""
    late = [f"{row['name']} for {span(row['seconds'])}" for row in rows if row["late"]]
    over = [f"{row['name']} for {span(row['seconds'])}" for row in rows if not row["late"]]
    found = [checks.RENEWALS.warning(f"nobody takes over: {_some(over)}")] if over else []
    found += [checks.RENEWALS.warning(f"not renewed in time: {_some(late)}")] if late else []
    return found or [checks.RENEWALS.ok("every lease that is held is renewed")]


LOOKS: Final[tuple[Look, ...]] = (indexes, dead, renewals)


def judge_windows(window: timedelta, reconciliations: Iterable[Reconciliation]) -> Finding:
    """Whether inboxes are compared with their logs only as far back as marks are kept. Pure."""
    beyond = [one for one in reconciliations if isinstance(one, Handled) and one.within > window]
    told = f"marks are kept for {span(window.total_seconds())}"
    if not beyond:
        return checks.WINDOWS.ok(told)
    far = ", ".join(f"{one.name} goes back {span(one.within.total_seconds())}" for one in beyond)
    return checks.WINDOWS.error(f"{told}, but {far}")


def _ago(age: float | None) -> str:
    return "never vacuumed" if age is None else f"vacuumed {span(age)} ago"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
