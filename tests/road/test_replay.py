"""A replay over the whole road: twice is once in effect, whoever is killed in between, and the wire is the same."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from cli.test_work import postroad
from road.roads import EITHER, EXCHANGE, QUEUE, WITHOUT_BROKER, Road, told, until

if TYPE_CHECKING:
    from runtime.processes import Running

pytestmark = pytest.mark.heavy
COUNT = 12
WIRE = """
CREATE TABLE wire (id text, body text, way text, headers text);
GRANT INSERT ON wire TO pr_runtime;
CREATE FUNCTION tapped() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO public.wire VALUES (NEW.key, encode(NEW.body, 'hex'), NEW.exchange, NEW.headers);
    RETURN NULL;
END $$;
CREATE TRIGGER tapped AFTER INSERT ON postroad.work FOR EACH ROW WHEN (NEW.kind = 'delivery') EXECUTE FUNCTION tapped();
"""


def killed(running: Running) -> bool:
    return running.process.poll() == -signal.SIGKILL


def command(road: Road, *arguments: str) -> Any:
    done = postroad(*arguments, "--json", **road.settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tap(road: Road) -> None:
    """Let queues of the test's own have everything too, or a table what is written for consumers."""
    if road.broker_url == "postgres:":
        road.rows(WIRE)
        return

    def bind(channel: Any) -> None:
        for exchange, kind, key in ((EXCHANGE, "topic", "#"), ("parcels.replay", "direct", QUEUE)):
            channel.exchange_declare(exchange, kind, durable=True)
            channel.queue_declare(f"tap.{exchange}", durable=True)
            channel.queue_bind(f"tap.{exchange}", exchange, key)

    road.on_channel(bind)


def tapped(road: Road, exchange: str) -> list[tuple[str, bytes]]:
    """Message id and body of everything that went by an exchange."""
    if road.broker_url == "postgres:":
        rows = road.rows(f"SELECT id, body FROM wire WHERE way = '{exchange}'")
        return [(identity, bytes.fromhex(body)) for identity, body in rows]
    found = []

    def drain(channel: Any) -> None:
        while (got := channel.basic_get(f"tap.{exchange}", auto_ack=True))[0] is not None:
            found.append((got[1].message_id, got[2]))

    road.on_channel(drain)
    return found


def lost_and_replayed_twice(road: Road, **settings: str) -> None:
    """What a board has seen is lost with its marks; it is replayed twice, while boards and dispatchers are killed."""
    tap(road)
    board = road.board(ROAD_AT=f"handler:{COUNT + 3}:SIGKILL", **settings)
    dispatcher = road.dispatcher(ROAD_AT="replayed:1:SIGKILL")
    road.publish(range(COUNT))
    road.await_seen(range(COUNT))
    road.rows("DELETE FROM seen; DELETE FROM postroad.inbox")
    start = ("replay", "start", "--to", QUEUE, "--type", "parcels.parcel.moved", "--since", "1h", "--reason", "a test")
    assert command(road, *start, "--rate", "20", "--yes")["total"] == COUNT
    until(lambda: killed(dispatcher))
    assert command(road, "replay", "show", "1")["state"] == "running"
    road.dispatcher()
    until(lambda: killed(board))
    road.board(**settings)
    command(road, *start, "--yes")
    until(lambda: [one["state"] for one in command(road, "replay", "list")] == ["done", "done"])
    road.publish([COUNT])
    road.await_seen(range(COUNT + 1))
    until(lambda: road.count("postroad.work") == 0)


@EITHER
def test_a_range_replayed_twice_is_once_in_effect_and_the_same_on_the_wire(road: Road) -> None:
    lost_and_replayed_twice(road)
    assert road.seen() == Counter(range(COUNT + 1))
    road.assert_nothing_charged()
    first, again = (tapped(road, exchange) for exchange in (EXCHANGE, "parcels.replay"))
    assert len(first) == COUNT + 1
    # A dispatcher that was killed sends some twice; over PostgreSQL a delivery that is open stands for its repeat.
    assert len(again) >= (COUNT if road.broker_url == "postgres:" else 2 * COUNT)
    assert dict(again).items() <= dict(first).items()
    assert set(again) == {one for one in first if one[0] in dict(again)}
    assert len(dict(again)) == COUNT
    assert [one["sent"] for one in command(road, "replay", "list")] == [COUNT, COUNT]


@pytest.mark.parametrize("road", [WITHOUT_BROKER], indirect=True)
@pytest.mark.sabotage
def test_without_the_inbox_it_is_more_than_once(road: Road) -> None:
    lost_and_replayed_twice(road, ROAD_WITHOUT="inbox")
    assert max(road.seen().values()) > 1


def test_a_new_consumer_gets_all_of_history_while_traffic_goes_on(road: Road) -> None:
    """Bound first, then from the log: what overlaps counts once."""
    tap(road)  # Somebody else's queue.
    road.dispatcher()
    road.publish(range(COUNT))
    until(lambda: road.count("postroad.outbox") == 0)
    board = road.board()
    road.publish(range(COUNT, COUNT + 3))
    start = (
        "replay",
        "start",
        "--to",
        QUEUE,
        "--type",
        "parcels.parcel.moved",
        "--all",
        "--reason",
        "history",
        "--yes",
    )
    command(road, *start)
    road.publish(range(COUNT + 3, COUNT + 6))
    road.await_seen(range(COUNT + 6))
    until(lambda: command(road, "replay", "show", "1")["state"] == "done")
    road.publish([99])
    road.await_seen([99])
    assert road.seen() == Counter([*range(COUNT + 6), 99])
    assert told(board, "delivery_settled", result="ok")
