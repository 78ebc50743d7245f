"""Cancellations that cross what a job does: its reports, and the end of its attempt."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.signals.catalog import WorkSettled
from postroad.work import jobs, store
from postroad.work.job import job
from postroad.work.run import Grip
from work.bench import SCHEMA, VERDICT
from work.jobbench import Number, enqueue, numbers, queues, until_empty, working

if TYPE_CHECKING:
    from postroad.work.run import Run

CANCEL = "UPDATE work SET cancel_at = now(), cancelled_by = 'ops', cancel_reason = 'not needed'"


async def test_a_job_that_hears_of_it_by_its_own_report_is_stopped_like_another(here, sql, monkeypatch):
    monkeypatch.setattr(jobs, "GRACE", seconds(0.2))
    heard = asyncio.Event()

    @job("j")
    async def work(_request: Number, run: Run) -> None:
        run.grip.reported = float("-inf")
        await sql.execute(CANCEL)
        await run.progress(0.5)
        assert run.cancelled
        heard.set()
        await asyncio.Event().wait()

    await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work)):
        await heard.wait()
        await until_empty(sql)
        await here.heard.wait(WorkSettled)
    assert await sql.fetchval("SELECT outcome FROM finished") == "cancelled"


ENDS = {
    "put off": lambda row: store.delay_again(
        SCHEMA, row.id, row.token, verdict=VERDICT, attempt=row.attempt, run_in=seconds(3600)
    ),
    "quarantined": lambda row: store.quarantine_claimed(SCHEMA, row.id, row.token, verdict=VERDICT, attempt=1),
}


async def cancelled_late(here, sql, end):
    """An operator cancels a row, and its attempt ends before its worker hears of it."""
    await enqueue(sql, "j", *numbers(1))
    [row] = await here.run(store.claim(SCHEMA, queue="j", limit=1, worker="w"))
    await sql.execute(CANCEL)
    assert await here.run(end(row)) is True
    assert await sql.fetchval("SELECT count(*) FROM work") == 0
    assert await sql.fetchval("SELECT count(*) FROM quarantine") == 0
    [ended] = await sql.fetch("SELECT id, outcome, reason FROM finished")
    assert tuple(ended) == (row.id, "cancelled", "not needed")


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_cancellation_that_the_end_of_the_attempt_overtakes_ends_the_job(here, sql, end):
    await cancelled_late(here, sql, end)


@pytest.mark.sabotage
@pytest.mark.parametrize(
    ("name", "read"), [("delay_again", "cancel_at IS NOT NULL AS"), ("quarantine_claimed", "WHERE cancel_at IS")]
)
async def test_sabotage_unread_at_the_end_it_is_lost(here, sql, monkeypatch, name, read):
    text = store.QUERIES.text(name, SCHEMA)
    assert read in text
    text = text.replace(read, read.replace("cancel_at", "NULL"))
    monkeypatch.setitem(store.QUERIES._rendered, (name, SCHEMA), text)
    with pytest.raises(AssertionError):
        await cancelled_late(here, sql, ENDS["put off" if name == "delay_again" else "quarantined"])


def test_a_block_that_ends_between_two_fences_leaves_none_out():
    class Held:
        def __init__(self, name):
            self.name = name

        def fence(self):
            yield self.name

    one, two = Held("one"), Held("two")
    grip = Grip(
        row=SimpleNamespace(id=1, token=2), job="j", manager=SimpleNamespace(schema=SCHEMA), signals=None,
        clock=SYSTEM_CLOCK, resources={}, held=[one, two],
    )  # fmt: skip
    statements = grip.sealed(finish=False)
    assert next(statements) == "one"
    grip.held.remove(one)
    assert statements.send(None) == "two"
