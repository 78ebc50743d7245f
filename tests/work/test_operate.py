"""What operators may do with work, where it meets what workers do at the same time."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.drive import drive
from postroad.work import store
from postroad.work.operate import QUERIES, Chosen, cancel, list_open, show

ADD = (
    "INSERT INTO work (id, queue, kind, state, event_type, body, content_type)"
    " VALUES (nextval('work_id'), 'q', 'job', 'ready', 'a.job', 'hush', 'application/json') RETURNING id"
)


@pytest.fixture
async def operator(runtime_url):
    connection = await asyncpg.connect(runtime_url)
    yield AsyncpgHand(connection)
    await connection.close()


def sabotage(monkeypatch, name, *, mechanism, instead=""):
    text = QUERIES.text(name, "postroad")
    assert mechanism in text
    monkeypatch.setitem(QUERIES._rendered, (name, "postroad"), text.replace(mechanism, instead))


async def test_a_body_leaves_the_database_only_when_it_is_asked_for(operator, sql):
    number = await sql.fetchval(ADD)
    assert (await drive(show("postroad", number), operator)).body is None
    assert (await drive(show("postroad", number, payload=True), operator)).body == b"hush"
    rows, counts = await drive(list_open("postroad", Chosen()), operator)
    assert ([row.id for row in rows], counts) == ([number], {"ready": 1})
    assert "hush" not in str(rows)


@pytest.mark.sabotage
async def test_without_the_condition_it_would_leave_always(operator, sql, monkeypatch):
    sabotage(monkeypatch, "show_open", mechanism="CASE WHEN $2::boolean THEN body END", instead="body")
    sabotage(monkeypatch, "show_open", mechanism="CASE WHEN $2 THEN", instead="CASE WHEN $2::boolean THEN")
    number = await sql.fetchval(ADD)
    assert (await drive(show("postroad", number), operator)).body == b"hush"


async def cancelled_while_it_is_claimed(operator, sql):
    """A worker's claim is under way, and commits after the operator has asked."""
    number = await sql.fetchval(ADD)

    async def act():
        async with operator.connection.transaction():
            return await drive(cancel("postroad", number, by="ada", reason=None), operator)

    transaction = sql.transaction()
    await transaction.start()
    claimed = await drive(store.claim("postroad", queue="q", limit=1, worker="worker:1"), AsyncpgHand(sql))
    asking = asyncio.create_task(act())
    await asyncio.wait([asking], timeout=0.5)  # It waits for the claim, if it looks at the row as it should.
    await transaction.commit()
    done = await asking
    return done, claimed[0], await sql.fetchrow("SELECT state, token, cancelled_by FROM work")


async def test_a_job_that_is_being_claimed_is_asked_to_stop_by_its_worker(operator, sql):
    done, claimed, row = await cancelled_while_it_is_claimed(operator, sql)
    assert done.result == "asked"
    assert (row["state"], row["token"], row["cancelled_by"]) == ("running", claimed.token, "ada")


@pytest.mark.sabotage
async def test_without_the_lock_it_would_be_told_as_cancelled_and_run(operator, sql, monkeypatch):
    sabotage(monkeypatch, "look", mechanism="FOR UPDATE")
    done, _, row = await cancelled_while_it_is_claimed(operator, sql)
    assert (done.result, row["state"], row["cancelled_by"]) == ("done", "running", None)


async def test_every_statement_can_be_prepared(operator):
    for name in QUERIES:
        await operator.connection.prepare(QUERIES.text(name, "postroad"))
