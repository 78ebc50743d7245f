"""Replay: events of the log go out again with their ids and bytes, at a rate, and a killed one leaves no gap."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from dispatching import SCHEMA, MemoryBroker, an_event
from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.errors import LeaseLost, UsageError
from postroad.events.redacted import tombstone
from postroad.leases import Lease
from postroad.outbox import replay, replayer
from postroad.outbox.replay import Chosen
from postroad.outbox.replayer import Replayer
from postroad.runtime import adoption, replay_acts
from postroad.runtime.operations import bound_settings
from postroad.signals.catalog import LateWriteRefused, ReplayAdvanced, ReplayEnded, ReplayWaits
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.drive import drive
from postroad.transport.base import Settled, Settlement
from support import until

BOARD = "flights.board"
EVERY = Chosen(types=["flights.flight.departed"])


@pytest.fixture
def settings(runtime_url):
    return bound_settings({"POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_BROKER_URL": "amqp://nowhere"})


@pytest.fixture
async def start(settings):
    """Start a replay of everything."""

    async def started(chosen=EVERY, *, target=BOARD, **given):
        return await replay_acts.start(settings, chosen, target=target, by="ada", reason="a test", **given)

    return started


@asynccontextmanager
async def carrying(process, *, keeper=None):
    """A replayer beside a dispatcher, as one process has them."""
    carried = Replayer(
        process.manager, keeper or process.keeper, signals=process.signals, clock=SYSTEM_CLOCK, chance=random.random,
        ttl=seconds(1.5), sweep=seconds(0.05),
    )  # fmt: skip
    stop = asyncio.Event()
    running = process.owner.task(carried.run(stop, process), name="replay")
    try:
        yield running
    finally:
        stop.set()
        await asyncio.gather(running, return_exceptions=True)


async def logged(author, database_rows, count, **changes):
    """Events that were sent long ago: in the log, and not in the outbox any more."""
    events = [an_event(f"k{number % 5}", envelope=b'{"n": %d}' % number, **changes) for number in range(count)]
    ids = await author.stage(*events)
    await database_rows.execute("DELETE FROM postroad.outbox")
    return ids


async def state(rows, number=1):
    return await rows.fetchrow("SELECT * FROM postroad.replay WHERE number = $1", number)


async def test_ids_and_bytes_are_those_of_the_first_time_and_only_the_consumer_gets_them(
    author, broker, process, database_rows, start
):
    running = await process(broker)
    events = [an_event(key, envelope=b'{"of": "%s"}' % str(key).encode()) for key in ("a", None, "b", "a")]
    await author.stage(*events)
    await until(lambda: len(broker.seen) == 4)
    first = list(broker.seen)
    made = await start()
    async with carrying(running):
        ended = await running.heard.wait(ReplayEnded)
    again = broker.seen[4:]
    assert [(one.message_id, one.body, one.type, one.correlation_id, one.content_type) for one in again] == [
        (one.message_id, one.body, one.type, one.correlation_id, one.content_type)
        for one in sorted(first, key=lambda one: [str(event.id) for event in events].index(one.message_id))
    ]
    assert {(one.exchange, one.routing_key) for one in again} == {("flights.replay", BOARD)}
    assert {tuple(one.headers.items()) for one in again} == {(("postroad-replay", str(made.id)),)}
    assert (ended.number, ended.target) == (1, BOARD)
    row = await state(database_rows)
    assert (row["state"], row["sent"], row["total"]) == ("done", 4, 4)
    assert await database_rows.fetchval("SELECT count(*) FROM postroad.outbox") == 0


async def test_to_everyone_they_go_the_way_of_the_first_time(author, broker, process, database_rows, start):
    ids = await logged(author, database_rows, 3)
    running = await process(broker)
    await start(target=None)
    async with carrying(running):
        await running.heard.wait(ReplayEnded)
    assert Counter(broker.ids()) == Counter(ids)
    assert {(one.exchange, one.routing_key) for one in broker.seen} == {
        ("flights.events", "flights.flight.departed.v1")
    }


async def test_what_is_erased_is_passed_over_and_counted(author, broker, process, database_rows, start, settings):
    ids = await logged(author, database_rows, 3)
    fields = {"id": ids[1], "source": "urn:postroad:flights", "type": "flights.flight.departed"}
    stone = tombstone(fields)
    await database_rows.execute("UPDATE postroad.event SET envelope = $1 WHERE id = $2", stone, UUID(ids[1]))
    shown = await replay_acts.preview(settings, EVERY, target=BOARD)
    assert (shown.count, shown.redacted) == (3, 1)
    running = await process(broker)
    await start()
    async with carrying(running):
        await running.heard.wait(ReplayEnded)
    assert broker.ids() == [ids[0], ids[2]]
    row = await state(database_rows)
    assert (row["sent"], row["redacted"]) == (2, 1)
    assert sum(told.redacted for told in running.heard.all(ReplayAdvanced)) == 1


# --- what is chosen -----------------------------------------------------------------------------------------------


async def test_events_are_chosen_by_all_that_is_known_of_them(author, database_rows, settings):
    now = datetime.now(UTC)
    plain = an_event("a")
    other = an_event("b", type="flights.flight.landed", version=2, route="flights.flight.landed.v2")
    story = an_event("c", correlation="another")
    early = an_event("d", occurred=now - timedelta(days=3))
    before = an_event("e", recorded=now - timedelta(days=1), occurred=now - timedelta(days=1))
    await author.stage(plain, other, story, early, before)

    async def found(**given):
        return (await replay_acts.preview(settings, Chosen(**given))).count

    assert await found() == 5
    assert await found(ids=[plain.id]) == 1
    assert await found(ids=[SYSTEM_CLOCK.new_id()]) == 0
    assert await found(types=["flights.flight.landed"]) == 1
    assert await found(versions=[1]) == 4
    assert await found(keys=["a", "b"]) == 2
    assert await found(correlation="another") == 1
    assert await found(since=now - timedelta(hours=1)) == 4
    assert await found(until=now - timedelta(hours=1)) == 1
    assert await found(occurred_until=now - timedelta(days=2)) == 1
    assert await found(occurred_since=now - timedelta(days=2), types=["flights.flight.departed"]) == 3
    assert Chosen.read(replay.json.dumps(Chosen(ids=[plain.id], since=now).given)) == Chosen(ids=[plain.id], since=now)


async def test_ids_find_their_days_by_themselves(author, database_rows, settings, start):
    """A UUIDv7 says when it was made; the log of other days is not read."""
    event = an_event(id=SYSTEM_CLOCK.new_id())
    await author.stage(event, an_event())
    made = await start(Chosen(ids=[event.id]))
    assert made.total == 1
    assert abs(made.chosen.since - (event.recorded - timedelta(hours=1))) < timedelta(seconds=1)


async def test_what_is_not_in_the_log_starts_nothing(author, start):
    with pytest.raises(UsageError, match=r"the log holds no event that was asked for.*PR107"):
        await start()


async def test_few_among_many_are_found(author, broker, process, database_rows, start):
    await logged(author, database_rows, 500)
    wanted = await logged(author, database_rows, 1, correlation="the one")
    await logged(author, database_rows, 300)
    running = await process(broker)
    await start(Chosen(correlation="the one", since=datetime.now(UTC) - timedelta(hours=1)), rate=20.0)
    await database_rows.execute("UPDATE postroad.replay SET cursor = 0, last = 801")  # As if there were some around it.
    async with carrying(running):
        await running.heard.wait(ReplayEnded)
    assert broker.ids() == wanted


# --- killed at any point ------------------------------------------------------------------------------------------


class Killed(Exception):
    """The process is gone."""


class DyingHand:
    """Runs statements until the one at which its process dies."""

    def __init__(self, hand, at):
        self._hand, self._left = hand, at

    async def fetch(self, statement):
        if self._left == 0:
            raise Killed
        self._left -= 1
        return await self._hand.fetch(statement)


async def steps_with_deaths(connection, lease, *, batch=3):
    """Carry replay 1 to its end, dying in each step once at each of its statements."""
    for at in range(100):
        try:
            async with connection.transaction():
                step = await drive(
                    replay.step(SCHEMA, lease, 1, batch=batch), DyingHand(AsyncpgHand(connection), at % 8)
                )
        except Killed:
            continue
        await connection.execute("UPDATE postroad.outbox SET replay = NULL, target = 'sent:' || seq")  # As if sent.
        if step is None or step.done:
            return


@pytest.fixture
async def lease(database_rows):
    holder = SYSTEM_CLOCK.new_id()
    await database_rows.execute(
        "INSERT INTO postroad.lease (name, holder, token, expires_at, ttl)"
        " VALUES ('replay', $1, 1, now() + interval '1 hour', interval '1 hour')",
        holder,
    )
    return Lease(
        "replay", token=1, holder=holder, ttl=timedelta(hours=1), sent=SYSTEM_CLOCK.monotonic(), clock=SYSTEM_CLOCK
    )


async def put(rows):
    """The seqs in the outbox, and those of the log."""
    found = await rows.fetch("SELECT seq FROM postroad.outbox ORDER BY place")
    log = await rows.fetch("SELECT seq FROM postroad.event ORDER BY seq")
    return [row["seq"] for row in found], [row["seq"] for row in log]


async def test_killed_at_any_statement_it_goes_on_without_a_gap_and_without_a_double(
    author, database_rows, start, lease
):
    await logged(author, database_rows, 20)
    await start()
    await steps_with_deaths(database_rows, lease)
    sent, log = await put(database_rows)
    assert sent == log
    assert (await state(database_rows))["state"] == "done"


@pytest.mark.sabotage
async def test_with_the_cursor_in_a_commit_of_its_own_a_kill_leaves_a_gap(
    author, database_rows, start, lease, runtime_url, monkeypatch
):
    await logged(author, database_rows, 20)
    await start()
    beside = await asyncpg.connect(runtime_url)
    found = replay._found

    def hasty(schema, row, **given):
        events, cursor = yield from found(schema, row, **given)
        yield replay.QUERIES.statement("open", schema, row["id"], 1)
        moved.append(cursor)
        return events, cursor

    moved = []
    monkeypatch.setattr(replay, "_found", hasty)
    for at in range(200):
        try:
            async with database_rows.transaction():
                step = await drive(
                    replay.step(SCHEMA, lease, 1, batch=3), DyingHand(AsyncpgHand(database_rows), at % 9)
                )
        except Killed:
            for cursor in moved:
                await beside.execute("UPDATE postroad.replay SET cursor = greatest(cursor, $1)", cursor)
            continue
        finally:
            moved.clear()
        await database_rows.execute("UPDATE postroad.outbox SET replay = NULL, target = 'sent:' || seq")
        if step is None or step.done:
            break
    await beside.close()
    sent, log = await put(database_rows)
    assert set(sent) < set(log)


async def test_a_process_that_lost_its_lease_moves_nothing(author, database_rows, start, lease):
    await logged(author, database_rows, 5)
    await start()
    await database_rows.execute("UPDATE postroad.lease SET token = 2")
    with pytest.raises(LeaseLost, match="PR401"):
        async with database_rows.transaction():
            await drive(replay.step(SCHEMA, lease, 1, batch=3), AsyncpgHand(database_rows))
    assert await put(database_rows) == ([], [1, 2, 3, 4, 5])


async def test_another_process_goes_on_where_a_dead_one_was(author, broker, process, database_rows, start):
    ids = await logged(author, database_rows, 40)
    await start(rate=20.0)
    first = await process(broker)
    beside = MemoryBroker()
    second = await process(beside, shards=None)
    async with carrying(first) as running:
        await first.heard.wait(ReplayAdvanced)
        async with carrying(second):
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await database_rows.execute("UPDATE postroad.replay SET rate = 2000")
            await second.heard.wait(ReplayEnded)
    assert second.heard.all(ReplayAdvanced)
    assert Counter([*broker.ids(), *beside.ids()]) == Counter(ids)


async def test_a_late_holder_of_the_lease_is_counted(author, broker, process, database_rows, start):
    await logged(author, database_rows, 40)
    await start(rate=20.0)
    running = await process(broker)
    async with carrying(running):
        await running.heard.wait(ReplayAdvanced)
        await database_rows.execute("UPDATE postroad.lease SET token = token + 1, holder = NULL WHERE name = 'replay'")
        await running.heard.wait(LateWriteRefused, lambda told: told.room == "replay")


# --- stop and resume ----------------------------------------------------------------------------------------------


async def test_stopped_it_takes_back_what_waits_and_goes_on_without_a_gap(
    author, broker, process, database_rows, start, settings
):
    ids = await logged(author, database_rows, 30)
    await start(rate=50.0)
    running = await process(broker)
    broker.turn(up=False)
    async with carrying(running):
        await running.heard.wait(ReplayAdvanced)
        stopped = await replay_acts.stop(settings, 1, by="ben", reason="too early")
        assert (stopped.state, stopped.sent, stopped.waiting) == ("stopped", 0, 0)
        assert await database_rows.fetchval("SELECT count(*) FROM postroad.outbox") == 0
        broker.turn(up=True)
        await replay_acts.resume(settings, 1, by="ben", rate=1000.0)
        await running.heard.wait(ReplayEnded)
    assert Counter(broker.ids()) == Counter(ids)
    acts = await database_rows.fetch("SELECT act, by, items FROM postroad.audit ORDER BY id")
    assert [tuple(act) for act in acts] == [
        ("replay.start", "ada", 30), ("replay.stop", "ben", 1), ("replay.resume", "ben", 1)
    ]  # fmt: skip


async def test_a_copy_that_leaves_sending_to_its_original_stops_its_replays(author, database_rows, start, settings):
    await logged(author, database_rows, 3)
    await start()
    await adoption.adopt(settings, by="ada", discard=True)
    assert (await state(database_rows))["state"] == "stopped"


async def test_one_that_is_held_sends_nothing_until_it_is_resumed(
    author, broker, process, database_rows, start, settings
):
    ids = await logged(author, database_rows, 3)
    await start(held=True)
    running = await process(broker)
    async with carrying(running):
        live = await author.stage(an_event())
        await until(lambda: live[0] in broker.ids())
        assert running.heard.all(ReplayAdvanced) == []
        await replay_acts.resume(settings, 1, by="ada")
        await running.heard.wait(ReplayEnded)
    assert Counter(broker.ids()) == Counter([*ids, *live])


async def test_two_replays_to_one_consumer_do_not_take_each_others_rows(
    author, broker, process, database_rows, start, settings
):
    ids = await logged(author, database_rows, 10)
    running = await process(broker)
    broker.turn(up=False)
    async with carrying(running):
        await start(rate=50.0)
        await running.heard.wait(ReplayAdvanced)
        await start(rate=5000.0)
        await replay_acts.stop(settings, 1, by="ada")
        broker.turn(up=True)
        await running.heard.wait(ReplayEnded, lambda told: told.number == 2)
    assert Counter(broker.ids()) == Counter(ids)


# --- what is refused ----------------------------------------------------------------------------------------------


async def test_refused_it_waits_tells_why_and_holds_back_nobody(
    author, broker, process, database_rows, start, settings
):
    """A consumer whose queue is not bound: its keys' live events go on."""
    await logged(author, database_rows, 30)

    def rule(message):
        if message.exchange == "flights.replay":
            return Settled(message.ticket, Settlement.RETURNED, "no queue")
        return Settled(message.ticket, Settlement.CONFIRMED)

    broker.rule = rule
    running = await process(broker)
    await start(rate=25.0)
    async with carrying(running):
        told = await running.heard.wait(ReplayWaits)
        live = await author.stage(*(an_event(f"k{number}") for number in range(5)))
        await until(lambda: broker.ids()[-5:] == live)
        shown = await replay_acts.show(settings, 1)
        assert "no queue" in told.reason
        assert shown.trouble == told.reason
        assert 0 < shown.refused <= 10
        stopped = await replay_acts.stop(settings, 1, by="ada")
        assert (stopped.waiting, stopped.sent) == (0, 0)
        broker.rule = lambda message: Settled(message.ticket, Settlement.CONFIRMED)
        await replay_acts.resume(settings, 1, by="ada", rate=1000.0)
        await running.heard.wait(ReplayEnded)


