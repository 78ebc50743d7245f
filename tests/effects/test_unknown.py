"""Tests of outcomes that nobody knows: looked up before anything is repeated, within what can be believed."""

from __future__ import annotations

import asyncio

import pytest

from effects.bench import (
    IN_TIME,
    ask,
    charges,
    charging,
    eventually,
    looks,
    receipts,
    shop,
    states,
    unrecorded,
    without,
)
from effects.provider import BlindCards, Provider
from postroad.clock import SYSTEM_CLOCK, hours, seconds
from postroad.effects import Done, decide, ledger, operate, store
from postroad.effects.decide import State
from postroad.signals.catalog import EffectNeedsPerson
from postroad.sql import Statement
from work.bench import SCHEMA
from work.jobbench import until_empty

WAITS_FOR_A_PERSON = "SELECT state = 'scheduled' AND run_at > now() + interval '5 minutes' FROM work"
"""Where its worker lost the lease it is asked again after 30 s, and only then waits for that long."""

# --- outcomes that nobody knows -----------------------------------------------------------------------------------


async def one_charge(here, sql, runtime_url, charge, provider, *, after=None) -> None:
    """One job until it has its outcome."""
    async with shop(here, runtime_url, charge, provider, charging(charge)):
        await ask(sql, "a")
        if after is not None:
            await after()
        await until_empty(sql)


@pytest.mark.parametrize("how", ["act-hang", "act-500", "nonsense", "numbered"])
async def test_what_acted_without_an_answer_is_looked_up_and_never_repeated(here, sql, runtime_url, how):
    with Provider(how) as provider:
        await one_charge(here, sql, runtime_url, charges(), provider)
    assert provider.requests == {"a": 1}
    assert await receipts(sql) == [("a", "Done(ref='ref-a-1')")]
    assert await looks(sql) == ["done succeeded"]
    assert await sql.fetchval("SELECT attempt FROM finished") == 1


@pytest.mark.sabotage
async def test_without_its_record_a_look_up_is_seen_to_have_none(here, sql, runtime_url, monkeypatch):
    monkeypatch.setattr("postroad.effects.resolver.record", lambda *_: iter(()))
    with Provider("act-500") as provider:
        await one_charge(here, sql, runtime_url, charges(), provider)
    assert await unrecorded(sql) == [("reconciling", "succeeded")]


@pytest.mark.sabotage
async def test_without_the_look_up_what_acted_would_be_repeated(here, sql, runtime_url, monkeypatch):
    monkeypatch.setattr(ledger, "doubtful", lambda _: State.NOT_FOUND)
    with Provider("act-500") as provider:
        await one_charge(here, sql, runtime_url, charges(), provider)
    assert provider.acts == {"a": 2}


async def test_only_a_proven_absence_is_sent_again_and_under_the_same_provider_key(here, sql, runtime_url):
    with Provider("500", "hang") as provider:
        await one_charge(here, sql, runtime_url, charges(), provider)
    assert provider.acts == {"a": 1}
    assert provider.requests == {"a": 3}
    assert len(provider.keys["a"]) == 1
    found = await looks(sql)
    assert found.count("absent not_found") == 2
    assert await sql.fetchval("SELECT attempt FROM effect") == 3


async def late(here, sql, runtime_url, settle: float) -> Provider:
    """The first request arrives when its sender has long given up, and look-ups say that there is nothing."""
    charge = charges(timeout=seconds(0.3), settle=seconds(settle))
    with Provider("late") as provider:

        async def arrives() -> None:
            async with asyncio.timeout(20):
                while provider.looks["a"] < 2:  # noqa: ASYNC110 - another thread counts
                    await asyncio.sleep(0.01)
            provider.let_go()

        await one_charge(here, sql, runtime_url, charge, provider, after=arrives)
    return provider


async def test_an_absence_proves_nothing_while_the_request_may_still_arrive(here, sql, runtime_url):
    provider = await late(here, sql, runtime_url, settle=5)
    assert provider.acts == {"a": 1}
    assert "absent unknown" in await looks(sql)


@pytest.mark.sabotage
async def test_without_the_settling_time_a_late_request_and_its_repeat_both_act(here, sql, runtime_url, monkeypatch):
    monkeypatch.setattr("postroad.effects.resolver.concluded", _believing)
    charge = charges(timeout=seconds(0.3), settle=seconds(60))
    with Provider("late") as provider:
        await one_charge(here, sql, runtime_url, charge, provider)
        provider.let_go()
        async with asyncio.timeout(20):
            while provider.acts["a"] < 2:  # noqa: ASYNC110 - another thread counts
                await asyncio.sleep(0.01)


def _believing(effect, entry, answer, *, chance):
    """Every absence is taken for one."""
    return decide.Conclusion(state=State.NOT_FOUND, answer="absent")


@pytest.mark.parametrize(("answers", "acts"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.sabotage)])
async def test_as_many_look_ups_must_agree_as_the_effect_asks_for(here, sql, runtime_url, answers, acts):
    with Provider("act-500", lag=1) as provider:
        await one_charge(here, sql, runtime_url, charges(answers=answers, settle=seconds(0)), provider)
    assert provider.acts == {"a": acts}


