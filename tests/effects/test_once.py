"""Tests of `once`: at most one act per key at the provider, whatever it or we do, and no transaction open meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from effects.bench import ask, charges, charging, eventually, looks, receipts, shop, states
from effects.provider import BlindCards, Charge, PlainCards, Provider
from postroad.clock import SYSTEM_CLOCK, hours, seconds
from postroad.effects import Done, Effect, decide, ledger, operate, store
from postroad.effects.decide import Move, State
from postroad.signals.catalog import EffectConflict, EffectMoved, EffectNeedsPerson, EffectReturned, JobDelayed
from postroad.sql import Statement
from postroad.sql.threaded import PsycopgTransactions
from postroad.work import running
from postroad.work.job import job
from postroad.work.run import BlockingRun, Grip
from work.bench import SCHEMA
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
            since, found, tries = await sql.fetchval("SELECT clock_timestamp()"), 1, 200
            while found and tries:  # Sweeps have transactions open, too, for a moment.
                found, tries = await sql.fetchval(IDLE, since), tries - 1
                await asyncio.sleep(0.01)
            committed = await states(sql)
            provider.let_go()
            await until_empty(sql)
    assert committed == {"a": "sent"}
    return found


async def test_no_session_is_idle_in_transaction_while_a_provider_hangs(here, sql, runtime_url):
    charge = charges(timeout=seconds(5), settle=seconds(6))
    assert await sessions_while_it_hangs(here, sql, runtime_url, charging(charge), charge) == 0


@pytest.mark.sabotage
async def test_inside_a_transaction_a_session_would_be_idle_while_a_provider_hangs(here, sql, runtime_url, monkeypatch):
    charge = charges(timeout=seconds(5), settle=seconds(6))

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


# --- outcomes that nobody knows -----------------------------------------------------------------------------------


async def one_charge(here, sql, runtime_url, charge, provider, *, after=None) -> None:
    """One job until it has its outcome."""
    async with shop(here, runtime_url, charge, provider, charging(charge)):
        await ask(sql, "a")
        if after is not None:
            await after()
        await until_empty(sql)


@pytest.mark.parametrize("how", ["act-hang", "act-500", "nonsense"])
async def test_what_acted_without_an_answer_is_looked_up_and_never_repeated(here, sql, runtime_url, how):
    with Provider(how) as provider:
        await one_charge(here, sql, runtime_url, charges(), provider)
    assert provider.requests == {"a": 1}
    assert await receipts(sql) == [("a", "Done(ref='ref-a-1')")]
    assert await looks(sql) == ["done succeeded"]
    assert await sql.fetchval("SELECT attempt FROM finished") == 1


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
    assert (await forgetful(here, sql, runtime_url)).acts == {"a": 2}


async def test_without_a_look_up_a_person_decides(here, sql, runtime_url):
    charge = charges(BlindCards)
    with Provider("act-500") as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge)):
            await ask(sql, "a")
            await here.heard.wait(EffectNeedsPerson)
            await eventually(sql, "SELECT state FROM work", "scheduled")
    assert provider.requests == {"a": 1}
    assert await states(sql) == {"a": "manual"}
    assert await sql.fetchval("SELECT run_at > now() + interval '5 minutes' FROM work")


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
            await eventually(sql, "SELECT state FROM work", "scheduled")
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


async def test_who_stood_still_after_the_mark_is_too_late_to_send(here, sql, runtime_url):
    charge, clock = charges(), Standing()

    def stand_still(signal) -> None:
        if isinstance(signal, EffectMoved) and signal.state == "sent" and not clock.ahead:
            clock.ahead = 10.0

    here.signals.subscribe(stand_still)
    with Provider() as provider:
        async with shop(here, runtime_url, charge, provider, charging(charge), clock=clock):
            await ask(sql, "a")
            await until_empty(sql)
    assert provider.requests == {"a": 1}  # by the run after the look-up
    assert (await looks(sql))[-1] == "absent not_found"


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
