"""Leases as authors take them: for a block, with a wait, stopped at once when they are lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.errors import LeaseHeld, LeaseLost, Unavailable, UsageError
from postroad.leases import AsyncLease, Leases, interrupt
from postroad.leases.store import QUERIES
from postroad.signals.catalog import LateWriteRefused, LeaseGone, LeaseReleased, LeasesRenewed, LossReason
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.interrupt import Interrupt
from postroad.sql.manager import Manager
from postroad.testing.servers import TcpProxy

if TYPE_CHECKING:
    from leases.conftest import Process, Start

TTL = seconds(3)
ROW = "user:reports"


class Holder:
    """A process that takes leases, and its ears."""

    def __init__(self, process: Process, manager: Manager) -> None:
        self.process = process
        self.manager = manager
        self.ear = process.ear
        self.leases = Leases(
            process.keeper,
            manager,
            clock=SYSTEM_CLOCK,
            signals=process.signals,
            chance=lambda: 0.5,
            shortest=seconds(0.25),
        )


@pytest.fixture
async def holder(start: Start, runtime_url: str) -> AsyncIterator[Callable[..., Any]]:
    managers = []

    async def make(url: str = runtime_url) -> Holder:
        manager = await Manager.open(url, schema="postroad", size=4)
        managers.append(manager)
        return Holder(await start(url), manager)

    yield make
    for manager in managers:
        await manager.close()


@pytest.fixture
async def sql(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database, server_settings={"search_path": "postroad,public"})
    await connection.execute("CREATE TABLE public.written (token bigint, by text); GRANT ALL ON written TO PUBLIC")
    yield connection
    await connection.close()


async def fence(sql: asyncpg.Connection, row: str = ROW) -> None:
    async with sql.transaction():
        await drive(interrupt("postroad", row, by="ops", reason="a test"), AsyncpgHand(sql))


async def ever() -> None:
    await asyncio.Event().wait()


# --- taking, waiting, giving up -------------------------------------------------------------------------------------


async def test_one_holds_and_the_others_are_told_who(holder, row) -> None:
    one, two = await holder(), await holder()
    async with one.leases.hold("reports", ttl=TTL) as lease:
        assert (lease.name, lease.token, lease.held) == ("reports", 1, True)
        lease.check()
        says = rf"'reports' is held by process {one.process.holder} until .* UTC .*token 1.*later.*\[PR402\]"
        with pytest.raises(LeaseHeld, match=says):
            async with two.leases.hold("reports"):
                pass
        with pytest.raises(LeaseHeld, match="held by this process"):
            async with one.leases.hold("reports"):
                pass
        async with two.leases.hold("others", ttl=TTL):  # Another name is another matter.
            pass
    standing = await row(ROW)
    assert (standing["holder"], standing["token"]) == (None, 1)
    async with two.leases.hold("reports", ttl=TTL) as lease:
        assert lease.token == 2


async def test_who_waits_has_it_soon_after_the_release(holder) -> None:
    one, two = await holder(), await holder()
    order = []

    async def next_one() -> None:
        async with two.leases.hold("reports", ttl=TTL, wait=seconds(20)) as lease:
            order.append(f"two has {lease.token}")

    async with one.leases.hold("reports", ttl=TTL):
        waiting = asyncio.ensure_future(next_one())
        with pytest.raises(LeaseHeld, match=r"waited 0.3 s"):
            async with two.leases.hold("reports", wait=seconds(0.3)):
                pass
        order.append("one ends")
    await waiting
    assert order == ["one ends", "two has 2"]


async def test_a_cancelled_wait_takes_nothing(holder, row) -> None:
    one, two = await holder(), await holder()
    async with one.leases.hold("reports", ttl=TTL):
        waiting = asyncio.ensure_future(two.leases.hold("reports", wait=seconds(60)).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert (await row(ROW))["holder"] is None


@pytest.mark.parametrize("name", ["", " x", "x ", "a\nb", "nul\0", "\ud800", "x" * 201, 7, None])
async def test_a_name_that_nobody_could_mean_is_refused(holder, name) -> None:
    one = await holder()
    with pytest.raises(UsageError, match=r"not the name of a lease.*PR107"):
        async with one.leases.hold(name):
            pass


@pytest.mark.parametrize("name", ["reports daily", "shard:03", "Zürich/報告", "'; DROP TABLE lease; --", "x" * 200])
async def test_any_text_that_a_person_would_use_is_a_name_and_none_is_ours(holder, row, name) -> None:
    one = await holder()
    async with one.leases.hold(name, ttl=TTL) as lease:
        assert lease.name == name
        assert (await row(f"user:{name}"))["alive"]


@pytest.mark.parametrize(
    "given",
    [
        {"ttl": 60}, {"ttl": seconds(0)}, {"ttl": seconds(-1)}, {"ttl": timedelta(days=2)}, {"ttl": seconds(0.1)},
        {"wait": 5}, {"wait": seconds(-1)}, {"wait": timedelta(days=2)}, {"max_runtime": 60},
    ],
)  # fmt: skip
async def test_durations_are_durations_and_have_an_end(holder, given) -> None:
    one = await holder()
    with pytest.raises(UsageError, match=rf"{next(iter(given))}=.*seconds\(60\).*PR107"):
        async with one.leases.hold("reports", **given):
            pass


async def test_authors_may_not_ask_for_less_than_five_seconds(holder) -> None:
    one = await holder()
    leases = Leases(
        one.process.keeper, one.manager, clock=SYSTEM_CLOCK, signals=one.process.signals, chance=lambda: 0.5
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"ttl=.*not a duration from 0:00:05 to 1 day.*PR107"):
        async with leases.hold("reports", ttl=seconds(4.9)):
            pass
    async with leases.hold("reports", ttl=seconds(5)) as lease:
        assert lease.held


async def test_several_names_nest(holder) -> None:
    one = await holder()
    async with one.leases.hold("a", ttl=TTL) as a, one.leases.hold("b", ttl=TTL) as b:
        assert a.held
        assert b.held


async def test_a_database_that_is_away_is_told_at_once_or_waited_for(holder, runtime_url) -> None:
    with TcpProxy(urlsplit(runtime_url).port) as line:
        one = await holder(runtime_url.replace(f":{urlsplit(runtime_url).port}", f":{line.port}"))
        line.cut()
        with pytest.raises(Unavailable):
            async with one.leases.hold("reports"):
                pass
        began = time.monotonic()
        with pytest.raises(Unavailable):
            async with one.leases.hold("reports", wait=seconds(0.4)):
                pass
        assert time.monotonic() - began >= 0.4
        waiting = asyncio.ensure_future(one.leases.hold("reports", ttl=TTL, wait=seconds(20)).__aenter__())
        await asyncio.sleep(0)
        line.heal()
        assert (await waiting).token == 1


# --- loss -----------------------------------------------------------------------------------------------------------


async def test_an_operators_fence_cancels_the_block_at_the_next_renewal(holder, sql, row) -> None:
    one = await holder()
    leases = []

    async def work() -> None:
        async with one.leases.hold("reports", ttl=TTL) as lease:
            leases.append(lease)
            await fence(sql)
            await ever()

    with pytest.raises(LeaseLost, match=r"'reports' \(token 1\).*PR401"):
        await work()
    assert not leases[0].held
    await one.ear.wait(LeaseGone, kind="user", reason=LossReason.FENCED)
    assert one.ear.all(LeaseReleased) == [], "what is lost is not released"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    standing = await row(ROW)
    assert (standing["holder"], standing["token"]) == (None, 2)
    async with one.leases.hold("reports", ttl=TTL) as lease:
        assert lease.token == 3


async def test_the_end_of_a_lost_block_leaves_the_next_holder_alone(holder, sql, row) -> None:
    one, two = await holder(), await holder()
    lost, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with one.leases.hold("reports", ttl=seconds(30)):
            try:
                await lost.wait()
            finally:
                ended.set()

    working = asyncio.ensure_future(work())
    while not await sql.fetchval("SELECT count(*) FROM lease WHERE name = $1", ROW):
        pass
    await fence(sql)
    async with two.leases.hold("reports", ttl=TTL) as lease:
        assert lease.token == 3
        lost.set()  # Long before the renewal that would tell it.
        await working
        assert ended.is_set()
        standing = await row(ROW)
        assert (standing["holder"], standing["token"]) == (two.process.holder, 3)
        lease.check()


@pytest.mark.sabotage
async def test_without_the_interrupt_a_lost_block_goes_on(holder, sql, monkeypatch) -> None:
    monkeypatch.setattr(Interrupt, "tell", lambda _: None)
    one = await holder()

    async def work() -> None:
        async with asyncio.timeout(4), one.leases.hold("reports", ttl=seconds(1.5)):
            await fence(sql)
            await ever()

    with pytest.raises(TimeoutError):
        await work()


async def test_a_block_that_swallows_its_cancellation_is_lost_all_the_same(holder, sql) -> None:
    one = await holder()

    async def work() -> None:
        async with one.leases.hold("reports", ttl=TTL):
            await fence(sql)
            with suppress(asyncio.CancelledError):
                await ever()

    with pytest.raises(LeaseLost):
        await work()


async def test_a_block_that_fails_while_it_is_stopped_is_lost(holder, sql) -> None:
    one = await holder()

    async def work() -> None:
        async with one.leases.hold("reports", ttl=TTL):
            await fence(sql)
            try:
                await ever()
            finally:
                raise ZeroDivisionError

    with pytest.raises(LeaseLost) as caught:
        await work()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_a_transaction_that_stands_still_past_the_ttl_is_ended_and_its_name_free(holder, sql) -> None:
    one, two = await holder(), await holder()
    with suppress(LeaseLost):
        async with one.leases.hold("reports", ttl=seconds(1)) as lease:
            with one.process.paused():
                with pytest.raises(LeaseLost, match="PR401"):
                    await late_write(lease, two)
                assert len(one.ear.all(LateWriteRefused, room="leases")) == 1
    assert await sql.fetchval("SELECT count(*) FROM public.written") == 0


@pytest.mark.sabotage
async def test_without_the_servers_limit_the_name_is_not_to_be_had(holder, sql, monkeypatch) -> None:
    endless = QUERIES._texts["fence"].replace("ELSE $4::text END", "ELSE left($4::text, 0) || '0' END")
    assert endless != QUERIES._texts["fence"]
    monkeypatch.setattr(QUERIES, "_texts", {**QUERIES._texts, "fence": endless})
    monkeypatch.setattr(QUERIES, "_rendered", {})
    one, two = await holder(), await holder()
    with suppress(LeaseLost):
        async with one.leases.hold("reports", ttl=seconds(1)) as lease:
            with one.process.paused(), pytest.raises(LeaseHeld):
                await late_write(lease, two)


async def late_write(lease: AsyncLease, two: Holder) -> None:
    """Write under the lease; stand still past its ttl, until another has the name; commit."""
    async with lease.transaction() as connection:
        await connection.execute("INSERT INTO public.written VALUES (1, 'late')")
        async with two.leases.hold("reports", ttl=TTL, wait=seconds(4)):
            pass


async def test_a_transaction_on_another_loop_is_refused_with_a_reason(holder) -> None:
    one = await holder()
    async with one.leases.hold("reports", ttl=TTL) as lease:

        async def write() -> None:
            async with lease.transaction():
                pass

        with pytest.raises(UsageError, match=r"another event loop.*PR107"):
            await asyncio.to_thread(asyncio.run, write())


async def test_an_operators_own_shorter_limit_stays(holder) -> None:
    one = await holder()
    setting = "SELECT current_setting('idle_in_transaction_session_timeout')"
    async with one.leases.hold("reports", ttl=seconds(30)) as lease, lease.transaction() as connection:
        assert await connection.fetchval(setting) == "30s"
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = '20s'")
        await drive(lease.fence(), AsyncpgHand(connection))
        assert await connection.fetchval(setting) == "20s"


async def test_the_authors_own_error_comes_out_and_the_name_is_released(holder, row) -> None:
    one = await holder()
    with pytest.raises(ZeroDivisionError):
        async with one.leases.hold("reports", ttl=TTL):
            raise ZeroDivisionError
    assert (await row(ROW))["holder"] is None


async def test_a_cancellation_from_outside_stays_one(holder, row) -> None:
    one = await holder()
    entered = asyncio.Event()

    async def work() -> None:
        async with one.leases.hold("reports", ttl=TTL):
            entered.set()
            await ever()

    working = asyncio.ensure_future(work())
    await entered.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert working.cancelled()
    await one.ear.wait(LeaseReleased)
    assert (await row(ROW))["holder"] is None


async def test_a_loss_and_a_cancellation_at_once_are_a_cancellation() -> None:
    entered = asyncio.Event()
    guard = Interrupt(lambda: LeaseLost("PR401", "x"))

    async def work() -> None:
        with guard:
            entered.set()
            await ever()

    working = asyncio.ensure_future(work())
    await entered.wait()
    guard.tell()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_a_loss_inside_a_time_limit_is_no_time_out_and_a_time_out_no_loss() -> None:
    guard = Interrupt(lambda: LeaseLost("PR401", "x"))

    async def work(limit: float, guard: Interrupt) -> None:
        async with asyncio.timeout(limit):
            with guard:
                await ever()

    asyncio.get_running_loop().call_soon(guard.tell)
    with pytest.raises(LeaseLost):
        await work(20, guard)
    with pytest.raises(TimeoutError):
        await work(0.01, Interrupt(lambda: LeaseLost("PR401", "x")))


def test_a_loss_before_the_block_refuses_it_and_one_after_it_is_nobodys_business() -> None:
    async def main() -> None:
        early = Interrupt(lambda: LeaseLost("PR401", "x"))
        early.tell()
        with pytest.raises(LeaseLost), early:
            pytest.fail("it began")
        late = Interrupt(lambda: LeaseLost("PR401", "x"))
        with late:
            pass
        late.tell()
        await asyncio.sleep(0)

    asyncio.run(main())


async def test_a_block_that_outlives_the_keeper_is_stopped(holder) -> None:
    one = await holder()

    async def work() -> None:
        async with one.leases.hold("reports", ttl=TTL):
            await one.process.keeper.stop()
            await ever()

    with pytest.raises(LeaseLost):
        await work()


async def test_tasks_of_the_block_are_stopped_with_it(holder, sql) -> None:
    one = await holder()
    ended = []

    async def child() -> None:
        try:
            await ever()
        finally:
            ended.append(one.ear.all(LeaseGone))

    async def work() -> None:
        async with one.leases.hold("reports", ttl=TTL), asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())
            await fence(sql)

    with pytest.raises(LeaseLost):
        await work()
    assert len(ended) == 2


# --- renewal --------------------------------------------------------------------------------------------------------


async def test_renewals_go_on_while_the_block_keeps_the_loop_busy_for_longer_than_the_lease(holder, row) -> None:
    one, two = await holder(), await holder()
    async with one.leases.hold("reports", ttl=TTL) as lease:
        _burn(2 * TTL.total_seconds())
        assert lease.held
        assert len(one.ear.all(LeasesRenewed, result="ok")) >= 4
        assert (await row(ROW))["alive"]
        with pytest.raises(LeaseHeld):
            async with two.leases.hold("reports"):
                pass


def _burn(for_seconds: float) -> None:
    end = time.monotonic() + for_seconds
    while time.monotonic() < end:
        sum(range(1000))


@pytest.mark.sabotage
async def test_without_a_thread_of_its_own_for_renewals_a_busy_loop_loses_the_lease(holder, row) -> None:
    one = await holder()

    async def work() -> None:
        async with one.leases.hold("reports", ttl=TTL):
            with one.process.paused():
                _burn(TTL.total_seconds() + 0.5)
            assert not (await row(ROW))["alive"]

    with pytest.raises(LeaseLost):
        await work()


async def test_work_that_hangs_holds_a_name_no_longer_than_it_may_run(holder) -> None:
    one = await holder()
    with pytest.raises(LeaseLost):
        async with one.leases.hold("reports", ttl=TTL, max_runtime=seconds(1)):
            await ever()
    assert one.ear.all(LeaseGone, reason=LossReason.OVERTIME)
    began = time.monotonic()
    with pytest.raises(LeaseLost):
        async with one.leases.hold("other", ttl=TTL, max_runtime=seconds(0.5)):
            _burn(1)  # It cannot be stopped, but neither does it pass for a success.
    assert time.monotonic() - began >= 1


class Stepped:
    """A machine's clocks, of which the time of day can be set; `judged_by` it, or not, is what a lease is judged by."""

    def __init__(self, *, judged_by: bool = False) -> None:
        self.hours = 0.0
        self._judged_by = judged_by

    def now(self):
        return SYSTEM_CLOCK.now() + timedelta(hours=self.hours)

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic() + (self.hours * 3600 if self._judged_by else 0)

    new_id = staticmethod(SYSTEM_CLOCK.new_id)


