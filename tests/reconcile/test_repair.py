"""Repair: by a function of the author's, or by the events themselves; bounded, audited, and safe to repeat."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from postroad.errors import UsageError
from postroad.reconcile.checking import check
from postroad.reconcile.repairing import Picked, mend, preview, repair
from postroad.signals.catalog import DriftRepaired
from reconcile.books import PAST, STANDS, TAMPERED, fill, tamper

if TYPE_CHECKING:
    from postroad.reconcile import Drift, Reconciliation

ALL = Picked(limit=1000, last=2**62)


async def set_right(drift: Drift) -> None:
    """Put the projection's row back to what the authority says."""
    await drift.tx.execute("DELETE FROM applied WHERE key = $1", drift.key)
    await drift.tx.execute("INSERT INTO applied SELECT * FROM booked WHERE key = $1", drift.key)


@pytest.fixture
def mended(books: Reconciliation) -> Reconciliation:
    return replace(books, repair=set_right)


async def test_a_repair_restores_equality_and_the_next_run_says_so(sql, ground, mended, heard):
    await fill(sql, 2500)
    await tamper(sql)
    await check(ground, mended)
    done = await repair(ground, mended, ALL, reason="a person's mistake")
    assert (done.done, done.failed, done.left, done.stopped) == (3, 0, 0, False)
    assert await sql.fetch("TABLE applied EXCEPT TABLE booked") == []
    assert {state for _, _, state in await sql.fetch(STANDS)} == {"repaired"}
    found = await check(ground, mended)
    assert (found.drift, found.pending) == (0, 0)
    assert await sql.fetch(PAST) == [(key, "repaired") for key, *_ in TAMPERED]
    assert heard.of(DriftRepaired) == [DriftRepaired("books", 3, 0, 0)]


async def test_a_repair_is_recorded_in_its_own_transaction(sql, ground, mended):
    await fill(sql, 3)
    await tamper(sql)
    await check(ground, mended)
    await repair(ground, mended, ALL, reason="why")
    (act,) = await sql.fetch("SELECT by, act, subject, items, reason, before::text FROM audit")
    assert tuple(act)[:5] == ("ada", "drift.repair", "books", 3, "why")
    assert act["before"] == '{"extra": 1, "missing": 1, "mismatched": 1}'


async def test_a_repair_that_did_not_help_is_open_again(sql, ground, mended):
    async def idle(drift: Drift) -> None:
        assert drift.kind

    useless = replace(mended, repair=idle)
    await fill(sql, 3)
    await tamper(sql)
    await check(ground, useless)
    await repair(ground, useless, ALL, reason=None)
    assert (await check(ground, useless)).drift == 3
    assert await sql.fetch(STANDS) == TAMPERED
    assert await sql.fetchval("SELECT min(repairs) FROM drift") == 1


async def test_a_key_whose_repair_fails_stays_open_and_stalls_no_other(sql, ground, mended):
    async def picky(drift: Drift) -> None:
        await set_right(drift)
        if drift.key == "k00000003":
            raise ValueError("secret")

    await fill(sql, 3)
    await tamper(sql)
    await check(ground, mended)
    done = await repair(ground, replace(mended, repair=picky), ALL, reason=None)
    assert (done.done, done.failed) == (2, 1)
    assert (await sql.fetch(STANDS))[1] == TAMPERED[1]
    assert (await sql.fetchval("SELECT failure FROM drift WHERE key = 'k00000003'")).startswith("ValueError")
    assert await sql.fetchval("SELECT amount FROM applied WHERE key = 'k00000003'") == -1


async def test_one_run_repairs_no_more_than_its_limit_and_the_next_goes_on(sql, ground, mended):
    await fill(sql, 300)
    await sql.execute("DELETE FROM applied WHERE amount > 100")
    await check(ground, mended)
    (total,) = await preview(ground, "books")
    assert (total.kind, total.count) == ("missing", 200)
    picked = Picked(limit=120, last=total.last)
    assert (await repair(ground, mended, picked, reason=None)).done == 120
    assert await sql.fetchval("SELECT count(*) FROM applied") == 220
    assert (await repair(ground, mended, picked, reason=None)).done == 80
    assert (await repair(ground, mended, picked, reason=None)).done == 0


async def test_it_stops_between_two_batches_when_asked(sql, ground, mended):
    await fill(sql, 300)
    await sql.execute("DELETE FROM applied WHERE amount > 100")
    await check(ground, mended)
    stop = asyncio.Event()
    done = await repair(ground, mended, ALL, reason=None, stop=stop, told=lambda _: stop.set())
    assert (done.done, done.stopped) == (50, True)
    assert await sql.fetchval("SELECT count(*) FROM applied") == 150
    assert await sql.fetchval("SELECT sum(items) FROM audit") == 50


async def killed(sql, ground, mended):
    """A repair whose process ends in the middle of a batch."""

    async def half(drift: Drift) -> None:
        await set_right(drift)
        if drift.key == "k00000003":
            raise asyncio.CancelledError

    await fill(sql, 3)
    await tamper(sql)
    await check(ground, mended)
    with pytest.raises(asyncio.CancelledError):
        await repair(ground, replace(mended, repair=half), ALL, reason=None)


async def test_a_killed_repair_has_done_whole_batches_or_nothing(sql, ground, mended):
    await killed(sql, ground, mended)
    assert await sql.fetch(STANDS) == TAMPERED
    assert await sql.fetchval("SELECT count(*) FROM applied WHERE key = 'k00000002'") == 0
    assert await sql.fetchval("SELECT count(*) FROM audit") == 0
    assert (await repair(ground, mended, ALL, reason=None)).done == 3


async def test_only_what_is_picked_is_repaired(sql, ground, mended):
    await fill(sql, 3)
    await tamper(sql)
    await check(ground, mended)
    assert (await repair(ground, mended, replace(ALL, kind="extra"), reason=None)).done == 1
    assert (await repair(ground, mended, replace(ALL, key="k00000003"), reason=None)).done == 1
    assert [row["state"] for row in await sql.fetch(STANDS)] == ["open", "repaired", "repaired"]


async def test_a_job_repairs_nothing_where_that_is_more_than_the_limit(sql, ground, mended, heard):
    await fill(sql, 30)
    await sql.execute("TRUNCATE booked")  # The authority is at fault: everything is extra.
    few = replace(mended, limit=10)
    await check(ground, few)
    assert (await mend(ground, few)).refused == 30
    assert await sql.fetchval("SELECT count(*) FROM applied") == 30
    assert heard.of(DriftRepaired) == [DriftRepaired("books", 0, 0, 30)]
    assert (await mend(ground, replace(few, limit=30))).done == 30


async def test_what_declares_no_repair_is_refused(ground, books):
    with pytest.raises(UsageError, match=r"declares no repair; give it repair=.*PR107"):
        await repair(ground, books, ALL, reason=None)


async def test_a_repair_may_not_end_its_transaction(sql, ground, mended):
    async def rash(drift: Drift) -> None:
        await drift.tx.execute("COMMIT")

    await fill(sql, 3)
    await tamper(sql)
    await check(ground, mended)
    assert (await repair(ground, replace(mended, repair=rash), ALL, reason=None)).failed == 3
    assert "PR111" in await sql.fetchval("SELECT failure FROM drift LIMIT 1")
