"""Something that the author named is away: intake stops, nothing is charged; and what only looks like it is charged."""

from __future__ import annotations

import asyncio

import pytest

from consume.bench import AT_ONCE, Order, body
from consume.kinds import BOTH
from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.consume import consumer
from postroad.consume.attempt import Attempts
from postroad.errors import UsageError
from postroad.events import Subscription
from postroad.failures import Dependency, FailureClass, Rules, classify
from postroad.retry import Backoff
from postroad.signals.catalog import (
    DeliveryDelayed,
    DeliveryQuarantined,
    DeliveryResult,
    HandlerStarted,
    IntakePaused,
    IntakeResumed,
)
from postroad.work.probe import DependencyProbe
from support import until

Placed = Subscription("orders.order.placed", version=1, model=Order)
COUNT = 40


class GatewayDown(Exception):
    pass


class Gateway:
    """What the handlers call, and what the check asks."""

    def __init__(self, *, there=True):
        self.there = there
        self.hangs = False
        self.asked = 0
        self.flaws = 0  # so many calls fail although it is there

    def call(self):
        self.flaws -= 1
        if not self.there or self.flaws >= 0:
            raise GatewayDown

    async def ping(self):
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if not self.there:
            raise ConnectionRefusedError


async def ping(use):
    await use(Gateway).ping()


def needing(*, timeout=seconds(2), retry=AT_ONCE, order="", **given):
    gateway = Dependency("gateway", check=ping, timeout=timeout)

    @consumer(Placed, name="billing.orders", retry=retry, rules=Rules(down={GatewayDown: gateway}), **given)
    async def bill(event, delivery):
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)
        if event.order == order:
            raise GatewayDown
        delivery.use(Gateway).call()

    return bill


async def all_once_and_uncharged(here, queue, sql):
    await until(lambda: len(queue.acked) == COUNT)
    seen = await sql.fetch("SELECT name, count(*) AS count, max(attempt) AS attempt FROM public.effect GROUP BY 1")
    assert len(seen) == COUNT
    assert {(row["count"], row["attempt"]) for row in seen} == {(1, 1)}
    assert here.heard.all(DeliveryDelayed) == []
    assert here.heard.all(DeliveryQuarantined) == []
    for table in ("work", "quarantine"):
        assert await sql.fetchval(f"SELECT count(*) FROM {table}") == 0


async def an_outage(here, queue, sql, **given):
    gateway = here.resources[Gateway] = Gateway(there=False)
    for number in range(COUNT):
        queue.put(body(f"{number}"))
    async with here.consuming(needing(**given), queue.intake(), retries=True):
        async with asyncio.timeout(15):
            await here.heard.wait(IntakePaused)
            paused = here.heard.all(IntakePaused)[0]
            assert paused.reason == "gateway"
            assert here.ready.reason == "gateway is away"
            await until(lambda: gateway.asked >= 2)
            begun = len(here.heard.all(HandlerStarted))
            await until(lambda: gateway.asked >= 4)  # It is asked again and again, and no delivery is tried.
            assert len(here.heard.all(HandlerStarted)) == begun
            assert queue.acked == []
            gateway.there = True
            await here.heard.wait(IntakeResumed)
            await all_once_and_uncharged(here, queue, sql)
        assert here.ready.reason == ""


@pytest.mark.parametrize("kind", BOTH, indirect=True)
async def test_while_it_is_away_nothing_is_taken_and_nothing_charged(here, queue, sql):
    await an_outage(here, queue, sql)


async def test_so_it_is_for_consumers_without_groups(here, queue, sql):
    await an_outage(here, queue, sql, group=False)


@pytest.mark.sabotage
async def test_without_asking_an_outage_would_be_charged(here, queue, sql, monkeypatch):
    async def always(_):
        return True

    monkeypatch.setattr(DependencyProbe, "answers", always)
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(3):
            await an_outage(here, queue, sql)