async def test_a_look_up_that_fails_says_nothing_and_is_asked_again(here, sql, runtime_url):
    charge = charges()
    with Provider("act-500") as provider:
        provider.blind = True
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            await eventually(sql, "SELECT looks > 2 FROM effect", True)
            provider.blind = False
            await until_empty(sql)
    assert provider.acts == {"a": 1}
    assert set(await looks(sql)) == {"unknown unknown", "done succeeded"}


# --- a provider's memory ------------------------------------------------------------------------------------------


async def forgetful(here, sql, runtime_url) -> Provider:
    """The provider acts, forgets the key, and only then can be asked."""
    charge = charges(key_window=seconds(1.5), settle=seconds(0.1))
    with Provider("act-500", window=1.5) as provider:
        provider.blind = True
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            await eventually(sql, "SELECT valid_until < clock_timestamp() FROM effect", True)
            provider.blind = False
            await eventually(sql, "SELECT state IN ('manual', 'succeeded') FROM effect", True)
    return provider


async def test_once_the_provider_may_have_forgotten_the_key_a_person_decides(here, sql, runtime_url):
    provider = await forgetful(here, sql, runtime_url)
    assert provider.acts == {"a": 1}
    assert await states(sql) == {"a": "manual"}
    assert len(here.heard.of(EffectNeedsPerson)) == 1


@pytest.mark.sabotage
async def test_without_the_key_window_what_was_forgotten_is_done_again(here, sql, runtime_url, monkeypatch):
    monkeypatch.setattr(decide, "in_window", lambda *_: True)
    without(monkeypatch, "conclude", IN_TIME)
    assert (await forgetful(here, sql, runtime_url)).acts == {"a": 2}


async def test_without_a_look_up_a_person_decides(here, sql, runtime_url):
    charge = charges(BlindCards)
    with Provider("act-500") as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            await here.heard.wait(EffectNeedsPerson)
            await eventually(sql, WAITS_FOR_A_PERSON, True, within=45)
    assert provider.requests == {"a": 1}
    assert await states(sql) == {"a": "manual"}


async def test_without_a_look_up_a_key_that_the_provider_remembers_is_one(here, sql, runtime_url, monkeypatch):
    monkeypatch.setattr(ledger, "patience", lambda _: seconds(0.05))
    with Provider("act-500", honours=True) as provider:
        await one_charge(here, sql, runtime_url, charges(BlindCards, key_window=hours(24)), provider)
    assert provider.acts == {"a": 1}
    assert provider.requests == {"a": 2}
    assert await looks(sql) == ["repeat sent"]


async def test_what_cannot_be_repeated_any_more_is_left_to_a_person(here, sql, runtime_url):
    charge = charges(BlindCards, key_window=seconds(1))
    with Provider("act-500", honours=True) as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            await eventually(sql, "SELECT state FROM effect", "manual")
    assert provider.acts == {"a": 1}


async def resolved(here, sql, runtime_url) -> None:
    """A job waits for an outcome that nobody can look up; then a person says what became of it."""
    charge = charges(BlindCards)
    with Provider("act-500") as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            await eventually(sql, WAITS_FOR_A_PERSON, True, within=45)
            number = await sql.fetchval("SELECT id FROM effect")
            await here.run(operate.resolve(SCHEMA, number, Done("by hand"), by="ada", reason=None))
            await until_empty(sql, within=5)
    assert provider.requests == {"a": 1}


async def test_what_waits_for_a_person_goes_on_at_once_when_the_word_is_said(here, sql, runtime_url):
    await resolved(here, sql, runtime_url)
    assert await receipts(sql) == [("a", "Done(ref='by hand')")]


@pytest.mark.sabotage
async def test_without_waking_what_waits_would_sit_out_its_time(here, sql, runtime_url, monkeypatch):
    monkeypatch.setattr("postroad.effects.resolver.bring_forward", _nobody)
    with pytest.raises(TimeoutError):
        await resolved(here, sql, runtime_url)


def _nobody(_schema, rows):
    yield Statement("SELECT 1")
    return frozenset(rows)


async def test_outcomes_are_forgotten_after_their_time_and_nothing_open_ever_is(here, sql, runtime_url):
    charge = charges(BlindCards)
    with Provider("act-500") as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a", "b")
            await eventually(sql, "SELECT string_agg(state, ' ' ORDER BY state) FROM effect", "manual succeeded")
    await sql.execute("UPDATE effect SET intended_at = '2020-01-01', sent_at = '2020-01-01'")
    assert await here.run(store.forget(SCHEMA, now=SYSTEM_CLOCK.now())) == 0
    assert await here.run(store.forget(SCHEMA, now=SYSTEM_CLOCK.now() + store.REMEMBERED + hours(1))) == 1
    assert [*(await states(sql)).values()] == ["manual"]
