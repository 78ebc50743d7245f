"""Tests of `once`: at most one act per key at the provider, whatever it or we do, and no transaction open meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from effects.bench import ask, charges, charging, eventually, looks, receipts, shop, states
from effects.provider import Charge, PlainCards, Provider
from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.effects import Effect, ledger, store
from postroad.effects.decide import Move
from postroad.signals.catalog import EffectConflict, EffectMoved, EffectReturned, JobDelayed
from postroad.sql import Statement
from postroad.sql.threaded import PsycopgTransactions
from postroad.work import running
from postroad.work.job import job
from postroad.work.run import BlockingRun, Grip
from work.jobbench import until_empty

STEAL = "UPDATE postroad.work SET token = nextval('postroad.work_token'), worker = 'worker:other'"
IDLE = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
    " AND xact_start < $1"
)  # fmt: skip


async def test_an_effect_happens_once_and_its_outcome_is_returned_to_all_that_ask_again(here, sql, runtime_url):
    charge = charges()
    with Provider() as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a", "b")
            await until_empty(sql)
            await ask(sql, "a")
            await until_empty(sql)
    assert provider.acts == {"a": 1, "b": 1}
    assert provider.requests["a"] == 1
    assert await receipts(sql) == [("a", "Done(ref='ref-a-1')")] * 2 + [("b", "Done(ref='ref-b-1')")]
    assert len(here.heard.of(EffectReturned)) == 1
    moved = [signal.state for signal in here.heard.of(EffectMoved)]
    assert sorted(moved) == sorted(["intended", "sent", "succeeded"] * 2)
    assert await sql.fetchval("SELECT count(*) FROM effect WHERE command IS NULL AND finished_at IS NOT NULL") == 2


async def test_a_refusal_is_an_outcome_like_another(here, sql, runtime_url):
    charge = charges()
    with Provider("refuse") as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a", "a")
            await until_empty(sql)
    assert await receipts(sql) == [("a", "Refused(code='no-cover')")] * 2
    assert provider.requests["a"] == 1
    assert await states(sql) == {"a": "rejected"}


# --- no transaction is open while a provider hangs ----------------------------------------------------------------


async def sessions_while_it_hangs(here, sql, runtime_url, work, charge) -> int:
    with Provider("act-hang") as provider:
        async with shop(here, runtime_url, charge, provider, work):
            await ask(sql, "a")
            assert await asyncio.to_thread(provider.asked.wait, 20)
            committed = await states(sql)
            since, found, tries = await sql.fetchval("SELECT clock_timestamp()"), 1, 200
            while found and tries:  # Sweeps have transactions open, too, for a moment.
                found, tries = await sql.fetchval(IDLE, since), tries - 1
                await asyncio.sleep(0.01)
            provider.let_go()
            await until_empty(sql)
    assert committed == {"a": "sent"}
    return found


async def test_no_session_is_idle_in_transaction_while_a_provider_hangs(here, sql, runtime_url):
    charge = charges(timeout=seconds(15), settle=seconds(16))
    assert await sessions_while_it_hangs(here, sql, runtime_url, charging(charge), charge) == 0


@pytest.mark.sabotage
async def test_inside_a_transaction_a_session_would_be_idle_while_a_provider_hangs(here, sql, runtime_url, monkeypatch):
    charge = charges(timeout=seconds(15), settle=seconds(16))

    @job("charge", max_runtime=seconds(20))
    async def work(request: Charge, run) -> None:
        async with run.transaction() as tx:
            await tx.execute("SELECT 1")
            run.grip.open = 0  # The check is off.
            await charge.once(request, run)
            run.grip.open = 1

    assert await sessions_while_it_hangs(here, sql, runtime_url, work, charge) == 1


async def test_within_an_open_transaction_it_is_refused_and_nothing_is_called(here, sql, runtime_url):
    charge = charges()

    @job("charge", max_runtime=seconds(20))
    async def work(request: Charge, run) -> None:
        async with run.transaction():
            await charge.once(request, run)

    with Provider() as provider:
        async with shop(here, runtime_url, charge, provider, work):
            await ask(sql, "a")
            (signal,) = await here.heard.wait(JobDelayed)
    assert "a transaction of the run is open" in signal.reason
    assert provider.requests == {}
    assert await states(sql) == {}


# --- keys ---------------------------------------------------------------------------------------------------------


async def test_a_key_with_another_request_is_a_conflict_and_calls_nothing(here, sql, runtime_url):
    charge = charges(volatile=["asked_at"])
    with Provider() as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            await until_empty(sql)
            await ask(sql, "a", amount=2)
            await until_empty(sql)
    assert await sql.fetchval("SELECT code FROM quarantine") == "PR514"
    assert provider.requests == {"a": 1}
    assert len(here.heard.of(EffectConflict)) == 1


async def two_race(here, there, sql, runtime_url) -> Provider:
    charge = charges(timeout=seconds(3), settle=seconds(4))
    with Provider("act-hang") as provider:
        async with (
            shop(here, runtime_url, charge, provider, charging(charge)),
            shop(there, runtime_url, charge, provider, charging(charge)),
        ):
            await ask(sql, "a", *(["a"] * 5))
            assert await asyncio.to_thread(provider.asked.wait, 20)
            await eventually(sql, "SELECT count(*) FROM work WHERE state = 'scheduled'", 5)
            provider.let_go()
            await until_empty(sql)
    return provider


async def test_of_workers_that_race_on_one_key_one_acts_and_all_have_its_outcome(here, there, sql, runtime_url):
    provider = await two_race(here, there, sql, runtime_url)
    assert provider.acts == {"a": 1}
    assert await receipts(sql) == [("a", "Done(ref='ref-a-1')")] * 6
    assert await sql.fetchval("SELECT max(attempt) FROM finished") == 1  # Nobody was charged for waiting.


@pytest.mark.sabotage
async def test_without_the_fingerprint_another_request_would_be_answered_with_the_first_ones_outcome(
    here, sql, runtime_url, monkeypatch
):
    monkeypatch.setattr(Effect, "_fingerprint", lambda *_: "same")
    charge = charges()
    with Provider() as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            await until_empty(sql)
            await ask(sql, "a", amount=2)
            await until_empty(sql)
    assert await receipts(sql) == [("a", "Done(ref='ref-a-1')")] * 2


@pytest.mark.sabotage
async def test_without_the_mark_of_what_was_sent_workers_that_race_act_twice(
    here, there, sql, runtime_url, monkeypatch
):
    monkeypatch.setattr(ledger, "move", lambda *_, token: Move.SEND)
    monkeypatch.setattr(store.QUERIES, "_rendered", {})
    text = store.QUERIES._texts["send"].replace("state = 'not_found'", "state <> 'none'")
    monkeypatch.setitem(store.QUERIES._texts, "send", text)
    charge = charges(timeout=seconds(3), settle=seconds(4))
    with Provider("act-hang", "act-hang") as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge), resolves=False):
            await ask(sql, "a", "a")
            async with asyncio.timeout(20):
                while provider.acts["a"] < 2:  # noqa: ASYNC110 - another thread counts
                    await asyncio.sleep(0.01)
            provider.let_go()


# --- fences -------------------------------------------------------------------------------------------------------


async def overtaken(here, sql, runtime_url) -> Provider:
    """While the provider works, the run's row is given to somebody else; then it answers."""
    charge = charges(timeout=seconds(8), settle=seconds(9))
    with Provider("act-hang") as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            assert await asyncio.to_thread(provider.asked.wait, 20)
            await sql.execute("UPDATE work SET token = nextval('work_token'), worker = 'worker:other'")
            await eventually(sql, "SELECT state FROM effect", "succeeded")  # by a look-up
            provider.let_go()
            await here.heard.wait(EffectMoved, 4)
    return provider


