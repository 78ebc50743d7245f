"""What every transport promises, on each of them; where they may differ, their declared abilities say how."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from postroad.signals.catalog import StaleAcks
from postroad.transport.base import Outgoing, Settled, Settlement
from postroad.transport.postgres import store
from postroad.work import store as work
from support import until
from transport.ends import QUEUE, AmqpEnds, End, Ends, Numbers, PostgresEnds, bodies, holds

KINDS = ("amqp", "postgres")
CONFIRMED = {Settlement.CONFIRMED}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def ends(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Ends]:
    given = request.getfixturevalue
    async with AsyncExitStack() as stack:
        if kind == "amqp":
            yield AmqpEnds(stack, given("rabbit"), given("vhost"))
        else:
            yield PostgresEnds(stack, given("postgres"), given("database"), given("runtime_url"))


@pytest.fixture
def numbers() -> Numbers:
    return Numbers()


def settlements(settled: list[Settled]) -> set[Settlement]:
    return {one.settlement for one in settled}


# --- publishing -----------------------------------------------------------------------------------------------------


async def test_what_is_confirmed_comes_as_it_was_sent(ends: Ends, numbers: Numbers) -> None:
    end = await ends.open()
    message = numbers.message(b'{"n": "\xc3\xbc"}', headers={"postroad-attempt": 2})
    assert settlements(await end.send(message)) == CONFIRMED
    (delivery,) = await end.take(1)
    assert delivery.body == message.body
    assert (delivery.content_type, delivery.headers["postroad-attempt"]) == (message.content_type, 2)
    assert (delivery.exchange, delivery.routing_key) == (message.exchange, message.routing_key)
    assert (delivery.message_id, delivery.type, delivery.app_id) == (message.message_id, message.type, "shop")
    assert not delivery.redelivered


async def test_what_nobody_subscribes_to_is_returned_and_the_rest_of_its_batch_confirmed(
    ends: Ends, numbers: Numbers
) -> None:
    end = await ends.open()
    lost = numbers.message(type="shop.order.lost", routing_key="shop.order.lost.v1")
    settled = await end.send(numbers.message(), lost, numbers.message())
    assert [one.settlement for one in settled] == [Settlement.CONFIRMED, Settlement.RETURNED, Settlement.CONFIRMED]
    assert settled[1].reason


async def test_a_replay_goes_to_its_one_consumer_alone(ends: Ends, numbers: Numbers) -> None:
    end = await ends.open()
    await end.send(numbers.message(b"1", exchange="shop.replay", routing_key="stock"))
    await end.send(numbers.message(b"2", exchange="shop.replay", routing_key=QUEUE))
    stranger = numbers.message(b"3", exchange="shop.replay", routing_key="nobody")
    assert settlements(await end.send(stranger)) == {Settlement.RETURNED}
    assert bodies(await end.take(1)) == [2]
    async with holds(ends, 0):
        pass


async def test_what_meets_a_transport_that_does_not_run_is_of_unknown_fate(ends: Ends, numbers: Numbers) -> None:
    end = await ends.open()
    await end.road.stop()
    assert not end.publisher.writable
    assert settlements(await end.send(numbers.message())) == {Settlement.UNKNOWN}


async def test_a_batch_is_settled_once_each_and_arrives_in_its_order(ends: Ends, numbers: Numbers) -> None:
    end = await ends.open(prefetch=100)
    batch = numbers.messages(300)
    assert settlements(await end.send(*batch)) == CONFIRMED
    found: list[int] = []
    while len(found) < len(batch):
        taken = await end.take(1)
        found += bodies(taken)
        end.intake.ack([one.tag for one in taken])
    assert found == list(range(300))


# --- deliveries -----------------------------------------------------------------------------------------------------


async def test_no_more_than_the_prefetch_is_owed_and_acks_bring_the_rest(ends: Ends, numbers: Numbers) -> None:
    end = await ends.open()
    await end.send(*numbers.messages(25))
    first = await end.take(10)
    async with holds(ends, 15):
        end.intake.ack([one.tag for one in first])
    rest = []
    for _ in range(15):
        (one,) = await end.take(1)
        end.intake.ack([one.tag])
        rest.append(one)
    assert bodies([*first, *rest]) == list(range(25))


async def test_two_that_take_from_one_queue_have_each_delivery_once_between_them(ends: Ends, numbers: Numbers) -> None:
    one, other = await ends.open(prefetch=20), await ends.open(prefetch=20)
    await one.send(*numbers.messages(40))
    taken = [*await one.take(20), *await other.take(20)]
    assert sorted(bodies(taken)) == list(range(40))
    assert not any(delivery.redelivered for delivery in taken)


async def test_what_is_given_back_comes_again_and_in_its_order_where_the_transport_says_so(
    ends: Ends, numbers: Numbers
) -> None:
    end = await ends.open(prefetch=5)
    await end.send(*numbers.messages(8))
    end.intake.give_back([one.tag for one in await end.take(5)])
    again = bodies(await end.take(5))
    assert set(again) <= set(range(8))
    if end.abilities.requeue_keeps_order:
        assert again == [0, 1, 2, 3, 4]


async def test_a_paused_intake_gives_back_what_was_not_taken_and_takes_again_when_resumed(
    ends: Ends, numbers: Numbers
) -> None:
    end = await ends.open(prefetch=4)
    await end.send(*numbers.messages(6))
    (first,) = await end.take(1)
    await end.intake.pause()
    async with holds(ends, 5):
        end.intake.ack([first.tag])
    await end.send(numbers.message(b"6"))
    async with holds(ends, 6):
        pass
    await end.intake.resume()
    assert sorted(bodies(await end.take(4))) == [1, 2, 3, 4]


async def test_a_stop_flushes_the_acks_and_gives_the_rest_to_others(ends: Ends, numbers: Numbers) -> None:
    end = await ends.open()
    await end.send(*numbers.messages(10))
    taken = await end.take(6)
    end.intake.ack([one.tag for one in taken])
    await end.intake.stop()
    assert not await end.intake.take(1)
    await end.road.stop()
    async with holds(ends, 4):
        other = await ends.open()
    assert sorted(bodies(await other.take(4))) == [6, 7, 8, 9]


# --- what is lost sight of ------------------------------------------------------------------------------------------


async def ownership_is_lost(ends: Ends, numbers: Numbers) -> list[int]:
    """One end takes five, loses them, and acks them then; what comes to an end, which may be the same, after that."""
    end = await ends.open(prefetch=5)
    await end.send(*numbers.messages(5))
    taken = await end.take(5)
    await end.road.disown()
    again = await end.take(5)
    end.intake.ack([one.tag for one in taken])
    await end.heard.wait(StaleAcks)
    assert {one.tag for one in again}.isdisjoint({one.tag for one in taken})
    await end.intake.pause()
    end.intake.give_back([one.tag for one in again])
    async with holds(ends, 5):
        return bodies(again)


async def test_acks_of_what_was_lost_change_nothing_and_it_comes_again(ends: Ends, numbers: Numbers) -> None:
    assert sorted(await ownership_is_lost(ends, numbers)) == list(range(5))


async def test_after_a_cut_line_a_tag_counts_where_the_transport_says_so(ends: Ends, numbers: Numbers) -> None:
    end = await ends.open(prefetch=1)
    await end.send(*numbers.messages(2))
    (first,) = await end.take(1)
    await end.road.cut()
    if not end.abilities.tags_outlive_cut:
        (again,) = await end.take(1)
        assert (again.body, again.redelivered) == (first.body, True)
        end.intake.ack([first.tag])
        await end.heard.wait(StaleAcks)
        return
    end.intake.ack([first.tag])
    assert bodies(await end.take(1)) == [1]
    assert end.heard.all(StaleAcks) == []


async def take_all(end: End, count: int, seen: set[int]) -> None:
    while len(seen) < count:
        taken = await end.intake.take(50)
        seen.update(bodies(taken))
        end.intake.ack([one.tag for one in taken])


async def publish_all(end: End, owed: dict[int, Outgoing]) -> None:
    """What is of unknown fate is sent again, as the dispatcher does."""
    while owed:
        await until(lambda: end.publisher.writable)
        batch = [*owed.values()][:40]
        for one in batch:
            end.settled.pop(one.ticket, None)
        for settled in await end.send(*batch):
            if settled.settlement is Settlement.CONFIRMED:
                del owed[settled.ticket]


async def test_many_at_once_through_cuts_come_once_at_least_and_none_is_left(ends: Ends, numbers: Numbers) -> None:
    end = await ends.open(prefetch=50)
    owed = {message.ticket: message for message in numbers.messages(400)}
    seen: set[int] = set()

    async def cut() -> None:
        for part in (60, 160, 260):
            await until(lambda part=part: len(seen) >= part)  # type: ignore[misc]
            await end.road.cut()

    async with asyncio.timeout(100):
        await asyncio.gather(take_all(end, 400, seen), publish_all(end, owed), cut())
        late = asyncio.create_task(take_all(end, 401, seen))  # What is still on its way is a copy: acked as well.
        async with holds(ends, 0):
            late.cancel()
    assert seen == set(range(400))


# --- sabotages ------------------------------------------------------------------------------------------------------


@pytest.mark.sabotage
@pytest.mark.parametrize("kind", ["postgres"])
async def test_without_the_fence_an_ack_of_what_was_lost_takes_it_from_its_new_owner(
    ends: Ends, numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = store.QUERIES.text("ack", "postroad")
    open_gate = text.replace(" AND work.token = held.token", "")
    assert open_gate != text
    monkeypatch.setitem(store.QUERIES._rendered, ("ack", "postroad"), open_gate)
    end = await ends.open(prefetch=5)
    await end.send(*numbers.messages(5))
    taken = await end.take(5)
    monkeypatch.setattr(end.intake, "_known", lambda tags: [tag.number for tag in tags])
    rows = [(row.id, token) for token, (row, _) in end.intake._held.items()]  # type: ignore[attr-defined]
    monkeypatch.setattr(end.intake, "_rows", lambda tokens: rows if tokens else [])
    await end.road.disown()
    await end.take(5)
    end.intake.ack([taken[0].tag])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3), holds(ends, 5):
            pass


@pytest.mark.sabotage
@pytest.mark.parametrize("kind", ["postgres"])
async def test_without_the_subscriptions_in_its_answer_an_event_for_nobody_would_count_as_sent(
    ends: Ends, numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    from postroad.transport.postgres import publisher

    end = await ends.open()
    sent = publisher._answer
    monkeypatch.setattr(publisher, "_answer", lambda outgoing, _consumers: sent(outgoing, ["somebody"]))
    lost = numbers.message(type="shop.order.lost", routing_key="shop.order.lost.v1")
    assert settlements(await end.send(lost)) == CONFIRMED


@pytest.mark.sabotage
@pytest.mark.parametrize("kind", ["postgres"])
async def test_if_what_was_lost_were_not_given_back_it_would_not_come_again(
    ends: Ends, numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "held_by", lambda *_: _nothing())
    monkeypatch.setattr(work, "recover", lambda *_: _nothing({}))
    end = await ends.open(prefetch=5)
    await end.send(*numbers.messages(5))
    await end.take(5)
    await end.road.disown()
    with pytest.raises(TimeoutError):
        await end.take(1, within=3)


def _nothing(value: object = ()):  # type: ignore[no-untyped-def]
    yield from ()
    return value
