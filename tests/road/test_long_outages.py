"""Outages that last: what was committed waits, nobody is charged, and everything drains when they end.

They last for POSTROAD_TEST_OUTAGE seconds: five where the whole suite runs; by hand a minute of the database and of an
alarm (``POSTROAD_TEST_OUTAGE=60 pytest tests/road/test_long_outages.py -k 'database or alarm'``), and ten of the broker
(``POSTROAD_TEST_OUTAGE=600 ... -k broker``). ``-rP`` shows the figures.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from road.apps.parcels import ParcelMoved
from road.roads import Road, told, until
from road.test_outages import own_road
from road.traffic import Traffic

if TYPE_CHECKING:
    from postroad.testing.servers import PostgresServer, RabbitNode
    from runtime.processes import Running

LASTS = float(os.environ.get("POSTROAD_TEST_OUTAGE", "5"))
SHORT = min(LASTS, 5.0)  # A sabotage need not go on for long.
DRAINS = 60 + LASTS  # At least as fast as it filled.
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(240 + 3 * LASTS)]


def drained(road: Road, traffic: Traffic, since: float, *, more: int = 0, within: float = DRAINS) -> None:
    """Wait until all is on the board, once each."""
    committed = traffic.committed()
    road.await_seen(committed, within_seconds=within)
    took = time.monotonic() - since
    seen = road.seen()
    assert {number: seen[number] for number in committed} == dict.fromkeys(committed, 1)
    assert len(seen) == len(committed) + more
    sys.stdout.write(f"outage {LASTS:g} s: {len(committed)} events, drained {took:.1f} s after its end\n")


def assert_nobody_charged(road: Road, *processes: Running) -> None:
    road.assert_nothing_charged()
    for process in processes:
        assert process.process.poll() is None
        assert told(process, "publish_refused") == []
        assert told(process, "service_failed") == []
        assert {line["attempt"] for line in told(process, "handler_started")} <= {1}


# --- the broker -----------------------------------------------------------------------------------------------------


def the_broker_is_away(road: Road, node: RabbitNode, *, lasts: float, **settings: str) -> None:
    """It falls silent with unconfirmed publishes, dies, and comes back; authors go on meanwhile."""
    road.broker_url = node.add_vhost("road")
    board, dispatcher = road.board(), road.dispatcher(**settings)
    with Traffic(road) as traffic:
        traffic.await_more(60)
        before = traffic.usual()
        node.settle()
        node.pause()
        until(lambda: road.count("postroad.outbox") >= 20)
        node.kill()
        fell = len(traffic.taken)
        time.sleep(lasts)  # so long the fault lasts
        assert road.count("postroad.outbox", "attempts > 0") == 0
        during = traffic.usual(fell)
        sys.stdout.write(f"commit {before * 1000:.1f} ms before, {during * 1000:.1f} ms meanwhile\n")
        assert during <= 1.5 * before + 0.005
        node.start()
        back = time.monotonic()
        traffic.await_more(20)
    drained(road, traffic, back)
    assert_nobody_charged(road, board, dispatcher)


def test_a_broker_that_is_away_for_long_costs_authors_nothing_and_all_drains(
    road: Road, own_rabbit: RabbitNode
) -> None:
    the_broker_is_away(road, own_rabbit, lasts=LASTS)


@pytest.mark.sabotage
def test_were_unknown_fates_taken_for_refusals_the_outage_would_be_charged(road: Road, own_rabbit: RabbitNode) -> None:
    with pytest.raises(AssertionError):
        the_broker_is_away(road, own_rabbit, lasts=SHORT, ROAD_WITHOUT="pardon")
    assert road.count("postroad.outbox", "attempts > 0") > 0


# --- the database ---------------------------------------------------------------------------------------------------


def the_database_is_away(
    road: Road, server: PostgresServer, *, lasts: float, drains: float = DRAINS, **settings: str
) -> None:
    """It dies while handlers are in their transactions, and comes back."""
    board, dispatcher = road.board(**settings), road.dispatcher()
    with Traffic(road, act="wait:0.3") as traffic:
        traffic.await_more(40)
        until(lambda: len(road.seen()) >= 10)
        server.kill()
        time.sleep(lasts)  # so long the fault lasts
        server.start()
        back = time.monotonic()
        traffic.await_more(20)
    drained(road, traffic, back, within=drains)
    assert_nobody_charged(road, board, dispatcher)
    assert told(board, "intake_paused")
    assert len(told(board, "intake_resumed")) == len(told(board, "intake_paused"))


def test_a_database_that_is_away_for_long_loses_doubles_and_charges_nothing(
    own_postgres: PostgresServer, vhost: str
) -> None:
    road = own_road(own_postgres, vhost)
    with road.processes:
        the_database_is_away(road, own_postgres, lasts=LASTS)


@pytest.mark.sabotage
def test_were_deliveries_acked_that_an_outage_interrupts_they_would_be_lost(
    own_postgres: PostgresServer, vhost: str
) -> None:
    road = own_road(own_postgres, vhost)
    with road.processes:
        with pytest.raises(AssertionError):
            the_database_is_away(road, own_postgres, lasts=SHORT, drains=15, ROAD_WITHOUT="return")
        assert len(road.seen()) < road.count("parcel")
        assert road.count("postroad.outbox") == 0


# --- an alarm of the broker -----------------------------------------------------------------------------------------

ALARM = "{resource_limit, memory, node()}"
AT_ONCE = 8  # The board's concurrency: as many handlers of a second each go through a second of the alarm.


def the_broker_blocks_publishers(road: Road, node: RabbitNode, *, lasts: float, **settings: str) -> None:
    """An alarm, while the queue holds enough for the board to go on with; every tenth of it fails once."""
    road.broker_url = node.add_vhost("road")
    stock = round(AT_ONCE * lasts)
    board, dispatcher = road.board(), road.dispatcher(ROAD_CONFIRM=f"{min(lasts / 4, 30):g}", **settings)
    fails = range(0, stock, 10)
    road.stage([ParcelMoved(number=n, act="fail:1" if n in fails else "wait:1") for n in range(stock)])
    until(lambda: road.count("postroad.outbox") == 0)
    with Traffic(road, first=stock) as traffic:
        traffic.await_more(20)
        before, handled = traffic.usual(), len(road.seen())
        node.evaluate(f"rabbit_alarm:set_alarm({{{ALARM}, []}})")
        try:
            dispatcher.wait_for("connection_blocked", blocked=True)
            fell = len(traffic.taken)
            time.sleep(lasts)  # so long the fault lasts
            assert road.count("postroad.outbox", "attempts > 0") == 0
            assert road.count("postroad.outbox") >= (len(traffic.taken) - fell) * 0.9  # Nothing goes out.
            assert len(road.seen()) >= handled + stock / 4  # But what had gone out is handled,
            assert road.count("postroad.finished", "outcome = 'handled'") >= len(fails) / 4  # and tried again.
            assert traffic.usual(fell) <= 1.5 * before + 0.005
        finally:
            node.evaluate(f"rabbit_alarm:clear_alarm({ALARM})")
        back = time.monotonic()
        traffic.await_more(20)
    road.await_seen(range(stock))
    drained(road, traffic, back, more=stock)
    assert told(dispatcher, "publish_refused") == []
    assert told(dispatcher, "connection_down") == told(board, "connection_down") == []
    assert road.seen() == Counter([*range(stock), *traffic.committed()])
    assert road.count("postroad.finished") == len(fails)
    assert road.count("postroad.work") == road.count("postroad.quarantine") == 0


def test_an_alarm_stops_dispatch_alone_and_charges_nothing(road: Road, own_rabbit: RabbitNode) -> None:
    the_broker_blocks_publishers(road, own_rabbit, lasts=LASTS)


@pytest.mark.sabotage
def test_did_the_time_of_confirms_run_on_the_alarm_would_be_charged(road: Road, own_rabbit: RabbitNode) -> None:
    with pytest.raises(AssertionError):
        the_broker_blocks_publishers(road, own_rabbit, lasts=SHORT, ROAD_WITHOUT="standstill")
    assert road.count("postroad.outbox", "attempts > 0") > 0