# --- live traffic -------------------------------------------------------------------------------------------------

SLOW = 800
"""Answers a second."""


async def slowest_live_beside_a_replay(author, broker, process, database_rows, start, *, rate):
    """The longest that a live event waits at a broker that answers slowly, while 3,000 events are replayed."""
    await logged(author, database_rows, 3000)
    running = await process(broker, window=200, page=100)
    broker.at_once = False

    async def answer():
        while True:
            await asyncio.sleep(0.025)
            some, broker.unanswered = broker.unanswered[: SLOW // 40], broker.unanswered[SLOW // 40 :]
            broker._settled([broker.rule(message) for message in some])

    answering = asyncio.ensure_future(answer())
    slowest = 0.0
    try:
        await start(rate=rate)
        async with carrying(running):
            await running.heard.wait(ReplayAdvanced)
            for _ in range(4):
                began = time.monotonic()
                (live,) = await author.stage(an_event("live"))
                await until(lambda live=live: live in broker.ids()[-400:])
                slowest = max(slowest, time.monotonic() - began)
    finally:
        answering.cancel()
    return slowest


async def test_live_traffic_beside_it_keeps_its_latency(author, broker, process, database_rows, start):
    slowest = await slowest_live_beside_a_replay(author, broker, process, database_rows, start, rate=200.0)
    assert slowest < 1.5


@pytest.mark.sabotage
async def test_without_its_bounds_live_traffic_waits_behind_all_of_it(
    author, broker, process, database_rows, start, monkeypatch
):
    monkeypatch.setattr(replayer, "_MOST", 100_000)
    slowest = await slowest_live_beside_a_replay(author, broker, process, database_rows, start, rate=100_000.0)
    assert slowest > 1.5


async def test_a_rate_is_kept(author, broker, process, database_rows, start):
    await logged(author, database_rows, 200)
    running = await process(broker)
    began = time.monotonic()
    await start(rate=100.0)
    async with carrying(running):
        await running.heard.wait(ReplayEnded)
    assert 1.7 < time.monotonic() - began < 8  # The rest is the machine's.
