"""A comparison on a real database: what is drift, what is none, and what a run that ends early leaves behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from postroad.clock import seconds
from postroad.reconcile import Reconciliation, pages
from postroad.reconcile import store as drift
from postroad.reconcile.checking import End, check
from postroad.signals.catalog import ReconciliationEnded, ReconciliationLooked
from reconcile.books import APPLIED, BOOKED, PAST, STANDS, TAMPERED, fill, tamper

if TYPE_CHECKING:
    from postroad.reconcile.ground import Source


async def test_rows_deleted_altered_and_invented_are_all_found(sql, ground, books, heard):
    await fill(sql, 2500)
    await tamper(sql)
    found = await check(ground, books)
    assert (found.missing, found.extra, found.mismatched, found.pending) == (1, 1, 1, 0)
    assert (found.end, found.compared) == (End.COMPLETE, 2501)
    assert await sql.fetch(STANDS) == TAMPERED
    (ended,) = heard.of(ReconciliationEnded)
    assert (ended.missing, ended.extra, ended.mismatched, ended.end) == (1, 1, 1, "complete")


async def test_where_all_agrees_it_looks_once_and_finds_nothing(sql, ground, books, heard):
    await fill(sql, 10)
    found = await check(ground, books)
    assert (found.drift, found.pending, found.compared) == (0, 0, 10)
    assert len(heard.of(ReconciliationLooked)) == 1
    assert await sql.fetchval("SELECT completed_at IS NOT NULL FROM reconciliation")


async def arrives_late(sql, ground, books):
    """What is missing at the first look comes before the second."""
    await fill(sql, 10)
    await sql.execute("DELETE FROM applied WHERE amount > 5")

    class Late:
        looks = 0

    async def projection(source: Source):
        Late.looks += 1
        if Late.looks == 2:
            await source.fetch("INSERT INTO applied SELECT * FROM booked ON CONFLICT DO NOTHING")
        async for item in pages(APPLIED)(source):
            yield item

    return await check(ground, replace(books, projection=projection))


async def test_what_is_on_its_way_is_no_drift(sql, ground, books, heard):
    found = await arrives_late(sql, ground, books)
    assert (found.drift, found.pending) == (0, 0)
    assert [(one.drift, one.pending) for one in heard.of(ReconciliationLooked)] == [(0, 5), (0, 0)]
    assert await sql.fetch("SELECT FROM drift") == []


@pytest.mark.sabotage
async def test_without_the_waiting_time_it_would_be(sql, ground, books, monkeypatch):
    text = drift.QUERIES.text("note", "postroad").replace("'suspected', fenced.pass", "'open', fenced.pass")
    monkeypatch.setitem(drift.QUERIES._rendered, ("note", "postroad"), text)
    looked = []
    ground.signals.subscribe(looked.append)
    await arrives_late(sql, ground, books)
    assert [one.drift for one in looked if isinstance(one, ReconciliationLooked)] == [5]


async def test_an_authority_that_goes_on_moving_is_waited_for_anew(sql, ground, books):
    await fill(sql, 3)
    await sql.execute("UPDATE booked SET amount = 100 WHERE key = 'k00000001'")

    async def authority(source: Source):
        async for item in pages(BOOKED)(source):
            yield item
        await source.fetch("UPDATE booked SET amount = amount + 1 WHERE key = 'k00000001'")

    moving = replace(books, authority=authority)
    found = await check(ground, moving)
    assert (found.drift, found.pending) == (0, 1)
    found = await check(ground, books)
    assert (found.drift, found.mismatched) == (1, 1)


async def test_drift_that_is_gone_is_resolved_and_told(sql, ground, books):
    await fill(sql, 3)
    await tamper(sql)
    await check(ground, books)
    await sql.execute("DELETE FROM applied WHERE key = 'k00000003a'")
    assert (await check(ground, books)).drift == 2
    assert await sql.fetch(STANDS) == TAMPERED[:2]
    assert await sql.fetch(PAST) == [("k00000003a", "gone")]


# --- stopped, killed, two at once ------------------------------------------------------------------------------------


async def test_a_stopped_run_goes_on_where_it_was(sql, ground, books):
    await fill(sql, 3000)
    await tamper(sql)
    stop = asyncio.Event()
    found = await check(ground, books, stop=stop, told=lambda *_: stop.set())
    assert (found.end, found.compared) == (End.STOPPED, 1000)
    assert await sql.fetchval("SELECT cursor FROM reconciliation") == "k00000999"
    asked = []

    def authority(source: Source):
        asked.append(source.after)
        return pages(BOOKED)(source)

    found = await check(ground, replace(books, authority=authority))
    assert asked[0] == "k00000999"
    assert (found.drift, found.compared, found.end) == (3, 3001, End.COMPLETE)


async def test_a_stream_that_breaks_leaves_how_far_it_came(sql, ground, books):
    await fill(sql, 3000)

    async def broken(source: Source):
        async for key, fingerprint in pages(APPLIED)(source):
            if key == "k00002500":
                raise ConnectionResetError
            yield key, fingerprint

    with pytest.raises(ConnectionResetError):
        await check(ground, replace(books, projection=broken))
    assert await sql.fetchval("SELECT compared FROM reconciliation") == 2000
    assert (await check(ground, books)).compared == 3000


async def test_a_run_may_begin_anew(sql, ground, books):
    await fill(sql, 3000)
    stop = asyncio.Event()
    await check(ground, books, stop=stop, told=lambda *_: stop.set())
    counts = []
    await check(ground, books, anew=True, told=lambda _, compared: counts.append(compared))
    assert counts == [1000, 2000, 3000]


async def beside(sql, ground, books):
    """A run that another one takes over while it reads; how the first one ended, and what both left."""
    await fill(sql, 3)
    await tamper(sql)

    async def slow(source: Source):
        async for item in pages(APPLIED)(source):
            yield item
        await check(ground, books)

    first = await check(ground, replace(books, projection=slow))
    return first, await sql.fetch(STANDS)


async def test_of_two_runs_the_later_one_goes_on(sql, ground, books):
    first, stands = await beside(sql, ground, books)
    assert first.end is End.SUPERSEDED
    assert stands == TAMPERED


@pytest.mark.sabotage
async def test_without_the_token_both_would_write(sql, ground, books, monkeypatch):
    for name in ("note", "finish"):
        text = drift.QUERIES.text(name, "postroad").replace("AND token = $2", "AND $2::bigint > 0")
        monkeypatch.setitem(drift.QUERIES._rendered, (name, "postroad"), text)
    first, _ = await beside(sql, ground, books)
    assert first.end is not End.SUPERSEDED


async def test_what_was_resolved_long_ago_is_forgotten(sql, ground, books):
    await fill(sql, 3)
    await tamper(sql)
    await check(ground, books)
    await sql.execute("UPDATE drift SET resolved_at = now() - interval '91 days' WHERE key = 'k00000002'")
    assert await ground.manager.run(drift.forget("postroad", now=ground.clock.now(), limit=10)) == 1
    assert await sql.fetch(STANDS) == TAMPERED[1:]


def test_a_declaration_that_is_not_valid_names_everything_that_is_wrong():
    from postroad.errors import UsageError

    with pytest.raises(UsageError, match="PR101") as refused:
        Reconciliation("Bad name", authority=1, projection=pages(BOOKED), repair=print, settle=seconds(-1), limit=0)  # type: ignore[arg-type]
    said = str(refused.value)
    for part in ("name must be", "authority is no function", "repair is neither", "settle is no", "limit is no"):
        assert part in said
