"""Erasing a person's data, and effects: nothing of theirs stays in the ledger, nothing happens twice for want of it."""

from __future__ import annotations

import pytest

from effects.bench import ask, charges, charging, eventually, looks, receipts, shop, states
from effects.provider import Charge, Provider
from effects.test_app import billing, place, settings_of, until
from postroad.effects import operate, store
from postroad.runtime.erasure import redact
from postroad.runtime.settings import POSTGRES
from work.bench import SCHEMA
from work.jobbench import until_empty


async def kept(sql, charge, state: str) -> int:
    """An effect of the payment ``a`` in `state`, whose command has been erased."""
    request = charge.request(Charge(payment="a"))
    return await sql.fetchval(
        "INSERT INTO effect (name, key, fingerprint, provider_key, state, attempt, run, sent_at)"
        " VALUES ($1, $2, $3, $4, $5, 1, 0, clock_timestamp()) RETURNING id",
        charge.name, request.key, request.fingerprint, request.provider_key, state,
    )  # fmt: skip


async def sent_again(here, sql, runtime_url) -> Provider:
    """What was erased is proven absent; a run that has its command still sends it, and its answer is lost."""
    charge = charges()
    await kept(sql, charge, "not_found")
    with Provider("act-500") as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            await eventually(sql, "SELECT state IN ('succeeded', 'manual') FROM effect", True)
            if await states(sql) == {"a": "succeeded"}:
                await until_empty(sql)
    return provider


async def test_what_was_erased_can_be_looked_up_again_once_a_run_has_sent_it_again(here, sql, runtime_url):
    provider = await sent_again(here, sql, runtime_url)
    assert provider.acts == {"a": 1}
    assert await receipts(sql) == [("a", "Done(ref='ref-a-1')")]
    assert await looks(sql) == ["done succeeded"]


@pytest.mark.sabotage
async def test_without_its_command_what_was_sent_again_could_not_be_looked_up(here, sql, runtime_url, monkeypatch):
    text = store.QUERIES._texts["send"].replace("coalesce(command, $7)", "left(encode($7, 'hex'), 0)::bytea")
    monkeypatch.setattr(store.QUERIES, "_rendered", {})
    monkeypatch.setitem(store.QUERIES._texts, "send", text)
    await sent_again(here, sql, runtime_url)
    assert await states(sql) == {"a": "manual"}


async def test_a_look_up_that_a_person_asks_for_says_that_the_command_was_erased(here, sql, runtime_url):
    charge = charges()
    number = await kept(sql, charge, "manual")
    with Provider() as provider:
        async with shop(here, runtime_url, charge, provider):
            await here.run(operate.look_up(SCHEMA, number, by="ada", reason=None))
            await eventually(sql, "SELECT reason FROM effect", "its command was erased on request")
    assert await states(sql) == {"a": "manual"}
    assert provider.looks == {}
    assert (await looks(sql))[-1] == "failed manual"


async def test_a_delivery_that_waits_for_an_outcome_is_dropped_and_its_effect_looked_up(runtime_url, author_url, sql):
    settings = settings_of(runtime_url, POSTGRES)
    with Provider("act-500") as provider:
        provider.blind = True
        async with billing(provider, settings) as placed:
            await place(author_url, placed, "o1")
            await until(sql, "SELECT state = 'scheduled' FROM work")
            done = await redact(settings, "o1", reason="asked for it", by="ada")
            assert (done.log, done.work, done.effects, done.in_doubt) == (1, 1, 0, 1)
            provider.blind = False
            await until(sql, "SELECT outcome = 'dropped' FROM inbox")
            await until(sql, "SELECT state = 'succeeded' FROM effect")
    assert provider.requests == {"o1": 1}
    assert await receipts(sql) == []
