"""What the broker takes out of a queue ends in quarantine, once, with its reason, and is released like any other."""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consume.bench import AT_ONCE, MemoryIntake, Order, body
from consume.broker import NAME, TOPOLOGY, road
from consume.kinds import Gate
from postroad.consume import consumer
from postroad.consume.dead_letters import Death, death_in
from postroad.events import Subscription
from postroad.events.envelope import CONTENT_TYPE
from postroad.runtime.operations import database_settings, retry
from postroad.signals.catalog import (
    DeadLetterCollected,
    DeliveryDelayed,
    DeliveryQuarantined,
    DeliveryResult,
    HandlerStarted,
    IntakePaused,
    IntakeResumed,
)
from postroad.transport.topology import dead_letter_queue
from support import until

Placed = Subscription("orders.order.placed", version=1, model=Order)
AT = datetime(2026, 1, 2, tzinfo=UTC)


def died(queue: str = NAME, **given: object) -> dict[str, object]:
    """An entry of `x-death` as RabbitMQ 3.10 writes it."""
    entry = {
        "count": 1, "reason": "delivery_limit", "queue": queue, "time": AT, "exchange": "orders.events",
        "routing-keys": ["orders.order.placed.v1"],
    }  # fmt: skip
    return {**entry, **given}


@consumer(Placed, name=NAME, retry=AT_ONCE)
async def bill(event, delivery):
    await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)


@pytest.fixture
def settings(runtime_url):
    return database_settings({"POSTROAD_DATABASE_URL": runtime_url})


# --- what the headers say -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "death"),
    [
        (
            {"x-death": [died(count=3)], "x-first-death-reason": "expired"},  # 3.10
            Death("delivery_limit", 3, "orders.events", "orders.order.placed.v1"),
        ),
        (
            {"x-death": [died("other", reason="expired"), died(reason="rejected")], "x-last-death-reason": "expired"},
            Death("rejected", 1, "orders.events", "orders.order.placed.v1"),
        ),
        ({"x-death": [died("other")]}, Death()),
        ({"x-death": [died(reason="a secret", count="2", exchange=7) | {"routing-keys": []}]}, Death()),
        ({"x-death": "no list"}, Death()),
        ({}, Death()),
    ],
)
def test_the_newest_entry_of_its_own_queue_says_why_and_whence(headers, death):
    assert death_in(headers, NAME) == death


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*died(), "x-death"]), inner),
)


@given(st.dictionaries(st.just("x-death"), _VALUES | st.lists(st.fixed_dictionaries({}, optional={
    name: _VALUES | st.just(NAME) for name in died()
}))))  # fmt: skip
def test_no_header_makes_it_fail(headers):
    death = death_in(headers, NAME)
    assert death.reason in {"rejected", "expired", "maxlen", "delivery_limit", "unknown"}


# --- collected, once ------------------------------------------------------------------------------------------------


def put_dead(queue, message: bytes, **given: object) -> None:
    queue.put(message, exchange="postroad.dlx", routing_key=NAME, headers={"x-death": [died()]}, **given)


async def rows(sql):
    return [
        tuple(row)
        for row in await sql.fetch("SELECT kind, queue, code, exchange, routing_key FROM quarantine ORDER BY id")
    ]


KEPT = ("dead-letter", NAME, "PR512", "orders.events", "orders.order.placed.v1")


async def killed_between_commit_and_ack(here, queue, sql, message):
    intake = queue.intake()
    async with here.collecting(bill, intake):
        intake.acks_are_lost = True
        put_dead(queue, message)
        await here.heard.wait(DeadLetterCollected)
        intake.acks_are_lost = False
        intake.drop()
        await here.heard.wait(DeadLetterCollected, count=2)
        await until(lambda: len(queue.acked) == 1)
    return await rows(sql)


