"""The reconciliations of Postroad's own tables: what should not be there for long, each as a stream against none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import minutes, seconds
from postroad.reconcile.ground import Source, nothing
from postroad.reconcile.handled import handled
from postroad.reconcile.reconciliation import OWN, Reconciliation
from postroad.schedules.schedule import plan_of
from postroad.schedules.timing import dues
from postroad.sql.statement import queries

if TYPE_CHECKING:
    from postroad.consume.consumer import Consumer
    from postroad.reconcile.ground import Stream

QUERIES: Final = queries("postroad.reconcile", "built_in.sql")

_DAY: Final = timedelta(days=1)
_PAGE: Final = 1000


def built_in(
    consumers: Iterable[Consumer[Any]], *, owned: Iterable[str], strays: Callable[[], Sequence[tuple[str, str]]] | None
) -> tuple[Reconciliation, ...]:  # fmt: skip
    """Every reconciliation that needs no declaration.

    `owned` are the producers whose log is in this database; `strays` lists what stands on the transport for nobody, as
    (name, what is wrong), None where that cannot be seen.
    """
    producers = frozenset(owned)
    whole = [one for one in consumers if one.subscriptions and {item.owner for item in one.subscriptions} <= producers]
    stray = [] if strays is None else [_against_nothing("topology", _listed(strays), settle=seconds(0))]
    return (
        _against_nothing("outbox", _own("outbox")),
        _against_nothing("work", _own("work"), settle=seconds(60)),
        _against_nothing("effects", _own("effects")),
        Reconciliation(f"{OWN}schedules", authority=_due, projection=_own("occurrences"), settle=seconds(60)),
        *stray,
        *(handled(one.function) for one in whole),
    )


def _against_nothing(name: str, projection: Stream, *, settle: timedelta = minutes(5)) -> Reconciliation:
    return Reconciliation(f"{OWN}{name}", authority=nothing, projection=projection, settle=settle)


def _own(name: str) -> Stream:
    """A stream of one of our own queries: keys beyond $1, at most $2."""

    async def stream(source: Source) -> AsyncIterator[tuple[str, str]]:
        after = source.after or ""
        while rows := await source.fetch(QUERIES.text(name, source.ground.schema), after, _PAGE):
            for row in rows:
                yield row["key"], row["found"]
            after = rows[-1]["key"]
            if len(rows) < _PAGE:
                return

    return stream


def _listed(strays: Callable[[], Sequence[tuple[str, str]]]) -> Stream:
    async def stream(_source: Source) -> AsyncIterator[tuple[str, str]]:
        for name, what in sorted(dict(strays()).items()):
            yield name, what

    return stream


async def _due(source: Source) -> AsyncIterator[tuple[str, str]]:
    """The due times of every schedule since the last thing that a person or a release did to it, up to its cursor."""
    for row in await source.fetch(QUERIES.text("schedules", source.ground.schema), _DAY):
        definition = json.loads(row["definition"])
        plan = plan_of(definition, str(row["id"]))
        for due in dues(plan.timing, plan.zone, after=row["since"], until=row["cursor"]):
            yield f"{row['name']} {_stamp(due)}", "due"


def _stamp(due: datetime) -> str:
    return f"{due.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
