"""The dispatcher on a real database, with a broker in memory that answers as the test wants."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import asyncpg
import pytest

from dispatching import an_event
from postroad.clock import seconds
from postroad.errors import Unavailable
from postroad.outbox import store
from postroad.outbox.store import QUERIES
from postroad.retry import Backoff
from postroad.signals.catalog import (
    BodyMissing,
    OutboxCleared,
    OutboxRead,
    OutboxState,
    PublishesSettled,
    PublishRefused,
    PublishResult,
)
from postroad.sql.asyncpg import AsyncpgHand
from postroad.transport.base import Settled, Settlement
from support import until

if TYPE_CHECKING:
    from postroad.outbox.stage import StagedEvent


async def waiting(connection) -> int:
    return await connection.fetchval("SELECT count(*) FROM postroad.outbox")


async def cleared(process, count: int) -> None:
    await process.heard.wait(
        OutboxCleared, lambda _: sum(each.deleted for each in process.heard.all(OutboxCleared)) >= count
    )


def settled(process, result: PublishResult) -> int:
    return sum(each.count for each in process.heard.all(PublishesSettled) if each.result is result)


async def test_what_is_staged_is_sent_once_and_leaves_the_outbox(author, broker, process, database_rows):
    ids = await author.stage(*[an_event(f"k{number}") for number in range(1200)])
    running = await process(broker)
    await cleared(running, 1200)
    assert sorted(broker.ids()) == sorted(ids)
    assert await waiting(database_rows) == 0
    assert settled(running, PublishResult.CONFIRMED) == 1200
    await running.stop()
    assert running.dispatcher.receipt() == (0, 0, 0)


async def test_settled_is_signalled_before_the_outbox_knows_it(author, broker, process):
    await author.stage(an_event())
    running = await process(broker)
    await cleared(running, 1)
    kinds = [type(signal) for signal in running.heard._seen]
    assert kinds.index(PublishesSettled) < kinds.index(OutboxCleared)


async def test_events_without_partitions_and_of_every_retention_class_are_sent(
    author, broker, process, database, database_rows
):
    old = datetime(2020, 2, 3, tzinfo=UTC)
    events = [an_event(f"k{days}", retention=days, recorded=old) for days in (7, 30, 90, 400, 0)]
    for name in await database_rows.fetch(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhrelid::regclass::text ~ 'event_.*_[0-9]{8}$'"
    ):
        await database_rows.execute(f"DROP TABLE {name['name']}")
    ids = await author.stage(*events, *[an_event(f"m{days}", retention=days) for days in (7, 0)])
    running = await process(broker)
    await cleared(running, 7)
    assert set(ids) <= set(broker.ids())


async def test_few_statements_carry_many_events(author, broker, process, monkeypatch):
    await author.stage(*[an_event(f"k{number % 900}") for number in range(2000)])
    await author.stage(*[an_event(f"k{number % 900}") for number in range(2000)])
    texts: list[str] = []
    fetch = AsyncpgHand.fetch

    async def counting(self, statement):
        texts.append(statement.text)
        return await fetch(self, statement)

    monkeypatch.setattr(AsyncpgHand, "fetch", counting)
    running = await process(broker, shards=None, gauge=seconds(60))
    await cleared(running, 4000)
    names = {QUERIES.text(name, "postroad"): name for name in QUERIES}
    work = [names[text] for text in texts if names.get(text) not in {None, "state", "waiting"}]
    assert len(work) <= 8 * 4 + 4, work


async def test_an_idle_dispatcher_with_nothing_late_writes_nothing(author, broker, process, monkeypatch):
    await author.stage(an_event())
    running = await process(broker)
    await cleared(running, 1)
    await until(lambda: not running.dispatcher._floors.lagging)
    marks: list[str] = []
    mark = store.mark
    monkeypatch.setattr(store, "mark", lambda schema: marks.append(schema) or mark(schema))
    reads = running.dispatcher._reader.read
    polls = 0

    async def counting(*args, **named):
        nonlocal polls
        polls += 1
        return await reads(*args, **named)

    running.dispatcher._reader.read = counting
    await until(lambda: polls > 5)
    assert not marks
    assert not running.dispatcher._clearer.owed


async def test_a_returned_event_stays_with_its_reason_and_goes_once_there_is_a_queue(
    author, broker, process, database_rows
):
    broker.rule = lambda message: Settled(message.ticket, Settlement.RETURNED, "NO_ROUTE", 312)
    [event] = await author.stage(an_event())
    running = await process(broker)
    refused = await running.heard.wait(PublishRefused, count=2)
    assert (refused.result, refused.count, refused.reason) == (PublishResult.RETURNED, 1, "returned: NO_ROUTE")
    row = await database_rows.fetchrow("SELECT attempts, reason FROM postroad.outbox")
    assert row["attempts"] >= 2
    assert row["reason"] == "returned: NO_ROUTE"
    broker.rule = lambda message: Settled(message.ticket, Settlement.CONFIRMED)
    await cleared(running, 1)
    assert await waiting(database_rows) == 0
    assert set(broker.ids()) == {event}
    assert broker.seen[0].headers == {}
    assert broker.seen[-1].headers["postroad-attempt"] >= 2


async def test_an_event_that_may_go_without_subscriber_is_recorded_as_such_and_leaves(
    author, broker, process, database_rows
):
    broker.rule = lambda message: Settled(message.ticket, Settlement.RETURNED, "NO_ROUTE", 312)
    await author.stage(an_event())
    running = await process(broker, optional=["flights.flight.departed.v1"])
    await cleared(running, 1)
    assert settled(running, PublishResult.NO_SUBSCRIBER) == 1
    assert settled(running, PublishResult.CONFIRMED) == 0
    assert await waiting(database_rows) == 0


async def test_a_refused_row_holds_back_its_key_and_the_others_go_on(author, broker, process):
    bad = an_event("held")
    refusing = True

    def rule(message):
        if refusing and message.message_id == str(bad.id):
            return Settled(message.ticket, Settlement.NACKED, "full")
        return Settled(message.ticket, Settlement.CONFIRMED)

    broker.rule = rule
    await author.stage(bad)
    running = await process(broker, refused=Backoff(first=seconds(1), most=seconds(1)))
    await running.heard.wait(PublishRefused)
    later = await author.stage(*[an_event("held") for _ in range(3)])
    others = await author.stage(*[an_event(f"free{number}") for number in range(20)])
    await until(lambda: set(others) <= set(broker.ids()))
    assert not set(later) & set(broker.ids())
    refusing = False
    await cleared(running, 24)
    assert [sent for sent in broker.ids() if sent in {str(bad.id), *later}][-4:] == [str(bad.id), *later]


async def test_a_taken_over_shard_still_holds_back_the_keys_of_its_refused_rows(author, broker, process):
    broker.rule = lambda message: Settled(message.ticket, Settlement.NACKED, "full")
    slow = Backoff(first=seconds(30), most=seconds(30))
    held = await author.stage(an_event("held"))
    first = await process(broker, refused=slow)
    await first.heard.wait(PublishRefused)
    await first.stop()
    later = await author.stage(an_event("held"))
    other = await author.stage(an_event("free"))
    second_broker = type(broker)()
    second_broker.rule = lambda message: Settled(
        message.ticket, Settlement.NACKED if message.message_id == held[0] else Settlement.CONFIRMED, "full"
    )
    second = await process(second_broker, refused=slow)
    await cleared(second, 1)
    assert [sent for sent in second_broker.ids() if sent not in held] == other
    assert later[0] not in second_broker.ids()


async def test_what_the_broker_refuses_for_good_goes_into_quarantine_with_its_bytes(
    author, broker, process, database_rows
):
    bad = an_event("k", envelope=b'{"too": "large"}')
    broker.rule = lambda message: (
        Settled(message.ticket, Settlement.REFUSED, "PRECONDITION_FAILED - message size", 406)
        if message.message_id == str(bad.id)
        else Settled(message.ticket, Settlement.CONFIRMED)
    )
    await author.stage(bad, an_event("k"))
    running = await process(broker)
    await cleared(running, 1)
    await until(lambda: bool(running.heard.all(PublishRefused)))
    row = await database_rows.fetchrow("SELECT * FROM postroad.quarantine")
    assert (row["kind"], row["key"], row["body"]) == ("event", str(bad.id), b'{"too": "large"}')
    assert (row["code"], row["class"]) == ("PR509", "quarantine")
    assert "406" in row["reason"]
    assert (row["exchange"], row["routing_key"]) == ("flights.events", "flights.flight.departed.v1")
    assert await waiting(database_rows) == 0


async def test_a_missing_exchange_is_charged_and_kept(author, broker, process, database_rows):
    broker.rule = lambda message: Settled(message.ticket, Settlement.REFUSED, "NOT_FOUND - no exchange", 404)
    await author.stage(an_event())
    running = await process(broker)
    await running.heard.wait(PublishRefused)
    assert await database_rows.fetchval("SELECT reason FROM postroad.outbox") == "refused: NOT_FOUND - no exchange"
    assert await database_rows.fetchval("SELECT count(*) FROM postroad.quarantine") == 0


async def test_a_row_without_its_event_is_kept_and_reported(author, broker, process, database_rows):
    lost = an_event("k")
    await author.stage(lost, an_event("k"))
    await database_rows.execute("DELETE FROM postroad.event WHERE id = $1", lost.id)
    running = await process(broker)
    told = await running.heard.wait(BodyMissing)
    await running.heard.wait(OutboxCleared, lambda each: each.refused == 1)
    await cleared(running, 1)
    row = await database_rows.fetchrow("SELECT place, attempts, reason FROM postroad.outbox")
    assert row["place"] == told.place
    assert row["reason"] == store.BODY_MISSING
    assert len(broker.seen) == 1


async def test_unknown_outcomes_go_again_in_order_uncharged(author, broker, process, database_rows):
    broker.at_once = False
    ids = await author.stage(*[an_event("k") for _ in range(5)])
    running = await process(broker)
    await until(lambda: len(broker.unanswered) == 5)
    broker.answer(Settlement.UNKNOWN)
    await until(lambda: len(broker.unanswered) == 5)
    assert broker.ids() == ids * 2
    assert await database_rows.fetchval("SELECT max(attempts) FROM postroad.outbox") == 0
    broker.answer()
    await cleared(running, 5)


async def test_with_the_broker_away_nothing_is_read_and_the_shards_are_kept(author, broker, process):
    broker.up = False
    running = await process(broker)
    ids = await author.stage(an_event())
    await until(lambda: "broker" in running.reason)
    assert broker.seen == []
    assert len(running.held) == 16
    broker.turn(up=True)
    await cleared(running, 1)
    assert running.ready
    assert broker.ids() == ids


async def test_the_window_bounds_what_is_unanswered_by_count_and_by_bytes(author, broker, process):
    broker.at_once = False

    def of_ten_routes() -> list[StagedEvent]:
        return [
            an_event(f"k{number}", envelope=b"x" * 1000, route=f"flights.flight.kind{number % 10}.v1")
            for number in range(100)
        ]

    await author.stage(*of_ten_routes())
    running = await process(broker, window=20, page=10)
    await until(lambda: len(broker.unanswered) == 20)
    small = await process(type(broker)(), shards=None)
    await small.end()
    assert len(broker.unanswered) == 20
    broker.at_once = True
    broker.answer()
    await cleared(running, 100)
    await running.stop()
    await author.stage(*of_ten_routes())
    held = type(broker)()
    held.at_once = False
    bytes_bound = await process(held, window_bytes=5500)
    await until(lambda: len(held.unanswered) == 5)
    held.at_once = True
    held.answer()
    await cleared(bytes_bound, 100)
    assert len(held.ids()) == 100


async def test_stopping_waits_for_answers_and_deletes_what_was_confirmed(author, broker, process, database_rows):
    broker.at_once = False
    await author.stage(*[an_event(f"k{number}") for number in range(6)])
    running = await process(broker)
    await until(lambda: len(broker.unanswered) == 6)
    stopping = asyncio.ensure_future(running.stop())
    await until(lambda: running.dispatcher._stopping)
    await author.stage(an_event("late"))
    running.dispatcher.wake()
    held, broker.unanswered = broker.unanswered[4:], broker.unanswered[:4]
    broker.answer()
    broker.unanswered = held
    await until(lambda: not running.dispatcher._clearer.owed)
    assert not stopping.done()
    broker.answer(Settlement.UNKNOWN)
    await stopping
    assert running.dispatcher.receipt() == (4, 2, 0)
    assert await waiting(database_rows) == 3
    assert await database_rows.fetchval("SELECT count(*) FROM postroad.lease WHERE holder IS NOT NULL") == 0


async def test_the_state_of_the_outbox_is_measured_by_the_holder_of_the_first_shard(author, broker, process):
    broker.up = False
    await author.stage(*[an_event(f"k{number}") for number in range(7)])
    running = await process(broker)
    state = await running.heard.wait(OutboxState)
    assert state.pending == (("flights.flight.departed.v1", 7),)
    assert 0 < state.oldest_seconds < 60


async def test_waking_reads_at_once(author, broker, process):
    running = await process(broker, busy=seconds(30), idle=seconds(30), balance=seconds(30))
    await until(lambda: running.ready)
    ids = await author.stage(an_event())
    running.dispatcher.wake()
    await until(lambda: broker.ids() == ids, within=5)


async def test_every_statement_can_be_prepared_by_the_runtime_role(runtime_url):
    connection = await asyncpg.connect(runtime_url)
    for name in QUERIES:
        await connection.prepare(QUERIES.text(name, "postroad"))
    await connection.close()


async def test_the_hot_reads_use_the_primary_key_while_a_hundred_thousand_rows_wait(database_rows):
    await database_rows.execute(
        "INSERT INTO postroad.outbox (shard, place, seq, recorded, retention, route, attempts, available_at)"
        " SELECT n % 16, n, n, now(), 90, 'a.b.c.v1', CASE WHEN n % 10 = 0 THEN 1 ELSE 0 END, now() + interval '1 hour'"
        " FROM generate_series(1, 100000) AS n"
    )
    await database_rows.execute("ANALYZE postroad.outbox")
    shards = list(range(16))
    asked = {
        "fresh": (shards, [0] * 16, 64, 500),
        "between": (shards, [50_000] * 16, [52_000] * 16, list(range(50_000, 51_000)), 500, []),
        "passing": (shards, [0] * 16, 64, 500, ["b.c.d.v1"], 4000),
        "behind": (shards, [50_000] * 16, [52_000] * 16, "a.b.c.v1", list(range(50_000, 51_000)), 500),
        "retries": (shards, [], 400, []),
        "refused": (shards, "a.b.c.v1", [], "gone", 50),
    }
    for name, arguments in asked.items():
        text = "EXPLAIN " + QUERIES.text(name, "postroad")
        plan = "\n".join(row[0] for row in await database_rows.fetch(text, *arguments))
        assert "Seq Scan on outbox" not in plan, plan
        assert ("outbox_waiting" if name in {"retries", "refused"} else "outbox_pkey") in plan


async def test_a_read_that_fails_halfway_leaves_nothing_behind(author, broker, process, monkeypatch):
    """The bodies cannot be read the first time: the rows of that read, late ones too, come with the next."""
    running = await process(broker)
    late = an_event("k1")
    fail = False
    fetch = AsyncpgHand.fetch

    async def failing(self, statement):
        nonlocal fail
        if fail and statement.text == QUERIES.text("bodies", "postroad"):
            fail = False
            raise Unavailable("PR301", "gone for a moment")
        return await fetch(self, statement)

    monkeypatch.setattr(AsyncpgHand, "fetch", failing)
    async with author.open() as connection:
        await author.stage_on(connection, late)
        await author.stage(an_event("k1"))
        await cleared(running, 1)
        fail = True
    await until(lambda: str(late.id) in broker.ids(), within=5)
    assert not fail


async def test_new_events_do_not_overtake_those_that_go_again(author, broker, process):
    broker.at_once = False
    first = await author.stage(an_event("k"))
    running = await process(broker, unknown_pause=seconds(0.5))
    await until(lambda: len(broker.unanswered) == 1)
    broker.answer(Settlement.UNKNOWN)
    second = await author.stage(an_event("k"))
    running.dispatcher.wake()
    await until(lambda: len(broker.seen) >= 2)
    broker.at_once = True
    broker.answer()
    await cleared(running, 2)
    assert broker.ids() == [*first, *first, *second]


async def test_a_fault_in_one_part_ends_the_service_and_gives_the_shards_back(broker, process, database_rows):
    running = await process(broker)

    def fault(*_args, **_named):
        raise LookupError("a fault")

    running.dispatcher._reader._fresh = fault
    with pytest.raises(LookupError):
        await running.running
    assert await database_rows.fetchval("SELECT count(*) FROM postroad.lease WHERE holder IS NOT NULL") == 0


async def test_a_row_for_one_consumer_alone_is_read_with_its_target(author, broker, process, database_rows):
    await author.stage(an_event("k"))
    await database_rows.execute("UPDATE postroad.outbox SET target = 'board'")
    running = await process(broker)
    await cleared(running, 1)
    assert (broker.seen[0].exchange, broker.seen[0].routing_key) == ("flights.replay", "board")


async def test_a_shard_that_holds_most_rows_is_still_read_in_whole_pages(author, broker, process):
    await author.stage(*[an_event("one") for _ in range(1500)])
    running = await process(broker, shards=None, page=500, window=2000)
    await cleared(running, 1500)
    reads = [read.count for read in running.heard.all(OutboxRead)]
    assert max(reads) == 500
    assert len(reads) <= 10