@pytest.mark.parametrize("keyless", [False, True])
async def test_a_collector_killed_between_commit_and_ack_makes_no_second_row(here, queue, sql, keyless):
    found = await killed_between_commit_and_ack(here, queue, sql, b"no envelope" if keyless else body("A1"))
    assert found == [KEPT]
    assert [signal.fresh for signal in here.heard.all(DeadLetterCollected)] == [True, False]
    assert len(here.heard.all(DeliveryQuarantined)) == 1
    assert await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome = 'quarantined'") == (0 if keyless else 1)


@pytest.mark.sabotage
async def test_without_its_digest_a_message_that_cannot_be_read_would_be_kept_twice(here, queue, sql, monkeypatch):
    monkeypatch.setattr("postroad.work.store.digest", lambda _: secrets.token_bytes(32))
    assert len(await killed_between_commit_and_ack(here, queue, sql, b"no envelope")) == 2


async def test_body_and_headers_are_kept_as_evidence(here, queue, sql):
    message = body("A1")
    async with here.collecting(bill, queue.intake()):
        put_dead(queue, message)
        await here.heard.wait(DeadLetterCollected)
    row = await sql.fetchrow("SELECT body, content_type, headers, reason, attempt FROM quarantine")
    assert (row["body"], row["content_type"], row["attempt"]) == (message, CONTENT_TYPE, 0)
    assert json.loads(row["headers"])["x-death"][0]["reason"] == "delivery_limit"
    assert "delivery_limit" in row["reason"]


async def test_what_does_not_say_whence_it_came_has_no_identity(here, queue, sql):
    async with here.collecting(bill, queue.intake()):
        queue.put(body("A1"), exchange="postroad.dlx", routing_key=NAME)
        await here.heard.wait(DeadLetterCollected)
    assert await sql.fetchval("SELECT key FROM quarantine") is None
    assert await sql.fetchval("SELECT count(*) FROM inbox") == 0


async def away(here, queue, sql, database):
    """The database refuses connections when a dead letter comes, and answers again later."""
    name = database.rpartition("/")[2]
    async with here.collecting(bill, queue.intake()):
        await sql.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 0")
        await sql.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'pr_runtime'"
                          " AND datname = current_database()")  # fmt: skip
        put_dead(queue, body("A1"))
        await here.heard.wait(IntakePaused)
        assert queue.acked == []
        await until(lambda: queue.given_back == 1)
        await sql.execute(f"ALTER DATABASE {name} CONNECTION LIMIT -1")
        await here.heard.wait(IntakeResumed)
        await here.heard.wait(DeadLetterCollected)
    return await rows(sql)


async def test_while_the_database_is_away_nothing_is_acked_and_nothing_lost(here, queue, sql, database):
    assert await away(here, queue, sql, database) == [KEPT]
    assert (queue.given_back, len(queue.acked)) == (1, 1)
    assert {signal.consumer for signal in here.heard.all(IntakePaused)} == {dead_letter_queue(NAME)}


# --- released -------------------------------------------------------------------------------------------------------


async def test_a_released_dead_letter_runs_like_a_first_delivery_and_its_copies_are_duplicates(
    here, queue, sql, settings
):
    twin = body("A1")
    async with here.collecting(bill, queue.intake()):
        put_dead(queue, twin)
        await here.heard.wait(DeadLetterCollected)
    await retry(settings, await sql.fetchval("SELECT id FROM quarantine"), by="ada")
    async with here.consuming(bill, queue.intake(), retries=True):
        queue.put(twin)
        await here.settled(1, result=DeliveryResult.OK)
        await here.settled(1, result=DeliveryResult.DUPLICATE)
    assert [tuple(row) for row in await sql.fetch("SELECT name, attempt FROM public.effect")] == [("A1", 1)]


async def test_the_release_of_what_was_handled_in_truth_is_a_duplicate(here, queue, sql, settings):
    """Its ack was lost each time, until the broker gave it up."""
    twin = body("A1")
    async with here.consuming(bill, queue.intake(), retries=True):
        queue.put(twin)
        await here.settled(1, result=DeliveryResult.OK)
    async with here.collecting(bill, queue.intake()):
        put_dead(queue, twin)
        await here.heard.wait(DeadLetterCollected)
    await retry(settings, await sql.fetchval("SELECT id FROM quarantine"), by="ada")
    async with here.consuming(bill, queue.intake(), retries=True):
        await here.settled(1, result=DeliveryResult.DUPLICATE)
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 1