async def held_while_the_clock_steps(start, runtime_url, clock: Stepped) -> Process:
    process = await start(clock=clock)
    manager = await Manager.open(runtime_url, schema="postroad", size=2)
    leases = Leases(
        process.keeper, manager, clock=clock, signals=process.signals, chance=lambda: 0.5, shortest=seconds(0.25)
    )
    try:
        async with leases.hold("reports", ttl=seconds(1.5)) as lease:
            for step in (1.0, -1.0):
                clock.hours = step
                before = len(process.ear.all(LeasesRenewed, result="ok"))
                await process.ear.wait(LeasesRenewed, result="ok", count=before + 4)  # Longer than the lease.
                assert lease.held
                left = await manager.fetch(_left())
                assert 0 < left[0]["left"] <= 1.5
    finally:
        await manager.close()
    return process


async def test_a_step_of_the_time_of_day_neither_prolongs_nor_loses_a_lease(start, runtime_url) -> None:
    """The clock that a lease is judged by is another one; see also tests/leases/test_lease.py."""
    process = await held_while_the_clock_steps(start, runtime_url, Stepped())
    assert process.ear.all(LeaseGone) == []


@pytest.mark.sabotage
async def test_judged_by_the_time_of_day_a_lease_would_be_lost(start, runtime_url) -> None:
    with pytest.raises(LeaseLost):
        async with asyncio.timeout(15):
            await held_while_the_clock_steps(start, runtime_url, Stepped(judged_by=True))


