"""Replays that are stopped, refused for good, or released: what they count, carry and hold back."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from dispatching import SCHEMA, an_event
from outbox.test_release import Rule
from outbox.test_replay import BOARD, EVERY, carrying, logged, state
from postroad.events.redacted import tombstone
from postroad.outbox import resend
from postroad.runtime import replay_acts
from postroad.runtime.operations import bound_settings, retry
from postroad.signals.catalog import PublishRefused, ReplayAdvanced, ReplayEnded
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.drive import drive
from postroad.transport.base import Settled, Settlement
from support import until


@pytest.fixture
def settings(runtime_url):
    return bound_settings({"POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_BROKER_URL": "amqp://nowhere"})


@pytest.fixture
async def start(settings):
    """Start a replay of everything."""

    async def started(target=BOARD):
        return await replay_acts.start(settings, EVERY, target=target, by="ada", reason="a test")

    return started


async def test_what_is_erased_is_counted_once_however_often_it_is_stopped(
    author, broker, process, database_rows, start, settings
):
    ids = await logged(author, database_rows, 6)
    for number in (2, 4):
        fields = {"id": ids[number], "source": "urn:postroad:flights", "type": "flights.flight.departed"}
        await database_rows.execute(
            "UPDATE postroad.event SET envelope = $1 WHERE id = $2", tombstone(fields), UUID(ids[number])
        )
    running = await process(broker)
    broker.turn(up=False)
    await start()
    async with carrying(running):
        for times in (1, 2):
            await until(lambda times=times: len(running.heard.all(ReplayAdvanced)) == times)
            stopped = await replay_acts.stop(settings, 1, by="ada")
            assert (stopped.sent, stopped.redacted) == (0, 0)
            await replay_acts.resume(settings, 1, by="ada")
        broker.turn(up=True)
        await running.heard.wait(ReplayEnded)
    row = await state(database_rows)
    assert (row["sent"], row["redacted"], row["total"]) == (4, 2, 6)


async def refused_replay(author, broker, process, database_rows, start):
    """An event of a replay in quarantine: the replay, the row, and the process."""
    (identity,) = await author.stage(an_event("k"))
    await database_rows.execute("DELETE FROM postroad.outbox")
    broker.rule = Rule()
    made, running = await start(), await process(broker)
    async with carrying(running):
        await running.heard.wait(PublishRefused)
        await running.heard.wait(ReplayEnded)
    (row,) = await database_rows.fetch("SELECT * FROM postroad.quarantine")
    assert row["key"] == identity
    return made, row, running


async def test_an_event_of_a_replay_still_carries_it_and_holds_back_no_live_event(
    author, broker, process, database_rows, settings, start
):
    made, row, _ = await refused_replay(author, broker, process, database_rows, start)
    broker.turn(up=False)
    await retry(settings, row["id"], by="ada")
    (waiting,) = await database_rows.fetch("SELECT target, key_hash, replay FROM postroad.outbox")
    assert tuple(waiting) == (BOARD, None, made.id)
    broker.rule.refusing = False
    broker.turn(up=True)
    await until(lambda: len(broker.seen) == 2)
    assert broker.seen[1].headers["postroad-replay"] == str(made.id)


async def test_an_event_of_a_replay_for_which_another_waits_is_released_to_that(
    author, broker, process, database_rows, settings, start
):
    _, row, running = await refused_replay(author, broker, process, database_rows, start)
    broker.rule.refusing = False
    broker.turn(up=False)
    other = await start()
    async with carrying(running):
        await running.heard.wait(ReplayAdvanced, lambda told: told.number == other.number)
        place = await database_rows.fetchval("SELECT place FROM postroad.outbox")
        done = await retry(settings, row["id"], by="ada")
        assert done.number == place
        broker.turn(up=True)
        await running.heard.wait(ReplayEnded, lambda told: told.number == other.number)
    assert len(broker.seen) == 2
    assert await database_rows.fetchval("SELECT resolution FROM postroad.quarantine") == "retried"


async def test_refused_for_two_consumers_it_is_kept_for_both(author, broker, process, database_rows, settings, start):
    _, _, running = await refused_replay(author, broker, process, database_rows, start)
    other = await start("flights.other")
    async with carrying(running):
        await running.heard.wait(ReplayEnded, lambda told: told.number == other.number)
    rows = await database_rows.fetch("SELECT id, queue FROM postroad.quarantine ORDER BY id")
    assert [one["queue"] for one in rows] == ["flights.replay:flights.board", "flights.replay:flights.other"]
    broker.rule.refusing = False
    for one in rows:
        await retry(settings, one["id"], by="ada")
    await until(lambda: len(broker.seen) == 4)
    assert {one.routing_key for one in broker.seen[2:]} == {BOARD, "flights.other"}


async def test_what_is_sent_again_to_one_consumer_holds_back_no_live_event_of_its_key(
    author, broker, process, database_rows
):
    await logged(author, database_rows, 1)

    def rule(message):
        if message.exchange == "flights.replay":
            return Settled(message.ticket, Settlement.RETURNED, "no queue")
        return Settled(message.ticket, Settlement.CONFIRMED)

    broker.rule = rule
    await process(broker)
    hand = AsyncpgHand(database_rows)
    events = await drive(resend.logged(SCHEMA, ["k0"], types=EVERY.types), hand)
    assert await drive(resend.put(SCHEMA, events, target=BOARD), hand) == 1
    async with asyncio.timeout(20):
        while not await database_rows.fetchval("SELECT sum(attempts) FROM postroad.outbox"):
            pass
    live = await author.stage(an_event("k0"))
    await until(lambda: live[0] in broker.ids())
