"""The breaker of a route, with a broker in memory that answers as told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatching import MemoryBroker, an_event
from postroad.clock import seconds
from postroad.outbox.routes import Routes
from postroad.retry import Backoff
from postroad.signals.catalog import OutboxCleared, PublishRefused, PublishResult, RouteBlocked, RouteReleased
from postroad.transport.base import Outgoing, Settled, Settlement
from support import until

BAD = "flights.ghost.seen.v1"
SLOW = Backoff(first=seconds(60), most=seconds(60))
SMALL = {"window": 40, "page": 10}


def ghost(key: str, **changes: Any) -> Any:
    return an_event(key, route=BAD, type=BAD[:-3], **changes)


def unless_ghost(message: Outgoing) -> Settled:
    if message.routing_key == BAD:
        return Settled(message.ticket, Settlement.RETURNED, "NO_ROUTE", 312)
    return Settled(message.ticket, Settlement.CONFIRMED)


def confirmed(message: Outgoing) -> Settled:
    return Settled(message.ticket, Settlement.CONFIRMED)


async def test_a_refused_route_is_passed_over_and_only_what_was_tried_is_charged(
    author, broker, process, database_rows
):
    broker.rule = unless_ghost
    await author.stage(*[ghost(f"g{number}") for number in range(3000)])
    others = await author.stage(*[an_event(f"k{number}") for number in range(100)])
    running = await process(broker, refused=SLOW, **SMALL)
    await until(lambda: set(others) <= set(broker.ids()), within=5)
    blocked = await running.heard.wait(RouteBlocked)
    assert (blocked.event_type, blocked.version, blocked.reason) == (BAD[:-3], 1, "returned: NO_ROUTE")
    await until(lambda: not running.dispatcher._window.places())
    charged = await database_rows.fetchval("SELECT count(*) FROM postroad.outbox WHERE attempts > 0")
    assert charged == sum(message.routing_key == BAD for message in broker.seen)
    assert charged <= SMALL["window"] // 4
    assert await database_rows.fetchval("SELECT count(*) FROM postroad.outbox") == 3000


async def test_one_probe_goes_out_per_wait_and_the_first_that_arrives_lets_all_go_in_order(
    author, broker, process, database_rows
):
    broker.rule = unless_ghost
    events = [ghost(f"g{number % 40}") for number in range(800)]
    await author.stage(*events)
    running = await process(broker, refused=Backoff(first=seconds(0.3), most=seconds(0.3)), **SMALL)
    await running.heard.wait(RouteBlocked)
    await until(lambda: sum(message.probe for message in broker.seen) >= 3)
    tried = len(broker.seen)
    assert tried <= SMALL["window"] // 4 + sum(message.probe for message in broker.seen)
    broker.rule = confirmed
    await running.heard.wait(RouteReleased)
    await running.heard.wait(
        OutboxCleared, lambda _: sum(each.deleted for each in running.heard.all(OutboxCleared)) == 800
    )
    ids = [str(event.id) for event in events]
    arrived = [message.message_id for message in broker.seen[tried:]]
    assert len(arrived) == len(set(arrived)) == 800
    refused = {message.message_id for message in broker.seen[:tried]}
    for key in range(40):
        mine = [sent for sent in arrived if sent in ids[key::40]]
        first_tries = [sent for sent in mine if sent not in refused]
        assert first_tries == [sent for sent in ids[key::40] if sent not in refused]
    assert await database_rows.fetchval("SELECT count(*) FROM postroad.outbox") == 0


async def test_a_route_whose_rows_are_gone_is_released(author, broker, process, database_rows):
    broker.rule = unless_ghost
    await author.stage(ghost("g"))
    running = await process(broker)
    await running.heard.wait(RouteBlocked)
    await running.heard.wait(OutboxCleared, lambda each: each.refused == 1)
    await database_rows.execute("DELETE FROM postroad.outbox")
    await running.heard.wait(RouteReleased)
    assert not running.dispatcher._routes.any


async def test_a_taken_over_route_stays_blocked_and_is_probed(author, broker, process):
    broker.rule = unless_ghost
    await author.stage(*[ghost(f"g{number}") for number in range(500)])
    first = await process(broker, refused=SLOW, **SMALL)
    await first.heard.wait(RouteBlocked)
    await until(lambda: not first.dispatcher._window.places())
    await first.stop()
    others = await author.stage(*[an_event(f"k{number}") for number in range(50)])
    second_broker = MemoryBroker()
    second_broker.rule = unless_ghost
    second = await process(second_broker, refused=SLOW, **SMALL)
    await until(lambda: set(others) <= set(second_broker.ids()))
    await second.heard.wait(PublishRefused)
    tried = [message for message in second_broker.seen if message.routing_key == BAD]
    assert [message.probe for message in tried] == [True]


@pytest.mark.sabotage
async def test_a_take_over_that_knew_nothing_of_the_route_would_try_a_window_of_it(
    author, broker, process, monkeypatch
):
    add = Routes.add
    monkeypatch.setattr(Routes, "add", lambda self, shard, _refused: add(self, shard, {}))
    with pytest.raises(AssertionError):
        await test_a_taken_over_route_stays_blocked_and_is_probed(author, broker, process)


async def test_a_key_with_a_refused_row_is_held_back_on_other_routes_too_and_after_a_take_over(author, broker, process):
    broker.rule = unless_ghost
    await author.stage(ghost("shared"), *[ghost(f"g{number}") for number in range(2000)])
    first = await process(broker, refused=SLOW, **SMALL)
    await first.heard.wait(RouteBlocked)
    await first.heard.wait(OutboxCleared, lambda each: each.refused > 0)
    await first.stop()
    later = await author.stage(an_event("shared"))
    others = await author.stage(*[an_event(f"k{number}") for number in range(30)])
    second = await process(broker, refused=SLOW, **SMALL)
    await until(lambda: set(others) <= set(broker.ids()))
    await until(lambda: len(second.dispatcher._window.places()) == 0)
    assert later[0] not in broker.ids()


async def test_a_route_that_was_never_answered_is_charged_as_overdue_and_blocked(
    author, broker, process, database_rows
):
    def rule(message: Outgoing) -> Settled:
        if message.routing_key == BAD:
            return Settled(message.ticket, Settlement.OVERDUE, "no answer within 30 s")
        return Settled(message.ticket, Settlement.UNKNOWN if len(broker.seen) < 4 else Settlement.CONFIRMED, "with it")

    broker.rule = rule
    await author.stage(ghost("g"), ghost("g2"))
    others = await author.stage(an_event("k"))
    running = await process(broker, refused=SLOW)
    refused = await running.heard.wait(PublishRefused)
    assert refused.result is PublishResult.TIMEOUT
    await running.heard.wait(RouteBlocked)
    rows = await database_rows.fetch("SELECT attempts, reason FROM postroad.outbox WHERE route = $1", BAD)
    assert {(row["attempts"], row["reason"]) for row in rows} == {(1, "overdue: no answer within 30 s")}
    await until(lambda: broker.ids().count(others[0]) == 2)


async def test_a_route_that_is_not_answered_holds_its_share_and_the_others_go_on(author, broker, process):
    broker.at_once = False
    running = await process(broker, **SMALL)
    await author.stage(*[ghost(f"g{number}") for number in range(300)])
    await until(lambda: len(broker.unanswered) == 10)
    held, broker.unanswered, broker.at_once = broker.unanswered, [], True
    others = await author.stage(*[an_event(f"k{number}") for number in range(100)])
    await until(lambda: set(others) <= set(broker.ids()), within=5)
    assert sum(message.routing_key == BAD for message in broker.seen) == 10
    assert running.heard.all(RouteBlocked) == []
    broker.unanswered = held
    broker.answer()
    await running.heard.wait(
        OutboxCleared, lambda _: sum(each.deleted for each in running.heard.all(OutboxCleared)) == 400
    )
    assert len(broker.seen) == 400


@pytest.mark.sabotage
async def test_without_a_share_an_unanswered_route_would_stop_the_others(author, broker, process, monkeypatch):
    monkeypatch.setattr(Routes, "look", lambda _: None)
    with pytest.raises(TimeoutError):
        await test_a_route_that_is_not_answered_holds_its_share_and_the_others_go_on(author, broker, process)


async def test_a_culprit_is_searched_one_by_one_and_its_route_put_back(author, broker, process, database_rows):
    """As a broker does that closes the channel: all with it unknown, the culprit refused once it stands alone."""
    together: list[int] = []

    def answer(batch: list[Outgoing]) -> list[Settled]:
        together.append(len(batch))
        if not any(message.routing_key == BAD for message in batch):
            return [confirmed(message) for message in batch]
        word = Settlement.REFUSED if len(batch) == 1 else Settlement.UNKNOWN
        return [Settled(message.ticket, word, "NOT_FOUND - no exchange", 404) for message in batch]

    def publish(batch: list[Outgoing]) -> None:
        broker.seen += batch
        asyncio.get_running_loop().call_soon(lambda: broker._settled(answer(list(batch))))

    broker.publish = publish
    events = [ghost(f"g{number}") if number % 2 else an_event(f"k{number}") for number in range(60)]
    await author.stage(*events)
    running = await process(broker, refused=SLOW)
    await running.heard.wait(
        OutboxCleared, lambda _: sum(each.deleted for each in running.heard.all(OutboxCleared)) == 30
    )
    tried = [message for message in broker.seen if message.routing_key == BAD]
    assert len(tried) <= 32  # The first time together, then one alone; the rest was put back.
    assert await database_rows.fetchval("SELECT count(*) FROM postroad.outbox WHERE attempts > 0") == 1