def _left():
    from postroad.sql import Statement

    text = "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 AS left FROM postroad.lease"
    return Statement(f"{text} WHERE name = '{ROW}'")


# --- fenced writes --------------------------------------------------------------------------------------------------


async def test_a_fenced_transaction_commits_while_the_lease_is_held(holder, sql) -> None:
    one = await holder()
    async with one.leases.hold("reports", ttl=TTL) as lease:
        async with lease.transaction() as connection:
            await connection.execute("INSERT INTO written VALUES ($1, 'one')", lease.token)
        assert await sql.fetchval("SELECT count(*) FROM written") == 1


async def fenced_late_write(one: Holder, sql: asyncpg.Connection) -> None:
    async with one.leases.hold("reports", ttl=seconds(60)) as lease:
        await fence(sql)
        async with lease.transaction() as connection:  # Long before the next renewal.
            await connection.execute("INSERT INTO written VALUES ($1, 'late')", lease.token)


async def test_a_write_under_a_lease_that_an_operator_fenced_is_refused_at_once_and_counted(holder, sql) -> None:
    one = await holder()
    with pytest.raises(LeaseLost):
        await fenced_late_write(one, sql)
    assert await sql.fetchval("SELECT count(*) FROM written") == 0
    assert one.ear.all(LateWriteRefused, room="leases")


