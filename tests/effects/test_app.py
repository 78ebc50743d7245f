"""Effects in an App, over either transport: a consumer that charges, and what the App refuses to be made of."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest
from pydantic import BaseModel, Field

from effects.bench import QUICK, charges, looks, receipts
from effects.provider import Cards, Charge, Provider
from postroad.asyncpg import within
from postroad.clock import seconds
from postroad.consume import consumer
from postroad.effects import effect
from postroad.errors import UsageError
from postroad.events import Producer
from postroad.runtime.app import App
from postroad.runtime.exits import Exit
from postroad.runtime.settings import ALL_ROLES, POSTGRES, Role, Settings, TopologyMode
from postroad.testing import make_delivery, make_run
from postroad.work.job import job

if TYPE_CHECKING:
    from postroad.work.run import Run


def shop() -> tuple[Producer, type[Any]]:
    producer = Producer(f"p{uuid4().hex[:8]}")

    class Placed(BaseModel):
        """An order was placed."""

        order: str = Field(description="Which")

    producer.event("order.placed", version=1)(Placed)
    return producer, Placed


@pytest.fixture(params=["amqp", "postgres"])
def broker_url(request: pytest.FixtureRequest) -> str:
    return POSTGRES if request.param == "postgres" else str(request.getfixturevalue("vhost"))


def settings_of(runtime_url: str, broker_url: str, roles=ALL_ROLES) -> Settings:
    return Settings(
        database_url=runtime_url, direct_url=runtime_url, broker_url=broker_url, roles=roles,
        topology=TopologyMode.APPLY, grace=seconds(8),
    )  # fmt: skip


@asynccontextmanager
async def billing(provider: Provider, settings: Settings, **options: Any):
    """An App whose consumer charges for each order, and a way to place some."""
    producer, placed = shop()
    charge = charges(**options)

    @consumer(placed, name=f"{producer.name}.billing", effects=[charge], retry=QUICK, max_runtime=seconds(20))
    async def bill(order: Any, run: Run) -> None:
        outcome = await charge.once(Charge(payment=order.order), run)
        async with run.transaction(finish=True) as tx:
            await tx.execute("INSERT INTO postroad.receipt VALUES ($1, $2)", order.order, repr(outcome))

    async def lifespan():
        yield Cards(provider.url)

    app = App(producer.name, publishes=[producer], consumers=[bill], lifespan=lifespan, settings=settings)
    async with app:
        await app.ready()
        yield placed


async def place(author_url: str, placed: type[Any], *orders: str) -> None:
    author = await asyncpg.connect(author_url)
    async with author.transaction():
        for order in orders:
            await within(author).publish(placed(order=order), key=order)
    await author.close()


async def until(sql: Any, query: str) -> None:
    async with asyncio.timeout(30):
        while not await sql.fetchval(query):  # noqa: ASYNC110 - a database tells nothing by itself
            await asyncio.sleep(0.02)


async def test_a_consumer_charges_once_for_each_event_whatever_the_provider_does(
    runtime_url, author_url, broker_url, sql
):
    with Provider("act-hang", "500", "act-500", "nonsense") as provider:
        async with billing(provider, settings_of(runtime_url, broker_url)) as placed:
            orders = [f"o{number}" for number in range(8)]
            await place(author_url, placed, *orders)
            await until(sql, "SELECT count(*) = 8 FROM inbox WHERE outcome = 'handled'")
    assert provider.acts == dict.fromkeys(orders, 1)
    assert [payment for payment, _ in await receipts(sql)] == orders
    assert {outcome.partition("=")[0] for _, outcome in await receipts(sql)} == {"Done(ref"}
    assert len([look for look in await looks(sql) if look == "done succeeded"]) == 3
    assert await sql.fetchval("SELECT count(*) FROM work") == 0
    assert await sql.fetchval("SELECT count(*) FROM quarantine") == 0


async def test_a_stopped_app_leaves_what_hangs_to_the_next_which_looks_it_up(runtime_url, author_url, sql):
    given = {"timeout": seconds(15), "settle": seconds(0.5)}
    with Provider("act-hang") as provider:
        async with billing(provider, settings_of(runtime_url, POSTGRES), **given) as placed:
            await place(author_url, placed, "o1")
            assert await asyncio.to_thread(provider.asked.wait, 20)
        assert await sql.fetchval("SELECT state FROM effect") == "sent"
        assert await sql.fetchval("SELECT attempt FROM work") == 0

        async def lifespan():
            yield Cards(provider.url)

        next_one = App(
            "next", effects=[charges(**given)], lifespan=lifespan,
            settings=settings_of(runtime_url, "", roles=frozenset({Role.WORK})),
        )  # fmt: skip
        async with next_one:
            await until(sql, "SELECT state = 'succeeded' FROM effect")
    assert provider.requests == {"o1": 1}
    assert await looks(sql) == ["done succeeded"]


async def test_a_process_that_only_consumes_takes_deliveries_and_calls_nobody(runtime_url, author_url, sql):
    roles = frozenset({Role.CONSUME, Role.DISPATCH})
    with Provider() as provider:
        async with billing(provider, settings_of(runtime_url, POSTGRES, roles)) as placed:
            await place(author_url, placed, "o1")
            await until(sql, "SELECT outcome = 'delayed' FROM inbox")
    assert provider.requests == {}
    assert await sql.fetch("SELECT kind, state FROM work") == [("retry", "ready")]


def test_an_app_whose_lifespan_yields_no_owner_does_not_start(runtime_url, capsys):
    app = App(
        "ownerless", effects=[charges()], settings=settings_of(runtime_url, "", roles=frozenset({Role.WORK}))
    )  # fmt: skip
    assert app.execute() is Exit.USAGE
    assert "effect 'payments.charge' uses effects.provider.Cards" in capsys.readouterr().err


def test_two_effects_of_one_name_and_strangers_are_refused():
    with pytest.raises(UsageError, match=r"effect 'payments.charge' is declared twice; rename one .*PR104"):
        App("twice", effects=[charges(), charges()])
    with pytest.raises(UsageError, match=r"effects holds str, not an effect .*PR101"):
        App("strange", effects=["payments.charge"])  # type: ignore[list-item]
    one = charges()
    assert App("once", effects=[one, one]).declarations.effects == (one,)


class Wordless:
    def perform(self, command, attempt): ...


class Short:
    async def perform(self, command: Charge) -> None: ...


@pytest.mark.parametrize(
    ("owner", "options", "said"),
    [
        (Wordless, {}, "perform\\(\\)'s 'command' has no annotation"),
        (Short, {}, "perform\\(\\) takes two arguments"),
        (object(), {}, "the owner is not a class with perform"),
        (Cards, {"timeout": seconds(0)}, "timeout is a duration above zero"),
        (Cards, {"timeout": 30}, "timeout is a duration above zero"),
        (Cards, {"settle": seconds(-1)}, "settle is a duration"),
        (Cards, {"answers": 0}, "answers is a whole number, 1 at least"),
        (Cards, {"key_window": seconds(1)}, "key_window is a duration above the time limit"),
        (Cards, {"looks": 3}, "looks is not a Backoff"),
        (Cards, {"volatile": "at"}, "volatile is a list of fields"),
        (Cards, {"key": "payment"}, "key is a function of the command"),
        (Cards, {"name": "Payments"}, "a name is lower-case letters"),
    ],
)
def test_a_declaration_that_could_not_work_is_refused_and_named(owner, options, said):
    given = {"key": lambda command: command.payment, "name": "act", **options}
    with pytest.raises(UsageError, match=rf"effect '.*' is not valid: .*{said}.*PR101"):
        effect(given.pop("name"), owner, **given)


@pytest.mark.parametrize("key", ["", 7, None, "a\n", "x" * 513])
def test_a_key_that_could_not_stand_is_refused_and_not_repeated(key):
    one = effect("act", Cards, key=lambda _: key)
    with pytest.raises(UsageError, match=r"its key is a text of 1 to 512 printable characters, not \w+ \[PR107\]"):
        one.request(Charge(payment="a"))


def test_the_same_request_has_the_same_fingerprint_whatever_is_volatile():
    one = charges(volatile=["asked_at"])
    prints = {one.request(Charge(payment="a", asked_at=at)).fingerprint for at in (1, 2)}
    assert len(prints) == 1
    assert one.request(Charge(payment="a", amount=2)).fingerprint not in prints
    assert one.request(Charge(payment="a")).provider_key == charges().request(Charge(payment="a")).provider_key
    with pytest.raises(UsageError, match=r"a command of type str does not fit.*PR107"):
        effect("act", Cards, key=lambda _: "k").request("secret")  # type: ignore[arg-type]


async def test_with_a_plain_consumers_delivery_and_in_an_app_that_does_not_name_it_nothing_is_called():
    one = charges()
    plain: Any = make_delivery(shop()[1](order="o1"), tx=None)
    with pytest.raises(UsageError, match=r"once\(\) needs a run, not a Delivery, .*name effects=.*PR107"):
        await one.once(Charge(payment="a"), plain)

    @job("unnamed")
    async def work(request: Charge, run: Run) -> None: ...

    with pytest.raises(UsageError, match=r"the App does not name it; write App\(effects=\[...\]\) \[PR107\]"):
        await one.once(Charge(payment="a"), make_run(work, tx=None))
