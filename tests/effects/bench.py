"""What the tests of effects share: an effect at a fake provider, a job that asks for it, and workers that run it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from effects.provider import Cards, Charge
from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.effects import effect, store
from postroad.effects.ledger import Ledger, WithLedger
from postroad.effects.resolver import Resolver
from postroad.retry import Backoff
from postroad.work.job import job
from work.bench import SCHEMA, Process, Ready
from work.jobbench import enqueue, queues, working

if TYPE_CHECKING:
    from effects.provider import Provider
    from postroad.clock import Clock
    from postroad.effects import Effect
    from postroad.work.run import Run

IN_TIME = "\n    AND ($3 <> 'not_found' OR valid_until IS NULL OR valid_until > clock_timestamp())"
"""The part of the query `conclude` that looks at the provider's window."""
QUICK = Backoff(first=seconds(0.02), most=seconds(0.1))


def charges(owner: type[Any] = Cards, **options: Any) -> Effect[Charge]:
    """An effect that is quick about everything."""
    given = {"timeout": seconds(0.5), "settle": seconds(0.3), "looks": QUICK, **options}
    return effect("payments.charge", owner, key=lambda command: command.payment, **given)


def charging(charge: Effect[Charge], *, before: Callable[[Any], Any] | None = None) -> Any:
    """A job that charges, and writes down what came of it."""

    @job("charge", retry=QUICK, max_runtime=seconds(20))
    async def work(request: Charge, run: Run) -> None:
        if before is not None:
            await before(run)
        outcome = await charge.once(request, run)
        async with run.transaction(finish=True) as tx:
            await tx.execute("INSERT INTO postroad.receipt VALUES ($1, $2)", request.payment, repr(outcome))

    return work


@asynccontextmanager
async def shop(
    here: Process, url: str, charge: Effect[Charge], provider: Provider, *functions: Any, clock: Clock = SYSTEM_CLOCK,
    resolves: bool = True,
) -> AsyncIterator[Ledger]:  # fmt: skip
    """A process with a ledger, its resolver, and these jobs."""
    owner = charge.owner(provider.url)  # type: ignore[call-arg]

    def find(kind: type[Any]) -> Any:
        if kind is not charge.owner:
            raise LookupError(kind)
        return owner

    ledger = Ledger(
        url, [charge], schema=SCHEMA, resources=find, owner=here.owner, signals=here.signals, clock=clock
    )  # fmt: skip
    stop = asyncio.Event()
    resolver = Resolver(ledger, owner=here.owner, chance=random.random, every=seconds(0.05))
    task = asyncio.create_task(resolver.run(stop, Ready()) if resolves else ledger.news.wait())
    try:
        async with working(here, queues(here, *functions, resources=WithLedger(find, ledger))):
            yield ledger
    finally:
        stop.set()
        ledger.news.set()
        await asyncio.wait([task], timeout=10)
        await ledger.close()


async def ask(sql: Any, *payments: str, name: str = "charge", amount: int = 1) -> list[int]:
    """Enqueue a charge each."""
    return await enqueue(sql, name, *(f'{{"payment": "{each}", "amount": {amount}}}' for each in payments))


async def states(sql: Any) -> dict[str, str]:
    """Each key's state."""
    return {row["key"]: row["state"] for row in await sql.fetch("SELECT key, state FROM effect ORDER BY key")}


async def receipts(sql: Any) -> list[tuple[str, str]]:
    return [tuple(row) for row in await sql.fetch("SELECT payment, outcome FROM receipt ORDER BY payment")]


async def looks(sql: Any) -> list[str]:
    """What the audit has of look-ups: answers and the states that they led to, in order."""
    rows = await sql.fetch(
        "SELECT after->>'answer' AS a, after->>'state' AS s FROM audit WHERE act = 'effect.look-up' ORDER BY id"
    )
    return [f"{row['a']} {row['s']}" for row in rows]


def without(monkeypatch: Any, query: str, guard: str, instead: str = "") -> None:
    """The query without this part."""
    text = store.QUERIES._texts[query]
    assert guard in text
    monkeypatch.setattr(store.QUERIES, "_rendered", {})
    monkeypatch.setitem(store.QUERIES._texts, query, text.replace(guard, instead))


async def unrecorded(sql: Any) -> list[tuple[str, str]]:
    """What has left *unknown* with nothing on record, from which state to which; it is forgotten then."""
    return [(row["was"], row["became"]) for row in await sql.fetch("DELETE FROM unrecorded RETURNING was, became")]


async def eventually(sql: Any, query: str, wanted: Any, *args: Any, within: float = 20) -> None:
    """Look until `query` has the value `wanted`."""
    async with asyncio.timeout(within):
        while await sql.fetchval(query, *args) != wanted:  # noqa: ASYNC110 - a database tells nothing by itself
            await asyncio.sleep(0.01)
