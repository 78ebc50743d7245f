"""Tests of a provider that hangs: no transaction is open meanwhile, and what it says late changes nothing."""

from __future__ import annotations

import asyncio

import pytest

from effects.bench import ask, charges, charging, eventually, looks, receipts, shop, states, without
from effects.provider import Provider
from effects.test_app import billing, place, settings_of, until
from effects.test_once import IDLE, STEAL
from postroad.clock import seconds
from postroad.effects import Done, operate
from postroad.runtime.settings import POSTGRES
from postroad.signals.catalog import EffectAnswered, WorkSettled
from postroad.work import running
from postroad.work.run import Grip
from work.bench import SCHEMA
from work.jobbench import until_empty

PATIENT = {"timeout": seconds(8), "settle": seconds(9)}


async def idle(sql) -> int:
    """How many sessions stay in a transaction that they had open when this began; sweeps have some for a moment."""
    since, found, tries = await sql.fetchval("SELECT clock_timestamp()"), 1, 200
    while found and tries:
        found, tries = await sql.fetchval(IDLE, since), tries - 1
        await asyncio.sleep(0.01)
    return found


async def asked(provider: Provider, payment: str) -> None:
    async with asyncio.timeout(20):
        while not provider.looks[payment]:  # noqa: ASYNC110 - another thread counts
            await asyncio.sleep(0.01)


async def test_no_session_is_idle_in_transaction_while_a_consumers_provider_hangs(runtime_url, author_url, sql):
    with Provider("act-late") as provider:
        async with billing(provider, settings_of(runtime_url, POSTGRES), **PATIENT) as placed:
            await place(author_url, placed, "o1")
            assert await asyncio.to_thread(provider.asked.wait, 20)
            assert await idle(sql) == 0
            assert await states(sql) == {"o1": "sent"}
            provider.let_go()
            await until(sql, "SELECT outcome = 'handled' FROM inbox")
    assert await receipts(sql) == [("o1", "Done(ref='ref-o1-1')")]


async def test_a_look_up_that_hangs_holds_no_session_and_no_other_look_up(here, sql, runtime_url):
    charge = charges(**PATIENT)
    with Provider("act-500", "act-500") as provider:
        provider.mute = {"a"}
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            await asked(provider, "a")
            await ask(sql, "b")
            await eventually(sql, "SELECT state FROM effect WHERE key = 'b'", "succeeded")
            assert await idle(sql) == 0
            assert (await states(sql))["a"] == "reconciling"
            provider.let_go()
            await until_empty(sql)
    assert provider.acts == {"a": 1, "b": 1}


async def test_what_a_look_up_says_after_another_took_it_over_changes_nothing(here, sql, runtime_url):
    charge = charges(**PATIENT)
    with Provider("act-500") as provider:
        provider.mute = {"a"}
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            await asked(provider, "a")
            provider.mute = set()
            await sql.execute("UPDATE effect SET next_check_at = clock_timestamp()")  # as if its time were over
            await until_empty(sql)
            provider.let_go()
    assert provider.looks == {"a": 2}
    assert await looks(sql) == ["done succeeded"]


# --- what a late answer meets -----------------------------------------------------------------------------------------


async def contradicted(here, sql, runtime_url) -> str:
    """While the provider works its run loses the row, and a person says what became of it; then it answers."""
    charge = charges(**PATIENT)
    with Provider("act-late") as provider:
        provider.blind = True
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            assert await asyncio.to_thread(provider.asked.wait, 20)
            await sql.execute(STEAL)
            await eventually(sql, "SELECT looks > 0 FROM effect", True)
            number = await sql.fetchval("SELECT id FROM effect")
            await here.run(operate.resolve(SCHEMA, number, Done("by hand"), by="ada", reason=None))
            provider.let_go()
            await here.heard.wait(EffectAnswered)
            await here.heard.wait(WorkSettled)
            return str(await sql.fetchval("SELECT outcome FROM effect"))


async def test_an_answer_that_comes_after_the_run_has_lost_its_row_changes_no_outcome(here, sql, runtime_url):
    assert await contradicted(here, sql, runtime_url) == "by hand"
    assert await receipts(sql) == []


@pytest.mark.sabotage
async def test_without_fences_a_late_answer_would_change_a_known_outcome(here, sql, runtime_url, monkeypatch):
    without(monkeypatch, "settle", "token = $2 AND state = 'sent'", "$2::bigint IS NOT NULL")
    monkeypatch.setattr(Grip, "sealed", lambda self, *, finish: iter(()))
    monkeypatch.setattr(running, "hold", lambda *_: iter(()))
    assert await contradicted(here, sql, runtime_url) == "ref-a-1"