@pytest.mark.sabotage
async def test_without_the_fence_the_late_write_is_there(holder, sql, monkeypatch) -> None:
    from postroad.leases.held import HeldLease

    def nothing(_lease):
        return
        yield

    monkeypatch.setattr(HeldLease, "fence", nothing)
    await fenced_late_write(await holder(), sql)
    assert await sql.fetchval("SELECT by FROM written") == "late"


async def test_an_operators_fence_waits_for_a_fenced_transaction_that_is_open(holder, sql, database) -> None:
    one, watcher = await holder(), await asyncpg.connect(database)
    steps = []

    async def work() -> None:
        async with one.leases.hold("reports", ttl=seconds(30)) as lease:
            async with lease.transaction() as connection:
                fencing = asyncio.ensure_future(fence(sql))
                while not await watcher.fetchval("SELECT cardinality(pg_blocking_pids($1))>0", sql.get_server_pid()):
                    pass
                await connection.execute("INSERT INTO written VALUES ($1, 'one')", lease.token)
            await fencing
            steps.append(await sql.fetchval("SELECT count(*) FROM written"))
            async with lease.transaction():
                steps.append("the fence let it pass")

    with pytest.raises(LeaseLost):
        await work()
    assert steps == [1]
    await watcher.close()


# --- within another transaction -------------------------------------------------------------------------------------


