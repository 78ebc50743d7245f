"""An event that the broker refused goes back into the outbox: same id, same bytes, a fresh place."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import uuid4

import pytest

from dispatching import an_event
from postroad.errors import UsageError
from postroad.outbox import store
from postroad.runtime.operations import database_settings, retry
from postroad.signals.catalog import PublishRefused
from postroad.transport.base import Settled, Settlement
from support import until


@pytest.fixture
def settings(runtime_url):
    return database_settings({"POSTROAD_DATABASE_URL": runtime_url})


@dataclass
class Rule:
    refusing: bool = True

    def __call__(self, message):
        if self.refusing:
            return Settled(message.ticket, Settlement.REFUSED, "PRECONDITION_FAILED - size", 406)
        return Settled(message.ticket, Settlement.CONFIRMED)


@pytest.fixture
async def refused(author, broker, process, database_rows):
    """Stage an event that ends in quarantine; its row, and the rule to change."""

    async def stage(event):
        broker.rule = Rule()
        await author.stage(event)
        running = await process(broker)
        await running.heard.wait(PublishRefused)
        (row,) = await database_rows.fetch("SELECT * FROM postroad.quarantine")
        return row

    return stage


@pytest.mark.parametrize("key", ["k", None])
async def test_a_refused_event_is_sent_again_with_its_id_and_bytes(refused, broker, database_rows, settings, key):
    event = an_event(key, envelope=b'{"same": "bytes"}', retention=7)
    row = await refused(event)
    logged = await database_rows.fetchrow("SELECT seq, recorded, retention FROM postroad.event")
    assert (row["seq"], row["recorded"], row["retention"]) == tuple(logged)
    broker.rule.refusing = False
    broker.at_once = False
    done = await retry(settings, row["id"], by="ada")
    assert (done.kind, done.to, done.by) == ("event", "outbox", "ada")
    await until(lambda: len(broker.unanswered) == 1)
    (waiting,) = await database_rows.fetch("SELECT seq, place, attempts, route, key_hash, shard FROM postroad.outbox")
    assert (waiting["seq"], waiting["attempts"], waiting["route"]) == (logged["seq"], 0, event.route)
    assert waiting["place"] == done.number > 1
    assert waiting["key_hash"] == event.key_hash
    assert waiting["shard"] == (logged["seq"] % 16 if event.shard is None else event.shard)
    broker.answer()
    assert broker.ids() == [str(event.id)] * 2
    assert broker.seen[1].body == b'{"same": "bytes"}'
    assert await database_rows.fetchval("SELECT resolution FROM postroad.quarantine") == "retried"


async def test_refused_again_it_comes_back_to_quarantine(refused, broker, database_rows, settings):
    row = await refused(an_event())
    await retry(settings, row["id"], by="ada")
    await until(lambda: len(broker.seen) == 2)
    query = "SELECT resolved_by FROM postroad.quarantine ORDER BY id"
    async with asyncio.timeout(20):
        while len(rows := await database_rows.fetch(query)) < 2:
            pass
    assert [one["resolved_by"] for one in rows] == ["ada", None]


async def test_a_row_that_does_not_say_where_its_event_lies_finds_it_by_its_id(
    refused, broker, database_rows, settings
):
    row = await refused(an_event())
    broker.rule.refusing = False
    await database_rows.execute("UPDATE postroad.quarantine SET seq = NULL, recorded = NULL, retention = NULL")
    await retry(settings, row["id"], by="ada")
    await until(lambda: len(broker.seen) == 2)


async def test_an_event_that_the_log_does_not_hold_is_one_line(refused, database_rows, settings):
    row = await refused(an_event())
    await database_rows.execute("DELETE FROM postroad.event")
    with pytest.raises(UsageError, match=rf"row {row['id']} of quarantine: the log holds no event .*PR112"):
        await retry(settings, row["id"], by="ada")
    assert await database_rows.fetchval("SELECT resolved_at FROM postroad.quarantine") is None


@pytest.mark.sabotage
async def test_without_its_place_noted_a_refused_event_keeps_every_day_of_the_log(refused, database_rows, monkeypatch):
    """The note is what lets other days go: without it nothing can be told apart."""

    def careless(*_, **__):
        return
        yield

    monkeypatch.setattr(store, "note_place", careless)
    row = await refused(an_event(id=uuid4()))
    day = "(now() AT TIME ZONE 'UTC')::date - 9"
    await database_rows.execute(f"SELECT postroad.make_partition('event_7', {day})")
    assert row["seq"] is None
    assert await database_rows.fetchval(f"SELECT postroad.drop_partition('event_7', {day})") == "quarantine"