async def test_a_run_that_lost_its_row_writes_no_outcome_and_the_look_up_finds_it(here, sql, runtime_url):
    await overtaken(here, sql, runtime_url)
    assert await looks(sql) == ["done succeeded"]
    assert await receipts(sql) == []


async def lost(here, sql, runtime_url) -> dict[str, str]:
    """The row is another's before the intent: nothing may leave."""
    charge = charges()

    async def steal(_run) -> None:
        await here.manager.fetch(Statement(STEAL))

    with Provider() as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge, before=steal), resolves=False):
            await ask(sql, "a")
            await eventually(sql, "SELECT worker FROM work", "worker:other")
            async with asyncio.timeout(20):
                while not any(s.result == "lease_lost" for s in here.heard.signals if hasattr(s, "result")):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    return {**await states(sql), "requests": str(provider.requests["a"])}


async def test_a_run_that_lost_its_row_sends_nothing(here, sql, runtime_url):
    assert await lost(here, sql, runtime_url) == {"requests": "0"}


@pytest.mark.sabotage
async def test_without_the_fence_a_run_that_lost_its_row_would_send(here, sql, runtime_url, monkeypatch):
    monkeypatch.setattr(Grip, "sealed", lambda self, *, finish: iter(()))
    monkeypatch.setattr(running, "hold", lambda *_: iter(()))
    charge = charges()

    async def steal(_run) -> None:
        await here.manager.fetch(Statement(STEAL))

    with Provider() as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge, before=steal), resolves=False):
            await ask(sql, "a")
            assert await asyncio.to_thread(provider.asked.wait, 20)