async def test_a_block_that_is_part_of_a_transaction_gives_the_name_up_by_its_commit(holder, sql, row) -> None:
    one, two = await holder(), await holder()
    async with one.manager.transaction() as connection:

        async def within(pipeline) -> None:
            await drive(pipeline, AsyncpgHand(connection))

        async with one.leases.hold("reports", ttl=TTL, within=within) as lease:
            await connection.execute("INSERT INTO written VALUES ($1, 'one')", lease.token)
        assert (await row(ROW))["holder"] == one.process.holder, "nobody has it before the commit"
        with pytest.raises(LeaseHeld):
            async with two.leases.hold("reports"):
                pass
    async with two.leases.hold("reports", ttl=TTL) as lease:
        assert lease.token == 2
        assert await sql.fetchval("SELECT by FROM written") == "one"


async def test_a_transaction_cannot_end_under_a_lease_that_another_took(holder, sql) -> None:
    one = await holder()

    async def work() -> None:
        async with one.manager.transaction() as connection:

            async def within(pipeline) -> None:
                await drive(pipeline, AsyncpgHand(connection))

            async with one.leases.hold("reports", ttl=seconds(60), within=within) as lease:
                await connection.execute("INSERT INTO written VALUES ($1, 'late')", lease.token)
                await fence(sql)

    with pytest.raises(LeaseLost):
        await work()
    assert await sql.fetchval("SELECT count(*) FROM written") == 0
    assert one.ear.all(LateWriteRefused, room="leases")