async def test_a_check_without_an_answer_means_that_it_is_away(here, queue, sql):
    gateway = here.resources[Gateway] = Gateway(there=False)
    gateway.hangs = True
    queue.put(body("0"))
    async with here.consuming(needing(timeout=seconds(0.05)), queue.intake()):
        await here.heard.wait(IntakePaused)
        gateway.there, gateway.hangs = True, False
        await here.settled(1, result=DeliveryResult.OK)
    assert here.heard.all(DeliveryDelayed) == []


async def test_a_message_that_only_looks_like_an_outage_is_charged_and_stops_nobody(here, queue, sql):
    here.resources[Gateway] = Gateway()
    for number in range(COUNT):
        queue.put(body(f"{number}"))
    async with here.consuming(needing(order="7"), queue.intake(), retries=True):
        await here.settled(COUNT - 1, result=DeliveryResult.OK)
        await here.heard.wait(DeliveryQuarantined)
    assert here.heard.all(IntakePaused) == []
    attempts = [signal.attempt for signal in here.heard.all(DeliveryDelayed)]
    assert attempts == [1, 2, 3, 4]
    row = await sql.fetchrow("SELECT code, reason FROM quarantine")
    assert row["code"] == "PR507"


async def test_a_retry_that_meets_the_outage_is_given_back_uncharged(here, queue, sql):
    gateway = here.resources[Gateway] = Gateway()
    gateway.flaws = 1
    queue.put(body("0"))
    slowly = Backoff(first=seconds(1), most=seconds(1), attempts=5)
    async with here.consuming(needing(retry=slowly), queue.intake(), retries=True):
        await here.heard.wait(DeliveryDelayed)
        gateway.there = False
        await here.heard.wait(IntakePaused)
        gateway.there = True
        await here.settled(1, result=DeliveryResult.OK)
    assert await sql.fetchval("SELECT attempt FROM public.effect") == 2
    assert len(here.heard.all(DeliveryDelayed)) == 1


async def test_whoever_asks_at_once_gets_the_same_answer():
    gateway = Gateway()
    probe = DependencyProbe(Dependency("gateway", check=ping), {Gateway: gateway}, SYSTEM_CLOCK)
    assert await asyncio.gather(*[probe.answers() for _ in range(8)]) == [True] * 8
    assert gateway.asked == 1


async def test_a_check_that_uses_what_the_app_has_not_says_no():
    assert not await DependencyProbe(Dependency("gateway", check=ping), {}, SYSTEM_CLOCK).answers()


async def test_every_dependency_of_the_rules_has_a_probe(here):
    attempts = here.attempts(needing())
    assert isinstance(attempts, Attempts)
    assert list(attempts.probes) == ["gateway"]


def test_the_failure_names_its_dependency():
    gateway = Dependency("gateway", check=ping)
    rules = Rules(down={GatewayDown: gateway}, transient=[Exception])
    verdict = classify(GatewayDown(), rules=rules, attempt=1)
    assert (verdict.failure, verdict.dependency) == (FailureClass.DEPENDENCY_DOWN, gateway)
    assert classify(ValueError(), rules=rules, attempt=1).dependency is None


def blocking(use):
    pass


@pytest.mark.parametrize(
    "given",
    [{"name": "No Name"}, {"check": blocking}, {"timeout": seconds(0)}, {"name": ""}, {"name": "database"}],
    ids=["name", "check", "timeout", "empty", "ours"],
)
def test_a_dependency_that_cannot_be_asked_is_refused(given):
    wanted = {"name": "gateway", "check": ping, **given}
    with pytest.raises(UsageError, match=r"is not valid.*PR101"):
        Dependency(wanted.pop("name"), **wanted)


@pytest.mark.parametrize("down", [{GatewayDown: "gateway"}, {"GatewayDown": Dependency("gateway", check=ping)}])
def test_rules_that_name_no_dependency_are_refused(down):
    with pytest.raises(UsageError, match="PR101"):
        Rules(down=down)


def test_two_dependencies_of_one_name_are_refused_and_one_may_be_named_twice():
    gateway = Dependency("gateway", check=ping)
    assert Rules(down={GatewayDown: gateway, OSError: gateway}).down[OSError] is gateway
    with pytest.raises(UsageError, match="two dependencies of one name"):
        Rules(down={GatewayDown: gateway, OSError: Dependency("gateway", check=ping)})
