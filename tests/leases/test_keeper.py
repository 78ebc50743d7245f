"""The keeper on a real PostgreSQL, under the runtime role."""

from __future__ import annotations

import asyncio
import threading
from uuid import uuid4

import asyncpg
import pytest

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.errors import AccessRefused, LeaseLost, Unavailable, UsageError
from postroad.leases import Keeper, Lease, advance
from postroad.leases.heart import Heart
from postroad.leases.store import QUERIES
from postroad.runtime.executor import Tasks
from postroad.signals import Signals
from postroad.signals.catalog import LeaseAcquired, LeaseGone, LeaseReleased, LeasesRenewed, LossReason, TaskFailed
from postroad.sql.manager import Manager

SHORT = seconds(0.6)
LONG = seconds(30)


async def test_a_free_name_is_taken_once_and_its_token_grows_with_every_take(start, row) -> None:
    one, two = await start(), await start()
    first = await one.keeper.acquire("worker:a", ttl=LONG, on_lost=one.hear_lost)
    assert first is not None
    assert (first.name, first.token, first.holder, first.held) == ("worker:a", 1, one.holder, True)
    assert await two.keeper.acquire("worker:a", ttl=LONG, on_lost=two.hear_lost) is None
    await one.keeper.release_many([first])
    assert not first.held
    standing = await row("worker:a")
    assert (standing["holder"], standing["token"]) == (None, 1)
    second = await two.keeper.acquire("worker:a", ttl=LONG, on_lost=two.hear_lost)
    assert second is not None
    assert second.token == 2
    assert one.lost == []


async def test_of_many_names_those_are_given_that_are_free(start) -> None:
    one, two = await start(), await start()
    names = [f"shard:{number:02}" for number in range(16)]
    mine = await one.keeper.acquire_many(names[3:7], ttl=LONG, on_lost=one.hear_lost)
    others = await two.keeper.acquire_many(names, ttl=LONG, on_lost=two.hear_lost)
    assert {lease.name for lease in mine} == set(names[3:7])
    assert {lease.name for lease in others} == set(names) - set(names[3:7])
    assert await one.keeper.living("shard:") == 16
    assert await one.keeper.living("worker:") == 0
    await two.keeper.release_many(others)
    assert await one.keeper.living("shard:") == 4


async def test_a_name_that_this_process_holds_is_not_given_twice(start) -> None:
    one = await start()
    first = await one.keeper.acquire("worker:a", ttl=LONG, on_lost=one.hear_lost)
    assert await one.keeper.acquire("worker:a", ttl=LONG, on_lost=one.hear_lost) is None
    assert first is not None
    assert first.held


async def test_signals_tell_of_taking_renewing_and_giving_up(start) -> None:
    one = await start()
    lease = await one.keeper.acquire("shard:01", ttl=SHORT, on_lost=one.hear_lost)
    assert lease is not None
    await one.ear.wait(LeaseAcquired, kind="shard", name="shard:01", token=1)
    await one.ear.wait(LeasesRenewed, kind="shard", result="ok", count=3)
    await one.keeper.release_many([lease])
    await one.ear.wait(LeaseReleased, kind="shard", name="shard:01")
    assert one.ear.all(LeaseGone) == []


async def test_a_blocked_event_loop_delays_no_renewal(start, row) -> None:
    one, two = await start(), await start()
    lease = await one.keeper.acquire("worker:a", ttl=SHORT, on_lost=one.hear_lost)
    assert lease is not None
    one.ear.block(LeasesRenewed, count=7, result="ok")  # more than two whole lives, and the loop stands still
    assert lease.held
    assert await two.keeper.acquire("worker:a", ttl=SHORT, on_lost=two.hear_lost) is None
    assert (await row("worker:a"))["token"] == 1


async def test_a_paused_holder_is_overtaken_and_told_on_its_own_loop(start, row) -> None:
    one, two = await start(), await start()
    lease = await one.keeper.acquire("shard:01", ttl=SHORT, on_lost=one.hear_lost)
    assert lease is not None
    with one.paused():
        taken = None
        while taken is None:
            taken = await two.keeper.acquire("shard:01", ttl=SHORT, on_lost=two.hear_lost)
        assert not lease.held, "local trust ends before another process can have the name"
        assert taken.token == 2
    await one.ear.wait(LeaseGone, kind="shard", name="shard:01")
    await asyncio.sleep(0)
    with pytest.raises(LeaseLost):
        lease.check()
    assert one.lost == [lease]
    assert one.lost_on == [threading.current_thread()]
    await two.ear.wait(LeasesRenewed, result="ok", count=3)
    assert taken.held
    assert (await row("shard:01"))["holder"] == two.holder


