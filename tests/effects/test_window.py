"""Tests of what a provider's memory of keys still proves, where a process has stood still meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from effects.bench import IN_TIME, ask, charges, charging, eventually, looks, shop, states, without
from effects.provider import BlindCards, Provider
from postroad.clock import seconds
from postroad.effects import ledger
from postroad.effects.ledger import Ledger
from postroad.effects.resolver import Resolver
from postroad.signals.catalog import EffectMoved, JobDelayed
from postroad.sql import Statement

FORGOTTEN = "SELECT count(*) > 0 AS past FROM postroad.effect WHERE valid_until < clock_timestamp() - interval '0.5 s'"
"""Counted from when the request was sent, which is before the provider acts."""


async def forgotten(here) -> None:
    """The provider has forgotten the key, as far as anybody can know."""
    async with asyncio.timeout(20):
        while not (await here.manager.fetch(Statement(FORGOTTEN)))[0]["past"]:  # noqa: ASYNC110 - a database tells nothing by itself
            await asyncio.sleep(0.01)


async def acted(provider: Provider, times: int) -> None:
    async with asyncio.timeout(20):
        while provider.acts["a"] < times:  # noqa: ASYNC110 - another thread counts
            await asyncio.sleep(0.01)


# --- a repeat that stood still before it left -------------------------------------------------------------------------


def standing_still(monkeypatch, here) -> None:
    """A run that has decided to repeat stands still until the provider has forgotten the key."""
    send = Ledger._send

    async def late(self, *args, repeat, **given):
        if repeat:
            await forgotten(here)
        return await send(self, *args, repeat=repeat, **given)

    monkeypatch.setattr(Ledger, "_send", late)
    monkeypatch.setattr(ledger, "patience", lambda _: seconds(0.05))


async def test_a_repeat_leaves_only_while_the_provider_remembers_the_key(here, sql, runtime_url, monkeypatch):
    standing_still(monkeypatch, here)
    charge = charges(BlindCards, key_window=seconds(1.5))
    with Provider("act-500", honours=True, window=1.5) as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge), resolves=False):
            await ask(sql, "a")
            await forgotten(here)
            await here.heard.wait(JobDelayed, len(here.heard.of(JobDelayed)) + 1)
    assert provider.requests == {"a": 1}
    assert await states(sql) == {"a": "unknown"}


@pytest.mark.sabotage
async def test_without_looking_again_a_repeat_that_stood_still_acts_twice(here, sql, runtime_url, monkeypatch):
    standing_still(monkeypatch, here)
    without(monkeypatch, "send", "valid_until > clock_timestamp() + $8::interval", "$8::interval IS NOT NULL")
    charge = charges(BlindCards, key_window=seconds(1.5))
    with Provider("act-500", honours=True, window=1.5) as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge), resolves=False):
            await ask(sql, "a")
            await acted(provider, 2)


async def test_what_can_be_repeated_no_more_leaves_unknown_with_that_look_on_record(here, sql, runtime_url):
    charge = charges(BlindCards, key_window=seconds(1))
    with Provider("act-500", honours=True) as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            await eventually(sql, "SELECT state FROM effect", "manual")
    assert await looks(sql) == ["too late manual"]


# --- a look-up that stood still ---------------------------------------------------------------------------------------


async def forgotten_meanwhile(here, sql, runtime_url, monkeypatch) -> Provider:
    """A look-up begins in time and stands still; when it asks, the provider has forgotten what it did."""
    concluded, resolve, noted = Resolver._concluded, Resolver._resolve, asyncio.Event()

    async def late(self, effect, entry):
        await forgotten(here)
        return await concluded(self, effect, entry)

    async def told(self, entry):
        await resolve(self, entry)
        noted.set()

    monkeypatch.setattr(Resolver, "_concluded", late)
    monkeypatch.setattr(Resolver, "_resolve", told)
    charge = charges(key_window=seconds(1.5), settle=seconds(0))
    with Provider("act-500", window=1.5) as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            await asyncio.wait_for(noted.wait(), 20)
            await sql.execute("UPDATE effect SET next_check_at = clock_timestamp() WHERE state = 'reconciling'")
            await eventually(sql, "SELECT state IN ('manual', 'succeeded') FROM effect", True)
    return provider


async def test_an_absence_that_is_noted_after_the_provider_has_forgotten_proves_nothing(
    here, sql, runtime_url, monkeypatch
):
    provider = await forgotten_meanwhile(here, sql, runtime_url, monkeypatch)
    assert provider.acts == {"a": 1}
    assert await states(sql) == {"a": "manual"}
    assert "not_found" not in {signal.state for signal in here.heard.of(EffectMoved)}


@pytest.mark.sabotage
async def test_without_looking_at_the_clock_a_late_absence_has_it_done_again(here, sql, runtime_url, monkeypatch):
    without(monkeypatch, "conclude", IN_TIME)
    assert (await forgotten_meanwhile(here, sql, runtime_url, monkeypatch)).acts == {"a": 2}