# --- code on threads ------------------------------------------------------------------------------------------------


def run(main: Callable[[], Any]) -> asyncio.Future[Any]:
    return asyncio.ensure_future(asyncio.to_thread(main))


async def test_a_thread_holds_a_lease_and_writes_under_it(holder, runtime_url, sql, row) -> None:
    import psycopg

    one = await holder()

    def main() -> int:
        with one.leases.hold_sync("reports", ttl=TTL) as lease, psycopg.connect(runtime_url) as connection:
            lease.check()
            with lease.transaction(connection) as tx:
                tx.execute("INSERT INTO written VALUES (%s, 'thread')", [lease.token])
            with pytest.raises(LeaseHeld, match="this process"), one.leases.hold_sync("reports", wait=seconds(0.2)):
                pass
            return lease.token

    assert await run(main) == 1
    assert await sql.fetchval("SELECT by FROM written") == "thread"
    assert (await row(ROW))["holder"] is None


async def test_at_the_loss_a_threads_fenced_connection_is_cut(holder, runtime_url, sql) -> None:
    import psycopg

    one = await holder()
    inside, told = threading.Event(), threading.Event()

    def main() -> None:
        with (
            one.leases.hold_sync("reports", ttl=TTL, max_runtime=seconds(1.5), cut=told.set) as lease,
            psycopg.connect(runtime_url) as connection,
            lease.transaction(connection) as tx,
        ):
            tx.execute("INSERT INTO written VALUES (%s, 'thread')", [lease.token])
            inside.set()
            tx.execute("SELECT pg_sleep(60)")

    began = time.monotonic()
    with pytest.raises(LeaseLost):
        await run(main)
    assert inside.is_set()
    assert told.is_set()
    assert time.monotonic() - began < 20
    assert await sql.fetchval("SELECT count(*) FROM written") == 0


async def test_a_threads_lost_lease_says_so_and_its_next_transaction_is_refused(holder, runtime_url, sql) -> None:
    import psycopg

    one = await holder()
    gone = threading.Event()

    def main() -> None:
        with (
            one.leases.hold_sync("reports", ttl=TTL, cut=gone.set) as lease,
            psycopg.connect(runtime_url) as connection,
        ):
            assert gone.wait(20)
            with pytest.raises(LeaseLost):
                lease.check()
            with pytest.raises(LeaseLost), lease.transaction(connection):
                pytest.fail("it began")
            connection.execute("INSERT INTO written VALUES (%s, 'unfenced')", [lease.token])  # Not ours to stop.

    running = run(main)
    while not await sql.fetchval("SELECT count(*) FROM lease WHERE name = $1", ROW):
        pass
    await fence(sql)
    with pytest.raises(LeaseLost):
        await running
    assert one.ear.all(LateWriteRefused, room="leases")


async def test_the_form_for_threads_is_refused_where_a_loop_runs(holder) -> None:
    one = await holder()
    with pytest.raises(UsageError, match=r"event loop.*async with.*PR107"), one.leases.hold_sync("reports"):
        pass