# --- over RabbitMQ --------------------------------------------------------------------------------------------------


def limited(limit: int):
    """The topology, with a delivery limit that is soon reached."""
    queue, *rest = TOPOLOGY.queues
    given = MappingProxyType({**queue.arguments, "x-delivery-limit": limit})
    return replace(TOPOLOGY, queues=(replace(queue, arguments=given), *rest))


async def given_back_until_the_limit(here, vhost, queue_limit=2):
    """Processes are stopped in its handler one after the other, until the broker has enough."""
    entered = Gate()

    @consumer(Placed, name=NAME, retry=AT_ONCE)
    async def hang(event, delivery):
        entered.set()
        await asyncio.Event().wait()

    for _ in range(queue_limit + 1):
        entered._open.clear()
        async with road(here, vhost, topology=limited(queue_limit)) as (made, intake):
            if not here.heard.all(HandlerStarted):
                made.publish(body("A1"))
            async with here.consuming(hang, intake):
                await entered.wait()
                here.run.cancel()
                await asyncio.wait([here.run])


async def test_a_delivery_limit_that_is_reached_by_giving_back_costs_nothing(here, vhost, sql, settings):
    await given_back_until_the_limit(here, vhost)
    assert await sql.fetchval("SELECT count(*) FROM starts") == 0
    async with road(here, vhost, topology=limited(2)) as (made, intake):
        async with here.collecting(bill, made.dead_letters()):
            await here.heard.wait(DeadLetterCollected)
        assert await made.transport.depths([NAME, dead_letter_queue(NAME)]) == {NAME: 0, dead_letter_queue(NAME): 0}
        assert await rows(sql) == [KEPT]
        assert [signal.reason for signal in here.heard.all(DeadLetterCollected)] == ["delivery_limit"]
        await retry(settings, await sql.fetchval("SELECT id FROM quarantine"), by="ada")
        async with here.consuming(bill, intake, retries=True):
            await here.settled(1, result=DeliveryResult.OK)
    assert [tuple(row) for row in await sql.fetch("SELECT name, attempt FROM public.effect")] == [("A1", 1)]
    assert here.heard.all(DeliveryDelayed) == []


def rejected(url: str) -> None:
    """A program that is not Postroad's rejects the first message."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        channel = connection.channel()
        method, _, _ = channel.basic_get(NAME)
        channel.basic_reject(method.delivery_tag, requeue=False)
    finally:
        connection.close()


async def test_what_somebody_rejects_is_collected_from_a_real_broker_once(here, there, vhost, sql):
    async with road(here, vhost) as (made, intake):
        await intake.pause()
        made.publish(body("A1"))
        await until(lambda: made.confirmed == 1)
        await asyncio.to_thread(rejected, vhost)
        async with (
            road(there, vhost) as (other, _),
            here.collecting(bill, made.dead_letters()),
            there.collecting(bill, other.dead_letters()),
        ):
            await until(lambda: bool(here.heard.all(DeadLetterCollected) + there.heard.all(DeadLetterCollected)))
        assert await made.transport.depths([dead_letter_queue(NAME)]) == {dead_letter_queue(NAME): 0}
    assert await rows(sql) == [KEPT]


@pytest.mark.sabotage
async def test_acked_before_it_is_kept_a_dead_letter_would_be_lost(here, queue, sql, database, monkeypatch):
    take = MemoryIntake.take

    async def taken(self, most):
        batch = await take(self, most)
        self.ack([incoming.tag for incoming in batch])
        return batch

    monkeypatch.setattr(MemoryIntake, "take", taken)
    with pytest.raises(AssertionError):
        await away(here, queue, sql, database)
    assert await rows(sql) == []
