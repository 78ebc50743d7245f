"""The how-to page runs as it stands, each section against the trouble that it is about."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli.test_events import logged, place
from cli.test_quarantine import count, fill
from cli.test_work import Table, postroad
from consume.bench import Order, body
from effects.bench import charges, charging, shop
from effects.provider import Provider
from postroad.clock import seconds
from postroad.consume import consumer
from postroad.events import Subscription
from postroad.retry import Backoff
from postroad.signals.catalog import DeliveryResult
from work.bench import process

if TYPE_CHECKING:
    from consume.bench import Process, Queue
    from postroad.testing.servers import Postgres

PAGE = Path(__file__).parents[2] / "docs" / "howto.md"
PERSON = "customer-4711"
CHARGE = '{"payment": "p-1"}'
POISONED = 40
Placed = Subscription("orders.order.placed", version=1, model=Order)


@pytest.fixture
def table(postgres: Postgres, database: str, runtime_url: str) -> Table:
    return Table(postgres, database, runtime_url)


def run(table: Table, title: str) -> dict[str, str]:
    """Run every command of a section, in order; what each printed, the last time."""
    return dict(ran(table, title))


def ran(table: Table, title: str) -> list[tuple[str, str]]:
    """The same, each time."""
    section = PAGE.read_text("utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
             for line in block.splitlines()]  # fmt: skip
    printed = []
    for line in lines:
        done = postroad(*shlex.split(line)[1:], **table.given)
        assert done.returncode == 0, (line, done.stderr)
        printed.append((line, done.stdout))
    assert printed
    return printed


def test_a_poison_message(table: Table) -> None:
    fill(table, 1, queue="billing.orders")
    printed = run(table, "A poison message")
    assert "1 group, 1 rows" in printed["postroad quarantine groups"]
    assert "hush" not in printed["postroad quarantine show 1"]
    assert "hush" in printed["postroad quarantine show 1 --payload"]
    assert "because: a test order" in printed["postroad audit --subject 1"]
    assert count(table, "quarantine", "resolution = 'discarded'") == 1


def billing(*, poison: bool) -> Any:
    """A release of the consumer: one that fails on every event, or the one before it."""

    @consumer(Placed, name="billing.orders", retry=Backoff(first=seconds(0.01), most=seconds(0.02), attempts=2))
    async def bill(event: Order, delivery: Any) -> None:
        if poison:
            raise KeyError("currency")
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, 1)", event.order)

    return bill


async def test_a_poison_release_rolled_back(table: Table, here: Process, queue: Queue) -> None:
    async with here.consuming(billing(poison=True), queue.intake(), retries=True):
        for number in range(POISONED):
            queue.put(body(f"A{number}"))
        await here.settled(POISONED, result=DeliveryResult.QUARANTINE)
    fill(table, 5, queue="billing.orders", quarantined_at="now() - interval '3 days'")
    async with here.consuming(billing(poison=False), queue.intake(), retries=True):
        printed = await asyncio.to_thread(ran, table, "A poison release, rolled back")
        await here.settled(POISONED, result=DeliveryResult.OK)
    found, explained, dry, _, after, audited = (text for _, text in printed)
    assert f"1 group, {POISONED} rows" in found
    assert [f"attempt={number}" in explained for number in (1, 2)] == [True, True]
    assert explained.count("KeyError in billing.<locals>.bill (test_howto.py:") >= 2
    assert f"release: {POISONED} rows" in dry
    assert "0 groups" in after
    assert audited.count("quarantine.retry") == 1
    assert count(table, "work") == 0
    assert table.execute("SELECT count(*), count(DISTINCT name) FROM public.effect") == [(str(POISONED),) * 2]
    assert count(table, "quarantine", "resolved_at IS NULL") == 5


def test_a_stuck_job(table: Table) -> None:
    number = table.add("running", worker="'worker:1'", started_at="now() - interval '3 hours'")
    assert number == 1
    printed = run(table, "A stuck job")
    assert "its worker is asked" in next(text for line, text in printed.items() if "cancel" in line)
    assert table.work("queue", "list")[0]["paused_at"] is None
    assert "2 acts" in printed["postroad audit --act queue."]


async def test_an_unknown_payment(table: Table, runtime_url: str) -> None:
    table.execute(
        "CREATE TABLE postroad.receipt (payment text, outcome text); GRANT ALL ON postroad.receipt TO pr_runtime"
    )
    charge = charges(key_window=seconds(1.5), settle=seconds(0.1))
    async with process(runtime_url) as here:
        with Provider("act-500", window=1.5) as provider:
            provider.blind = True  # It is away for longer than it remembers keys.
            async with shop(here, runtime_url, charge, provider, charging(charge)):
                table.add(queue="charge", event_type="'charge'", body=f"'{CHARGE}'", headers="'{}'")
                await said(table, "SELECT valid_until < clock_timestamp() FROM postroad.effect", "t")
                provider.blind = False
                await said(table, "SELECT state FROM postroad.effect", "manual")
                printed = [*(await asyncio.to_thread(run, table, "An unknown payment")).items()]
                await said(table, "SELECT outcome FROM postroad.receipt", "Done(ref='ch_4711')")
    assert provider.requests == {"p-1": 1}
    told = dict(printed)
    assert "effects.person" in told["postroad doctor"]
    shown = told["postroad effects show 1"]
    assert "the provider may have forgotten the key" in shown
    assert "effect.look-up by postroad" in shown
    assert "effect.ask by ada" in shown
    assert told["postroad effects list"].startswith("0 effects")
    last = told['postroad audit --subject "effect 1"']
    assert "ada effect.resolve" in " ".join(last.split())
    assert "seen in their console, ticket 2026-31" in last


async def said(table: Table, query: str, wanted: str) -> None:
    """Look until `query` has the value `wanted`."""
    async with asyncio.timeout(30):
        while table.execute(query) != [(wanted,)]:  # noqa: ASYNC110 - a database tells nothing by itself
            await asyncio.sleep(0.05)


def test_erasing_a_persons_data(table: Table) -> None:
    logged(table, PERSON)
    place(table, PERSON)
    printed = run(table, "Erasing a person's data")
    assert "1 in the log, 1 in work, 1 in quarantine erased" in printed[next(x for x in printed if x.endswith("--yes"))]
    assert PERSON not in printed["postroad audit --act event.redact"]