async def test_a_lease_that_ran_out_is_never_revived_though_nobody_else_wants_it(start, row, until) -> None:
    one = await start()
    lease = await one.keeper.acquire("shard:01", ttl=SHORT, on_lost=one.hear_lost)
    assert lease is not None
    with one.paused():
        while (await row("shard:01"))["alive"]:
            pass
        ended = (await row("shard:01"))["expires_at"]
    await until(lambda: one.lost)
    again = await one.keeper.acquire("shard:02", ttl=SHORT, on_lost=one.hear_lost)
    assert again is not None
    await one.ear.wait(LeasesRenewed, result="ok", count=2)
    assert (await row("shard:01"))["expires_at"] == ended
    assert not lease.held
    assert one.ear.all(LeaseGone, reason=LossReason.EXPIRED)


async def pause_past_the_end(one, row) -> Lease:
    lease = await one.keeper.acquire("shard:01", ttl=SHORT, on_lost=one.hear_lost)
    assert lease is not None
    with one.paused():
        while (await row("shard:01"))["alive"]:
            pass
    return lease


async def test_the_database_too_refuses_to_renew_what_ran_out(start, row, until, monkeypatch) -> None:
    """The second wall, for a pause between the keeper's look at the clock and its renewal: here it never looks."""
    monkeypatch.setattr(Heart, "_expire", lambda _heart: None)
    one = await start()
    lease = await pause_past_the_end(one, row)
    await until(lambda: one.lost)
    assert one.lost == [lease]
    assert not (await row("shard:01"))["alive"]
    await one.ear.wait(LeaseGone, reason=LossReason.EXPIRED)
    assert one.ear.all(LeasesRenewed, result="lost")


@pytest.mark.sabotage
async def test_without_both_walls_a_lease_that_ran_out_comes_to_life_again(start, row, monkeypatch) -> None:
    monkeypatch.setattr(Heart, "_expire", lambda _heart: None)
    reviving = QUERIES._texts["renew"].replace("AND lease.expires_at > clock_timestamp()", "")
    assert reviving != QUERIES._texts["renew"]
    monkeypatch.setattr(QUERIES, "_texts", {**QUERIES._texts, "renew": reviving})
    monkeypatch.setattr(QUERIES, "_rendered", {})
    one = await start()
    await pause_past_the_end(one, row)
    while not (await row("shard:01"))["alive"]:
        pass
    assert one.lost == []


async def test_a_lease_that_another_took_is_lost_at_the_next_renewal_though_trust_remains(
    start, runtime_url, database, until
) -> None:
    one = await start()
    lease = await one.keeper.acquire("shard:01", ttl=seconds(3), on_lost=one.hear_lost)
    assert lease is not None
    connection = await asyncpg.connect(database)
    await connection.execute("UPDATE postroad.lease SET token = token + 1, holder = $1", uuid4())
    await connection.close()
    await until(lambda: one.lost)
    assert lease.trusted_until > SYSTEM_CLOCK.monotonic()
    await one.ear.wait(LeaseGone, kind="shard", name="shard:01", reason=LossReason.FENCED)
    await one.ear.wait(LeasesRenewed, result="lost")


async def test_a_renewal_late_by_a_third_of_the_lease_is_told(start, until) -> None:
    one = await start()
    lease = await one.keeper.acquire("worker:a", ttl=seconds(4.5), on_lost=one.hear_lost)
    assert lease is not None
    with one.paused():
        late_from = SYSTEM_CLOCK.monotonic() + 3.05
        await until(lambda: SYSTEM_CLOCK.monotonic() > late_from)
    await one.ear.wait(LeasesRenewed, kind="worker", result="late")
    assert lease.held


async def test_a_lost_connection_of_its_own_costs_no_lease(start, database) -> None:
    one = await start()
    lease = await one.keeper.acquire("worker:a", ttl=seconds(1.5), on_lost=one.hear_lost)
    assert lease is not None
    connection = await asyncpg.connect(database)
    for _ in range(3):
        before = len(one.ear.all(LeasesRenewed, result="ok"))
        killed = await connection.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE application_name = 'postroad-leases' AND datname = current_database()"
        )
        assert killed == 1
        await one.ear.wait(LeasesRenewed, result="ok", count=before + 2)
    await connection.close()
    assert lease.held
    assert one.lost == []


