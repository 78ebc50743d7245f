"""Authors, a worker and an operator on the same jobs at once: each sees what the others did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from postroad.asyncpg import within
from postroad.failures import Quarantine
from postroad.runtime import work_acts
from postroad.runtime.operations import database_settings
from postroad.work.job import job
from postroad.work.lane import Lane
from postroad.work.release import QUERIES
from work.bench import SCHEMA
from work.jobbench import Number, queues, working

if TYPE_CHECKING:
    from postroad.work.enqueue import Enqueued
    from postroad.work.run import Run


class Office:
    """An author's connection, and what an operator's commands do."""

    def __init__(self, connection: asyncpg.Connection, runtime_url: str) -> None:
        self._connection = connection
        self.settings = database_settings({"POSTROAD_DATABASE_URL": runtime_url})

    async def put(self, function: Callable[..., Any], number: int, **options: Any) -> Enqueued:
        async with self._connection.transaction():
            return await within(self._connection).enqueue(function, Number(number=number), **options)

    async def state(self, number: int) -> str:
        return (await work_acts.row(self.settings, number, payload=False)).state

    async def until(self, number: int, state: str) -> None:
        async with asyncio.timeout(20):
            while await self.state(number) != state:  # noqa: ASYNC110 - a database tells nothing by itself
                await asyncio.sleep(0.01)


@pytest.fixture
async def office(author_url, runtime_url):
    connection = await asyncpg.connect(author_url)
    yield Office(connection, runtime_url)
    await connection.close()


async def a_day(office: Office, here: Any) -> list[int]:
    """A queue is paused, a running job cancelled, the queue resumed, a job of quarantine released; what ran."""
    ran: list[int] = []
    broken = True

    @job("day.plain")
    async def plain(request: Number, _run: Run) -> None:
        ran.append(request.number)

    @job("day.slow")
    async def slow(_request: Number, _run: Run) -> None:
        await asyncio.Event().wait()

    @job("day.bad")
    async def bad(request: Number, _run: Run) -> None:
        if broken:
            raise Quarantine("the printer is on fire")
        ran.append(request.number)

    await work_acts.pause(office.settings, "day.plain", by="ada", reason=None)
    held = await office.put(plain, 1, unique="u")
    async with working(here, queues(here, plain, slow, bad)):
        running = await office.put(slow, 2)
        kept = await office.put(bad, 3, unique="b")
        await office.until(running.id, "running")
        await office.until(kept.id, "quarantined")
        assert not (await office.put(plain, 4, unique="u")).new
        assert await office.state(held.id) == "ready"
        assert (await work_acts.cancel(office.settings, running.id, by="ada", reason="too slow")).result == "asked"
        await office.until(running.id, "cancelled")
        assert (await work_acts.resume(office.settings, "day.plain", by="ada"))[0]
        await office.until(held.id, "handled")
        again = await office.put(plain, 5, unique="u")
        assert again.new
        await office.until(again.id, "handled")
        broken = False
        anew = await office.put(bad, 6, unique="b")
        assert anew.new, "what is in quarantine has freed its key"
        await office.until(anew.id, "handled")
        released = await work_acts.retry(office.settings, kept.id, by="ada")
        await office.until(released.number, "handled")
        assert await office.state(kept.id) == "retried"
    return ran


async def test_authors_a_worker_and_an_operator_see_what_the_others_did(here, office, sql):
    assert await a_day(office, here) == [1, 5, 6, 3]
    assert await sql.fetchval("SELECT count(*) FROM work") == 0
    rows = await sql.fetch("SELECT outcome, count(*) FROM finished GROUP BY outcome ORDER BY outcome")
    assert [tuple(row) for row in rows] == [("cancelled", 1), ("handled", 4)]


@pytest.mark.sabotage
async def test_sabotage_without_the_operators_word_what_is_held_runs(here, office, monkeypatch):
    """A lane that never hears of a pause."""
    monkeypatch.setattr(Lane, "forbidden", property(lambda _: False, lambda _, __: None), raising=False)
    with pytest.raises(AssertionError):
        await a_day(office, here)


async def priorities(office: Office, here: Any, sql: Any) -> tuple[int, int, str]:
    """Of a job with a priority: that of its row, that of the row that its release makes, and the latter's headers."""

    @job("day.bad")
    async def bad(_request: Number, _run: Run) -> None:
        raise Quarantine("not today")

    kept = await office.put(bad, 1, priority=-7)
    before = await sql.fetchval("SELECT priority FROM work")
    async with working(here, queues(here, bad)):
        await office.until(kept.id, "quarantined")
    await work_acts.retry(office.settings, kept.id, by="ada")
    after = await sql.fetchrow("SELECT priority, headers FROM work")
    return before, after["priority"], after["headers"]


async def test_a_job_keeps_its_priority_through_quarantine(here, office, sql):
    assert await priorities(office, here, sql) == (-7, -7, "{}")


@pytest.mark.sabotage
async def test_sabotage_not_taken_from_where_it_was_kept_the_priority_is_lost(here, office, sql, monkeypatch):
    text, wanted = QUERIES.text("back_to_work", SCHEMA), "headers ->> 'priority'"
    assert wanted in text
    monkeypatch.setitem(QUERIES._rendered, ("back_to_work", SCHEMA), text.replace(wanted, "headers ->> 'none'"))
    assert (await priorities(office, here, sql))[1] == 0
