"""Rows that no enqueue of ours wrote: anybody may write one by SQL, and it concerns nobody but itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from postroad.clock import seconds
from postroad.failures import Snooze
from postroad.retry import Backoff
from postroad.signals.catalog import JobDelayed, TaskFailed, WorkSlots
from postroad.work import operate, store
from postroad.work.job import job
from postroad.work.running import Finish, finish_many
from postroad.work.sweeper import Sweeper
from work.bench import SCHEMA, VERDICT, Probe, fill
from work.jobbench import Number, enqueue, numbers, queues, until_empty, working

if TYPE_CHECKING:
    from postroad.work.run import Run

ODD = {
    "headers that are a list": ("headers", "'[]'"),
    "headers that are a text": ("headers", "'\"secret\"'"),
    "a mark without its value": ("headers", """'{"x": {"$bytes": 5}}'"""),
    "a number of thousands of digits": ("headers", "('{\"x\": 1' || repeat('0', 5000) || '}')::jsonb"),
    "due before all time": ("due", "'-infinity'"),
    "due before Christ": ("due", "'4000-01-01 BC'"),
    "claimable since before all time": ("run_at", "'-infinity'"),
    "claimable since before Christ": ("run_at", "'4000-01-01 BC'"),
    "claimable after all time": ("run_at", "'infinity'"),
    "created after all time": ("created_at", "'infinity'"),
    "a history that is no list": ("history", "'{}'"),
}


async def odd(sql, name, column, value):
    """Three rows of a job, of which the first is odd; its id."""
    [number, *_] = await enqueue(sql, name, *numbers(3))
    await sql.execute(f"UPDATE work SET {column} = {value} WHERE id = $1", number)
    return number


@pytest.mark.parametrize(("column", "value"), ODD.values(), ids=ODD)
async def test_an_odd_row_runs_and_stops_no_other(here, sql, column, value):
    ran = []

    @job("j")
    async def work(request: Number, run: Run) -> None:
        ran.append(request.number)
        assert run.due.tzinfo is not None
        assert run.correlation_id == run.own_id
        assert run.attempt

    await odd(sql, "j", column, value)
    async with working(here, queues(here, work)):
        await until_empty(sql)
    assert sorted(ran) == [0, 1, 2]
    assert not here.heard.of(TaskFailed)


@pytest.mark.parametrize(("column", "value"), ODD.values(), ids=ODD)
async def test_an_operator_sees_and_cancels_an_odd_row(here, sql, column, value):
    number = await odd(sql, "j", column, value)
    rows, counts = await here.run(operate.list_open(SCHEMA, operate.Chosen()))
    assert (len(rows), counts) == (3, {"ready": 3})
    assert all(row.run_at.tzinfo for row in rows)
    shown = await here.run(operate.show(SCHEMA, number, payload=True))
    assert shown.created_at.tzinfo
    assert all(isinstance(entry, dict) for entry in shown.history)
    await here.run(operate.list_queues(SCHEMA))
    await here.run(operate.cancel(SCHEMA, number, by="ada", reason=None))
    assert (await here.run(operate.show(SCHEMA, number))).state == "cancelled"


async def test_times_that_python_cannot_hold_are_the_nearest_that_it_can(here, sql):
    await enqueue(sql, "q", *numbers(1))
    await sql.execute("UPDATE work SET run_at = 'infinity', due = '4000-01-01 BC'")
    [row] = await here.run(store.claim(SCHEMA, queue="q", limit=1, worker="w"))
    assert (row.run_at, row.due) == (datetime(9999, 12, 30, tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC))


async def test_a_row_without_a_due_time_has_none_when_it_is_claimed(here, sql):
    await enqueue(sql, "q", *numbers(1))
    await sql.execute("UPDATE work SET due = NULL")
    [row] = await here.run(store.claim(SCHEMA, queue="q", limit=1, worker="w"))
    assert row.due is None


@pytest.mark.sabotage
async def test_sabotage_a_claim_that_hands_times_over_as_they_are_fails_the_whole_queue(here, sql, monkeypatch):
    text = store.QUERIES.text("claim", SCHEMA).replace("'0001-01-02 UTC'", "'-infinity'")
    monkeypatch.setitem(store.QUERIES._rendered, ("claim", SCHEMA), text)
    await odd(sql, "j", "run_at", "'4000-01-01 BC'")
    with pytest.raises(OverflowError):
        await here.run(store.claim(SCHEMA, queue="j", limit=3, worker="w"))


async def test_a_row_that_cannot_be_read_is_quarantined_and_the_others_run(here, sql, monkeypatch):
    number = await odd(sql, "j", "event_type", "'unreadable'")
    read = store._claimed

    def refuse(row):
        if row["event_type"] == "unreadable":
            raise ValueError("secret")
        return read(row)

    monkeypatch.setattr(store, "_claimed", refuse)
    rows = await here.run(store.claim(SCHEMA, queue="j", limit=3, worker="w"))
    assert [row.id for row in rows] == [number + 1, number + 2]
    [kept] = await sql.fetch("SELECT code, reason FROM quarantine")
    assert kept["code"] == "PR501"
    assert "secret" not in kept["reason"]


# --- a history that is no list ------------------------------------------------------------------------------------


async def test_a_history_that_is_no_list_keeps_no_row_from_being_put_off(here, sql):
    @job("j", retry=Backoff(first=seconds(60)))
    async def work(_request: Number, _run: Run) -> None:
        raise Snooze(seconds(60), "later")

    await odd(sql, "j", "history", "'{}'")
    async with working(here, queues(here, work)):
        await here.heard.wait(JobDelayed, 3)
    assert await sql.fetchval("SELECT count(*) FROM work WHERE jsonb_array_length(history) = 1") == 3


async def recovered(here, sql):
    """Two rows of a dead worker, of which one has an odd history, are given back."""
    await fill(sql, 2)
    await sql.execute("UPDATE work SET history = '{}' WHERE id = (SELECT min(id) FROM work)")
    await here.run(store.claim(SCHEMA, queue="q", limit=2, worker="worker:gone"))
    assert await here.run(store.recover(SCHEMA)) == {"q": 2}


async def test_a_history_that_is_no_list_stops_no_recovery(here, sql):
    await recovered(here, sql)


@pytest.mark.sabotage
async def test_sabotage_taken_for_a_list_it_stops_the_recovery_of_all(here, sql, monkeypatch):
    text = store.QUERIES.text("recover", SCHEMA)
    monkeypatch.setitem(store.QUERIES._rendered, ("recover", SCHEMA), text.replace("<> 'array'", "IS NULL"))
    with pytest.raises(Exception, match="array length"):
        await recovered(here, sql)


async def test_a_row_whose_attempts_cannot_be_counted_any_more_ends(here, sql):
    await fill(sql, 1)
    await sql.execute("UPDATE work SET attempt = 2147483647, suspect = 2147483647")
    [row] = await here.run(store.claim_suspect(SCHEMA, queue="q", worker="worker:gone"))
    assert await here.run(store.recover(SCHEMA)) == {"q": 1}
    [row] = await here.run(store.claim_suspect(SCHEMA, queue="q", worker="w"))
    late = store.delay_again(
        SCHEMA, row.id, row.token, verdict=VERDICT, attempt=row.attempt + 1, run_in=seconds(0)
    )  # fmt: skip
    assert await here.run(late)
    [row] = await here.run(store.claim(SCHEMA, queue="q", limit=1, worker="w"))
    assert row.attempt == 2147483647
    assert await here.run(finish_many(SCHEMA, [Finish(row.id, row.token, "handled")])) == {row.id}
    assert await sql.fetchval("SELECT attempt FROM finished") == 2147483647


async def test_one_step_of_a_sweep_that_fails_keeps_no_other_from_being_taken(here, monkeypatch):
    async def broken(_self):
        raise ValueError("secret")

    monkeypatch.setattr(Sweeper, "_recover", broken)
    async with here.running(Probe(here)):
        await here.heard.wait(WorkSlots)
    failed = await here.heard.wait(TaskFailed)
    assert {(signal.task, signal.error_type) for signal in failed} == {("work:sweep", "ValueError")}
    assert "secret" not in repr(failed)
