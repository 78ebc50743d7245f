"""Broker and database go away under load: nothing is lost, nothing happens twice, nothing is charged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from uuid import uuid4

import pytest

from postroad.runtime.settings import POSTGRES
from postroad.testing.servers import PostgresServer, RabbitNode, TcpProxy
from road.roads import AMQP, EITHER, WITHOUT_BROKER, Road, told, until
from runtime.processes import Running, postroad

pytestmark = pytest.mark.heavy
LOAD = 80


def assert_all_once_and_nothing_charged(road: Road, count: int, *processes: Running) -> None:
    assert road.seen() == Counter(range(count))
    road.assert_nothing_charged()
    for process in processes:
        assert process.process.poll() is None
        assert told(process, "service_failed") == []
        assert process.plain == []


# --- the broker -----------------------------------------------------------------------------------------------------


def unconfirmed_publishes_meet_a_dead_broker(
    road: Road, *, mute: Callable[[], object], revive: Callable[[], object], **settings: str
) -> tuple[Running, Running]:
    """Everything is with the broker and nothing is confirmed when it dies."""
    board, dispatcher = road.board(), road.dispatcher(**settings)
    road.publish([0])
    road.await_seen([0])
    mute()
    road.publish(range(1, LOAD))
    dispatcher.wait_for("outbox_read", count=LOAD - 1)
    revive()
    dispatcher.wait_for("publishes_settled", result="confirmed" if settings else "error")
    return board, dispatcher


def test_a_broker_killed_with_unconfirmed_publishes_and_restarted_in_mid_item_costs_nothing(
    road: Road, own_rabbit: RabbitNode
) -> None:
    road.broker_url = own_rabbit.add_vhost("road")

    def mute() -> None:
        own_rabbit.settle()
        own_rabbit.pause()

    def revive() -> None:
        own_rabbit.kill()
        own_rabbit.start()

    board, dispatcher = unconfirmed_publishes_meet_a_dead_broker(road, mute=mute, revive=revive)
    road.await_seen(range(LOAD))

    started = len(told(board, "handler_started"))
    road.publish(range(LOAD, LOAD + 4), act="wait:3")
    until(lambda: len(told(board, "handler_started")) >= started + 4)
    own_rabbit.restart()
    until(lambda: bool(told(board, "delivery_settled", result="duplicate")))  # Their acks met a broker on its way down.
    road.await_seen(range(LOAD + 4))
    assert_all_once_and_nothing_charged(road, LOAD + 4, board, dispatcher)
    assert len(told(board, "consumer_gone", cause="connection")) >= 2


def test_a_line_to_the_broker_that_is_cut_with_unconfirmed_publishes_costs_nothing(road: Road) -> None:
    a_line_is_cut(road)


@pytest.mark.sabotage
def test_were_an_unknown_fate_called_confirmed_events_would_be_lost(road: Road) -> None:
    with pytest.raises(AssertionError):
        a_line_is_cut(road, ROAD_WITHOUT="unknown")
    assert road.count("postroad.outbox") == 0
    assert len(road.seen()) < LOAD


def a_line_is_cut(road: Road, **settings: str) -> None:
    port = int(road.broker_url.rpartition(":")[2].partition("/")[0])
    with TcpProxy(port) as line:
        through = road.broker_url.replace(f":{port}/", f":{line.port}/")

        def revive() -> None:
            line.cut()
            line.heal()

        board, dispatcher = unconfirmed_publishes_meet_a_dead_broker(
            road, mute=line.stall, revive=revive, POSTROAD_BROKER_URL=through, **settings
        )
        until(lambda: road.count("postroad.outbox") == 0)
        road.publish([LOAD])
        road.await_seen([LOAD])
        until(lambda: settled(board))  # Whatever has come before it; what has not never will.
        assert_all_once_and_nothing_charged(road, LOAD + 1, board, dispatcher)


def settled(board: Running) -> bool:
    received = sum(line["count"] for line in told(board, "deliveries_received"))
    return bool(received == len(told(board, "delivery_settled")))


# --- the database ---------------------------------------------------------------------------------------------------


def the_database_goes(road: Road, fault: Callable[[], object], **settings: str) -> None:
    """It goes while handlers are in their transactions, and publishes under way."""
    board, dispatcher = road.board(**settings), road.dispatcher()
    road.publish(range(LOAD), act="wait:0.2")
    until(lambda: len(road.seen()) >= 8)
    fault()
    road.publish(range(LOAD, LOAD + 20))
    road.await_seen(range(LOAD + 20))
    assert_all_once_and_nothing_charged(road, LOAD + 20, board, dispatcher)
    assert told(board, "intake_paused")
    assert len(told(board, "intake_resumed")) == len(told(board, "intake_paused"))


def own_road(server: PostgresServer, broker_url: str) -> Road:
    name = f"road_{uuid4().hex[:8]}"
    server.create_database(name)
    done = postroad(
        "migrate", "--runtime-role", "pr_runtime", "--author-role", "pr_author", POSTROAD_DATABASE_URL=server.url(name)
    )
    assert done.returncode == 0, done.stderr
    return Road(server, name, broker_url)


@pytest.mark.parametrize("transport", [AMQP, WITHOUT_BROKER])
def test_a_database_restarted_twice_under_load_costs_nothing(
    own_postgres: PostgresServer, transport: str, request: pytest.FixtureRequest
) -> None:
    """Once in good order, once by a crash."""
    road = own_road(own_postgres, POSTGRES if transport == WITHOUT_BROKER else request.getfixturevalue("vhost"))

    def fault() -> None:
        own_postgres.restart()
        seen = len(road.seen())
        until(lambda: len(road.seen()) > seen)
        own_postgres.kill()
        own_postgres.start()

    with road.processes:
        the_database_goes(road, fault)


def drop_sessions(road: Road) -> None:
    road.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE usename = 'pr_runtime' AND datname = current_database()"
    )


@EITHER
def test_a_database_that_drops_every_session_under_load_costs_nothing(road: Road) -> None:
    the_database_goes(road, lambda: drop_sessions(road))


@EITHER
@pytest.mark.sabotage
def test_were_a_lost_session_the_handlers_failure_it_would_be_charged(road: Road) -> None:
    with pytest.raises(AssertionError):
        the_database_goes(road, lambda: drop_sessions(road), ROAD_WITHOUT="giving_back")
    assert road.count("postroad.finished") + road.count("postroad.work") > 0
