"""The examples of docs/enqueue.md do what they say."""

from __future__ import annotations

import random
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import asyncpg

from postroad.clock import SYSTEM_CLOCK
from postroad.leases import Leases
from postroad.sql.threaded import PsycopgTransactions
from postroad.work.operate import STATES
from work.jobbench import enqueue, queues, until_empty, working

PAGE = (Path(__file__).parents[2] / "docs" / "enqueue.md").read_text("utf-8")


async def test_the_example_enqueues_once_per_day(author_url, sql, postgres, database):
    ddl = "CREATE TABLE report (day date); GRANT ALL ON report TO pr_author"
    postgres.execute(ddl, database=database.rpartition("/")[2])
    names: dict[str, Any] = {"__name__": "docs"}
    for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(example, "enqueue.md", "exec", dont_inherit=True), names)
    author = await asyncpg.connect(author_url)
    day, later = date(2026, 5, 4), datetime(2126, 5, 4, tzinfo=UTC)
    assert [await names["order_report"](author, day, later) for _ in range(2)] == [True, False]
    assert len(await names["order_reports"](author, [day, day])) == 2
    rows = await sql.fetch("SELECT key, state, priority FROM work ORDER BY id")
    assert [tuple(row) for row in rows] == [("report:2026-05-04", "scheduled", 0), *[(None, "ready", 10)] * 2]
    await author.close()


async def test_the_example_of_a_thread_closes_a_ledger(here, sql, runtime_url):
    """docs/jobs.md's `def` job, on a thread, under its lease."""
    page = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text("utf-8")
    [example] = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "ledger.close" in text]
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(example, "jobs.md", "exec", dont_inherit=True), names)
    await sql.execute("CREATE TABLE public.ledger (day text, account text, open bool)")
    await sql.execute("GRANT ALL ON public.ledger TO pr_runtime")
    await sql.execute("INSERT INTO public.ledger VALUES ('x', 'cash', true), ('x', 'card', true), ('y', 'cash', true)")
    await enqueue(sql, "ledger.close", '"x"')
    threads = PsycopgTransactions(runtime_url, here.owner, size=2, name="ledger.close")
    leases = Leases(here.keeper, here.manager, clock=SYSTEM_CLOCK, signals=here.signals, chance=random.random)
    async with working(here, queues(here, names["close"], transactions=lambda _: threads, leases=leases)):
        await until_empty(sql)
    assert await sql.fetchval("SELECT outcome FROM finished") == "handled"
    assert await sql.fetchval("SELECT array_agg(day) FROM public.ledger WHERE open") == ["y"]


async def test_the_page_names_the_states_in_which_a_key_is_taken(sql):
    constraint = await sql.fetchval(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'work'::regclass AND contype = 'c'"
        " AND pg_get_constraintdef(oid) LIKE '%state%'"
    )
    assert set(re.findall(r"'(\w+)'", constraint)) == set(STATES)
    assert all(f"`{state}`" in PAGE for state in STATES)