async def test_a_start_that_cannot_reach_the_database_says_so_and_leaves_no_thread() -> None:
    heard: list[object] = []
    owner = Tasks(Signals(heard.append))
    for url, expected in [
        ("postgresql://nobody@127.0.0.1:1/none", Unavailable),
        ("postgresql://nobody@127.0.0.1:notaport/none", UsageError),
    ]:
        keeper = Keeper(
            url, schema="postroad", holder=uuid4(), clock=SYSTEM_CLOCK, signals=Signals(heard.append), owner=owner
        )
        with pytest.raises(expected):
            await keeper.start()
        await keeper.stop()
        with pytest.raises(Unavailable, match="does not run"):
            await keeper.living("worker:")
    assert await owner.join(within=seconds(5)) == ()
    assert heard == []


async def test_a_wrong_database_name_is_a_refusal(postgres) -> None:
    signals = Signals()
    keeper = Keeper(
        postgres.url("there_is_none"),
        schema="postroad",
        holder=uuid4(),
        clock=SYSTEM_CLOCK,
        signals=signals,
        owner=Tasks(signals),
    )
    with pytest.raises(AccessRefused):
        await keeper.start()


async def test_a_keeper_starts_once(start) -> None:
    one = await start()
    with pytest.raises(UsageError):
        await one.keeper.start()


async def test_after_the_stop_leases_are_not_trusted_and_run_out_in_the_database(start, row) -> None:
    one = await start()
    lease = await one.keeper.acquire("worker:a", ttl=SHORT, on_lost=one.hear_lost)
    assert lease is not None
    await one.keeper.stop()
    assert not lease.held
    assert one.lost == []
    assert (await row("worker:a"))["holder"] == one.holder
    while (await row("worker:a"))["alive"]:
        pass
    with pytest.raises(Unavailable):
        await one.keeper.release_many([lease])
    assert one.ear.all(TaskFailed) == []


async def test_a_cancelled_acquire_gives_back_what_it_took_meanwhile(start, database, row, until) -> None:
    one = await start()
    lease = await one.keeper.acquire("op:a", ttl=LONG, on_lost=one.hear_lost)
    assert lease is not None
    await one.keeper.release_many([lease])
    blocker = await asyncpg.connect(database)
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("LOCK TABLE postroad.lease IN SHARE MODE")
    asking = asyncio.ensure_future(one.keeper.acquire("op:a", ttl=LONG, on_lost=one.hear_lost))
    watcher = await asyncpg.connect(database)
    while not await watcher.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'postroad-leases'"
        " AND wait_event_type = 'Lock' AND datname = current_database()"
    ):
        pass
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await transaction.rollback()
    await one.ear.wait(LeaseReleased, count=2)
    standing = await row("op:a")
    assert (standing["holder"], standing["token"]) == (None, 2)
    await blocker.close()
    await watcher.close()


async def test_a_table_locked_for_too_long_is_unavailable_and_costs_no_connection(start, database) -> None:
    one = await start()
    lease = await one.keeper.acquire("op:a", ttl=LONG, on_lost=one.hear_lost)
    await one.keeper.release_many([lease])
    blocker = await asyncpg.connect(database)
    async with blocker.transaction():
        await blocker.execute("LOCK TABLE postroad.lease IN SHARE MODE")
        with pytest.raises(Unavailable, match="PR304"):
            await one.keeper.acquire("op:a", ttl=LONG, on_lost=one.hear_lost)
    await blocker.close()
    assert await one.keeper.acquire("op:a", ttl=LONG, on_lost=one.hear_lost) is not None


async def test_the_heart_beats_without_anything_to_renew(start, until) -> None:
    one = await start()
    with one.paused():
        await until(lambda: one.keeper.beat_age > 0.3)
    await until(lambda: one.keeper.beat_age < 0.3)


async def test_recovery_advances_the_token_before_it_touches_anything(start, runtime_url, row, until) -> None:
    dead, manager = await start(), await Manager.open(runtime_url, schema="postroad", size=2)
    lease = await dead.keeper.acquire("worker:dead", ttl=SHORT, on_lost=dead.hear_lost)
    assert lease is not None
    assert await manager.run(advance("postroad", "worker:dead", 1)) is False, "it lives"
    with dead.paused():
        while (await row("worker:dead"))["alive"]:
            pass
        assert await manager.run(advance("postroad", "worker:dead", 7)) is False, "another token"
        assert await manager.run(advance("postroad", "worker:dead", 1)) is True
        assert await manager.run(advance("postroad", "worker:dead", 1)) is False, "only one process recovers it"
    await until(lambda: dead.lost)
    standing = await row("worker:dead")
    assert (standing["holder"], standing["token"]) == (None, 2)
    await manager.close()
