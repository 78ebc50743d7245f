"""On the flights of the demo: what a test tampers with is found and repaired, and what is on its way is no drift."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest

from postroad.asyncpg import within
from postroad.clock import seconds, uuid7
from postroad.consume import again
from postroad.reconcile import checking, handled
from postroad.reconcile.checking import check
from postroad.reconcile.repairing import Picked, repair
from postroad.runtime import reconcile_acts
from postroad.runtime.settings import POSTGRES
from postroad.signals.catalog import ProjectionBehind, ReconciliationLooked
from reconcile.airport import (
    FLIGHT,
    SEEN,
    Request,
    airport,
    books,
    depart,
    nightly,
    see,
    settings_of,
    some_flights,
)  # fmt: skip

ALL = Picked(limit=1000, last=2**62)


@pytest.fixture
async def sql(database: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path = postroad, public")
    await connection.execute(FLIGHT.replace("flight (", "public.flight (").replace("ON flight", "ON public.flight"))
    await connection.execute(SEEN.replace("flight_seen (", "public.flight_seen (").replace("ON f", "ON public.f"))
    yield connection
    await connection.close()


async def until(sql, query: str) -> None:
    async with asyncio.timeout(30):
        while not await sql.fetchval(query):  # noqa: ASYNC110 - a database tells nothing by itself
            await asyncio.sleep(0.02)


async def tamper(sql, leaving) -> None:
    """Delete, alter and invent."""
    await sql.execute("DELETE FROM flight_seen WHERE flight_id = $1", leaving[3].flight_id)
    await sql.execute("UPDATE flight_seen SET carrier = 'XX' WHERE flight_id = $1", leaving[5].flight_id)
    await sql.execute("INSERT INTO flight_seen VALUES ('2013-01-01:ZZ:1:JFK', 'ZZ', 0)")


async def tampered_with(sql, ground, runtime_url, author_url):
    """What a run finds after a test has tampered with the projection, what a repair did, and what stands after it."""
    leaving = some_flights(40)
    await depart(author_url, leaving)
    async with airport(runtime_url, POSTGRES):
        await until(sql, "SELECT count(*) = 40 FROM flight_seen")
        assert (await check(ground, books())).drift == 0
        await tamper(sql, leaving)
        found = await check(ground, books())
        done = await repair(ground, books(), ALL, reason=None)
        await until(sql, "SELECT (SELECT count(*) FROM outbox) + (SELECT count(*) FROM work) = 0")
        return found, done, await check(ground, books())


async def test_rows_tampered_with_are_found_and_repaired_by_their_events(sql, ground, runtime_url, author_url):
    found, done, after = await tampered_with(sql, ground, runtime_url, author_url)
    assert (found.missing, found.mismatched, found.extra) == (1, 1, 1)
    assert (done.done, done.failed, done.left) == (3, 0, 0)
    assert (after.drift, after.pending) == (0, 0)
    assert await sql.fetchval("SELECT count(*) FROM flight_seen WHERE carrier IN ('XX', 'ZZ')") == 0
    assert await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome = 'handled'") == 40
    assert await sql.fetchval("SELECT sum(items) FROM audit WHERE act = 'drift.repair'") == 3


@pytest.mark.sabotage
async def test_with_their_marks_the_events_would_repair_nothing(sql, ground, runtime_url, author_url, monkeypatch):
    text = again.QUERIES.text("forget", "postroad").replace("outcome IN", "outcome NOT IN")
    monkeypatch.setitem(again.QUERIES._rendered, ("forget", "postroad"), text)
    _, done, after = await tampered_with(sql, ground, runtime_url, author_url)
    assert (done.done, after.missing, after.mismatched, after.extra) == (3, 1, 1, 0)


async def arriving(sql, ground, runtime_url, author_url, heard, monkeypatch, *, waits: bool):
    """A comparison that begins while 30 flights are staged and none is seen yet; they, and more, arrive meanwhile.

    It waits until they have: how long that takes is the machine's doing.
    """
    leaving, arrived = some_flights(80), asyncio.Event()

    async def waited(_stop: asyncio.Event, _seconds: float) -> bool:
        if waits:
            await arrived.wait()
        return False

    monkeypatch.setattr(checking, "_waited", waited)
    await depart(author_url, leaving[:30])
    run = asyncio.create_task(check(ground, replace(books(), settle=seconds(0.1 if waits else 0))))
    looked = (await heard.wait(ReconciliationLooked))[0]
    assert looked.pending == 30
    async with airport(runtime_url, POSTGRES):
        await depart(author_url, leaving[30:])
        await until(sql, "SELECT count(*) = 80 FROM flight_seen")
        arrived.set()
        return await run


async def test_no_drift_is_invented_while_events_are_in_flight(
    sql, ground, runtime_url, author_url, heard, monkeypatch
):
    found = await arriving(sql, ground, runtime_url, author_url, heard, monkeypatch, waits=True)
    assert (found.drift, found.pending, found.compared) == (0, 0, 80)


@pytest.mark.sabotage
async def test_without_the_waiting_time_what_is_in_flight_would_be_drift(
    sql, ground, runtime_url, author_url, heard, monkeypatch
):
    found = await arriving(sql, ground, runtime_url, author_url, heard, monkeypatch, waits=False)
    assert found.drift == 30


async def test_a_job_finds_and_repairs_by_itself(sql, runtime_url, author_url):
    leaving = some_flights(10)
    await depart(author_url, leaving)
    async with airport(runtime_url, POSTGRES):
        await until(sql, "SELECT count(*) = 10 FROM flight_seen")
        await tamper(sql, leaving)
        author = await asyncpg.connect(author_url)
        async with author.transaction():
            await within(author).enqueue(nightly, Request())
        await author.close()
        await until(sql, "SELECT count(*) = 3 FROM drift WHERE state = 'repaired'")
        await until(
            sql,
            "SELECT NOT EXISTS (TABLE flight_seen EXCEPT SELECT flight_id, carrier, delay_minutes FROM flight)"
            " AND (SELECT count(*) FROM flight_seen) = 10",
        )
    assert await sql.fetchval("SELECT by FROM audit WHERE act = 'drift.repair'") == "job reconcile.nightly"


# --- the inbox against the log ----------------------------------------------------------------------------------------


async def missed(sql, leaving) -> None:
    """As if these events had never come: no effect, no mark."""
    ids = [flight.flight_id for flight in leaving]
    await sql.execute("DELETE FROM inbox USING event WHERE message_key = event.id AND event.key = ANY ($1)", ids)
    await sql.execute("DELETE FROM flight_seen WHERE flight_id = ANY ($1)", ids)


async def test_what_was_published_and_never_handled_is_found_by_digest_and_sent_again(
    sql, ground, runtime_url, author_url, heard
):
    leaving = some_flights(40)
    inbox = handled(see, settle=seconds(0.2))
    await depart(author_url, leaving)
    async with airport(runtime_url, POSTGRES):
        await until(sql, "SELECT count(*) = 40 FROM flight_seen")
        found = await check(ground, inbox)
        assert (found.drift, found.compared) == (0, 40)
        await missed(sql, leaving[10:13])
        found = await check(ground, inbox)
        assert (found.missing, found.extra, found.mismatched) == (3, 0, 0)
        assert heard.of(ProjectionBehind)[-1] == ProjectionBehind("reconcile.seen", 3)
        assert (await repair(ground, inbox, ALL, reason=None)).done == 3
        await until(sql, "SELECT count(*) = 40 FROM flight_seen")
        assert (await check(ground, inbox)).drift == 0


async def test_what_waits_in_custody_counts_as_received(sql, ground, runtime_url, author_url):
    await depart(author_url, some_flights(3))
    await sql.execute("INSERT INTO inbox SELECT 'reconcile.seen', id, 'quarantined' FROM event")
    assert (await check(ground, handled(see, settle=seconds(0)))).drift == 0


async def test_a_new_consumer_need_not_have_what_came_before_it_but_an_old_one_must(sql, ground, author_url):
    await depart(author_url, some_flights(3))
    inbox = handled(see, settle=seconds(0))
    ids = [row["id"] for row in await sql.fetch("SELECT id FROM event ORDER BY seq")]
    await sql.execute("INSERT INTO inbox SELECT 'reconcile.seen', unnest($1::uuid[]), 'handled'", ids[2:])
    past = uuid7(int(ground.clock.now().timestamp() * 1000) - 10 * 86_400_000, bytes(10))
    assert (await check(ground, inbox)).missing == 2, "the hour of its first mark is looked at as a whole"
    await sql.execute("DELETE FROM drift")
    await sql.execute("UPDATE inbox SET message_key = $1 WHERE message_key = $2", past, ids[2])
    assert (await check(ground, inbox)).missing == 3


async def test_what_was_found_missing_stays_whatever_its_age(sql, ground, author_url):
    await depart(author_url, some_flights(3))
    inbox = handled(see, settle=seconds(0))
    assert (await check(ground, inbox)).missing == 3
    assert (await check(ground, replace(inbox, within=seconds(-7200)))).missing == 3


# --- two services, two databases, a broker ----------------------------------------------------------------------------


@pytest.fixture
async def airline(postgres, migrated_template) -> AsyncIterator[str]:
    """The database of the service that publishes; its name."""
    name = f"test_{uuid4().hex}"
    connection = await asyncpg.connect(postgres.create_database(name, migrated_template))
    await connection.execute(FLIGHT)
    await connection.close()
    yield name
    postgres.drop_database(name)


async def test_two_databases_and_a_broker_are_reconciled_from_the_consumers_side(
    sql, runtime_url, postgres, airline, vhost
):
    from postroad.demo.departures import flights
    from postroad.runtime.app import App

    leaving, other = some_flights(30), postgres.url(airline, "pr_runtime")
    await depart(postgres.url(airline, "pr_author"), leaving)
    sender = App("reconcile.airline", publishes=[flights], settings=settings_of(other, vhost))
    async with airport(runtime_url, vhost, producer=False, airline=other) as app, sender:
        await until(sql, "SELECT count(*) = 30 FROM flight_seen")
        await tamper(sql, leaving)
        settings = settings_of(runtime_url, vhost)
        (found,) = await reconcile_acts.run(settings, app, by="ada", only=["reconcile.flights"])
        assert (found.missing, found.mismatched, found.extra) == (1, 1, 1)
        done = await reconcile_acts.repair(settings, app, "reconcile.flights", ALL, by="ada", reason="tampered")
        assert done.done == 3
        await until(sql, "SELECT count(*) = 30 FROM flight_seen WHERE carrier NOT IN ('XX', 'ZZ')")
        found = await reconcile_acts.run(settings, app, by="ada", only=["reconcile.flights", "reconcile.seen.handled"])
        assert [(one.drift, one.pending, one.compared) for one in found] == [(0, 0, 30), (0, 0, 30)]