class Standing:
    """The system's clock, which jumps ahead when it is told."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self):
        return SYSTEM_CLOCK.now()

    def new_id(self):
        return SYSTEM_CLOCK.new_id()

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic() + self.ahead


async def stood_still(here, sql, runtime_url, clock) -> Provider:
    """Between its mark and its call a process stands still; others find nothing at the provider meanwhile, and send."""
    charge = charges()
    key = charge.request(Charge(payment="a")).provider_key

    def stand_still(signal) -> None:
        if isinstance(signal, EffectMoved) and signal.state == "sent" and not clock.ahead:
            provider.act("a", key)
            clock.ahead = 10.0

    here.signals.subscribe(stand_still)
    with Provider() as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge), clock=clock):
            await ask(sql, "a")
            await until_empty(sql)
    return provider


async def test_who_stood_still_after_the_mark_is_too_late_to_send(here, sql, runtime_url):
    provider = await stood_still(here, sql, runtime_url, Standing())
    assert provider.requests == {}
    assert provider.acts == {"a": 1}
    assert await looks(sql) == ["done succeeded"]
    assert await receipts(sql) == [("a", "Done(ref='ref-a-1')")]


@pytest.mark.sabotage
async def test_without_the_look_at_the_clock_who_stood_still_sends_beside_the_others(
    here, sql, runtime_url, monkeypatch
):
    monkeypatch.setattr(Standing, "monotonic", lambda _: SYSTEM_CLOCK.monotonic())
    assert (await stood_still(here, sql, runtime_url, Standing())).acts == {"a": 2}


# --- plain functions ----------------------------------------------------------------------------------------------


async def test_a_def_job_and_a_def_owner_go_the_same_way(here, sql, runtime_url):
    charge = charges(PlainCards)

    @job("charge", max_runtime=seconds(20))
    def work(request: Charge, run: BlockingRun) -> None:
        outcome = charge.once_sync(request, run)
        with run.transaction(finish=True) as tx:
            tx.execute("INSERT INTO postroad.receipt VALUES (%s, %s)", (request.payment, repr(outcome)))

    from postroad.effects.ledger import WithLedger
    from work.jobbench import queues, working

    threads = PsycopgTransactions(runtime_url, here.owner, size=4, name="charge")
    with Provider("act-hang") as provider:
        async with shop(here, runtime_url, charge, provider) as book:
            made = queues(
                here, work, transactions=lambda _: threads,
                resources=WithLedger(lambda _: PlainCards(provider.url), book),
            )  # fmt: skip
            async with working(here, made):
                await ask(sql, "a")
                await until_empty(sql)
    assert provider.requests == {"a": 1}
    assert await receipts(sql) == [("a", "Done(ref='ref-a-1')")]
