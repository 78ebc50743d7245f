"""Our pool: what it lends, and what it says while the database is away."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

import asyncpg
import pytest

from postroad.clock import seconds
from postroad.errors import AccessRefused, Unavailable, UsageError
from postroad.sql import Statement
from postroad.sql.manager import Manager, connect, masked
from postroad.sql.transactions import AsyncpgTransactions
from postroad.testing.servers import TcpProxy


@pytest.fixture
async def manager(runtime_url):
    opened = await Manager.open(runtime_url, schema="postroad", size=3)
    yield opened
    await opened.close()


def count(outcome: str = "handled") -> Statement:
    return Statement("SELECT count(*) AS count FROM postroad.inbox WHERE outcome = $1", (outcome,))


MARK = "INSERT INTO postroad.inbox (consumer, message_key, outcome) VALUES ('c', gen_random_uuid(), 'handled')"


async def test_a_pipeline_commits_as_one_and_an_error_leaves_nothing(manager) -> None:
    def good():
        yield Statement(MARK)
        yield Statement(MARK)
        return "done"

    def bad():
        yield Statement(MARK)
        raise ZeroDivisionError

    assert await manager.run(good()) == "done"
    with pytest.raises(ZeroDivisionError):
        await manager.run(bad())
    [row] = await manager.fetch(count())
    assert row["count"] == 2


async def test_a_handlers_transaction_commits_at_its_end_and_rolls_back_on_an_error(manager) -> None:
    transactions = AsyncpgTransactions(manager)

    def mark():
        yield Statement(MARK)

    async with transactions.begin() as unit:
        await unit.drive(mark())
        await unit.tx.execute(MARK)

    async def failing() -> None:
        async with transactions.begin() as unit:
            await unit.drive(mark())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    [row] = await manager.fetch(count())
    assert row["count"] == 2


async def test_a_commit_that_was_a_rollback_is_an_error(manager) -> None:
    async def swallowing() -> None:
        async with AsyncpgTransactions(manager).begin() as unit:
            await unit.tx.execute(MARK)
            with pytest.raises(asyncpg.DivisionByZeroError):
                await unit.tx.execute("SELECT 1 / 0")

    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await swallowing()
    [row] = await manager.fetch(count())
    assert row["count"] == 0


async def test_what_a_handler_left_on_its_connection_is_gone_for_the_next(runtime_url) -> None:
    manager = await Manager.open(runtime_url, schema="postroad", size=1)
    async with AsyncpgTransactions(manager).begin() as unit:
        await unit.tx.execute("SET lock_timeout = '7s'; SELECT pg_advisory_lock(7)")
    [row] = await manager.fetch(
        Statement("SELECT current_setting('lock_timeout') AS wait, count(*) AS locks FROM pg_locks WHERE objid = 7")
    )
    assert (row["wait"], row["locks"]) == ("0", 0)
    await manager.close()


async def test_a_statement_of_our_own_is_one_round_trip(runtime_url, database) -> None:
    manager = await Manager.open(runtime_url, schema="postroad", size=1, name="counted")
    one = Statement("SELECT 1 AS one")
    await manager.fetch(one)
    await manager.fetch(one)
    watcher = await asyncpg.connect(database)
    last = await watcher.fetchval("SELECT query FROM pg_stat_activity WHERE application_name = 'counted'")
    assert last == one.text, "nothing followed it"
    await watcher.close()
    await manager.close()


async def test_a_database_that_answers_says_so(manager) -> None:
    assert await manager.answers() is True


@pytest.mark.parametrize(
    ("url", "expected", "says"),
    [
        ("postgresql://nobody:hunter2@127.0.0.1:1/none", Unavailable, "database 127.0.0.1:1/none cannot be reached"),
        ("postgresql://nobody:hunter2@127.0.0.1:port/none", UsageError, "URL cannot be read"),
        ("mysql://nobody:hunter2@127.0.0.1/none", UsageError, "URL cannot be read"),
        ("hunter2", UsageError, "URL cannot be read"),
    ],
)
async def test_a_wrong_url_is_one_line_without_the_password(url, expected, says) -> None:
    for attempt in (Manager.open(url, schema="postroad"), connect(url)):
        with pytest.raises(expected, match=says) as caught:
            await attempt
        assert "hunter2" not in str(caught.value)


async def test_a_wrong_password_is_a_refusal(postgres) -> None:
    postgres.add_role("pr_locked", password="right")
    url = postgres.url("postgres", "pr_locked", password="wrong")
    with pytest.raises(AccessRefused, match=r"refused access \(28P01\).*PR303") as caught:
        await Manager.open(url, schema="postroad")
    assert "wrong" not in str(caught.value)


async def test_a_missing_database_is_a_refusal(postgres) -> None:
    with pytest.raises(AccessRefused, match="3D000"):
        await Manager.open(postgres.url("there_is_none"), schema="postroad")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@host:5432/db?sslmode=x", "database host:5432/db"),
        ("postgresql://u:p@host/db", "database host/db"),
        ("postgresql:///db", "database socket/db"),
        ("postgresql://u:p@host:port/db", "the database"),
    ],
)
def test_a_url_is_shown_without_its_user_and_password(url, shown) -> None:
    assert masked(url) == shown


@pytest.mark.heavy
async def test_the_pool_says_that_the_database_is_away_and_works_again_after(own_postgres) -> None:
    manager = await Manager.open(own_postgres.url(), schema="postroad", size=2)
    one = Statement("SELECT 1 AS one")
    async with manager.transaction() as connection:
        assert await connection.fetchval("SELECT 1") == 1
    own_postgres.kill()
    assert await manager.answers(within_seconds=2) is False
    with pytest.raises(Unavailable):
        await manager.fetch(one)
    own_postgres.start()
    assert await manager.answers() is True
    [row] = await manager.fetch(one)
    assert row["one"] == 1
    await manager.close()


async def test_a_session_that_the_server_ended_is_replaced(manager, database) -> None:
    [row] = await manager.fetch(Statement("SELECT pg_backend_pid() AS pid"))
    other = await asyncpg.connect(database)

    async def cut_off() -> None:
        async with manager.connection() as connection:
            await other.execute(f"SELECT pg_terminate_backend({row['pid']})")
            await connection.fetchval("SELECT 1")

    with pytest.raises(Unavailable):
        await cut_off()
    await other.close()
    [after] = await manager.fetch(Statement("SELECT pg_backend_pid() AS pid"))
    assert after["pid"] != row["pid"]


async def test_closing_does_not_wait_for_ever_for_a_borrower(runtime_url) -> None:
    manager = await Manager.open(runtime_url, schema="postroad", size=1)

    async def borrow() -> None:
        async with AsyncpgTransactions(manager).begin() as unit:
            await manager.close()
            assert unit.lost
            await unit.tx.fetchval("SELECT 1")

    with pytest.raises((Unavailable, asyncpg.InterfaceError)):
        await borrow()


@pytest.mark.heavy
@pytest.mark.timeout(60)
async def test_a_server_that_lets_nobody_in_is_away_and_not_broken(own_postgres) -> None:
    own_postgres.create_database("shop")
    url = own_postgres.url("shop", "pr_runtime")
    manager = await Manager.open(url, schema="postroad", size=2)
    own_postgres.execute("ALTER DATABASE shop ALLOW_CONNECTIONS false")
    own_postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'pr_runtime'")
    assert await manager.answers() is False
    for attempt in (manager.fetch(Statement("SELECT 1")), begun(manager), connect(url)):
        with pytest.raises(Unavailable, match="lets nobody in"):
            await attempt
    own_postgres.execute("ALTER DATABASE shop ALLOW_CONNECTIONS true")
    assert await manager.answers() is True
    own_postgres.execute("ALTER ROLE pr_runtime NOLOGIN")
    own_postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'pr_runtime'")
    assert await manager.answers() is False, "a refused access is no answer either"
    await manager.close()


async def begun(manager: Manager) -> None:
    async with manager.transaction():
        pass


@pytest.mark.timeout(30)
async def test_connections_that_lead_nowhere_cost_one_statement_its_patience(runtime_url, monkeypatch) -> None:
    monkeypatch.setattr("postroad.sql.manager.OWN_PATIENCE", seconds(0.5))
    port = urlsplit(runtime_url).port
    with TcpProxy(port) as line:
        manager = await Manager.open(runtime_url.replace(f":{port}", f":{line.port}"), schema="postroad", size=3)
        for attempt in (long_held(manager), begun(manager), manager.run(one())):
            await asyncio.gather(*(manager.run(held()) for _ in range(3)))
            line.strand()
            began = time.monotonic()
            with pytest.raises(Unavailable, match="did not answer"):
                await attempt
            assert [row["one"] for row in await manager.fetch(Statement("SELECT 1 AS one"))] == [1]
            assert await manager.answers(), "every other connection was replaced before its use"
            assert time.monotonic() - began < 5
        await manager.close()


@pytest.mark.timeout(30)
async def test_a_handlers_rollback_waits_no_longer_than_a_statement_of_ours(runtime_url, monkeypatch) -> None:
    monkeypatch.setattr("postroad.sql.manager.OWN_PATIENCE", seconds(0.5))
    port = urlsplit(runtime_url).port
    with TcpProxy(port) as line:
        manager = await Manager.open(runtime_url.replace(f":{port}", f":{line.port}"), schema="postroad")

        async def failing() -> None:
            async with AsyncpgTransactions(manager).begin():
                line.strand()
                raise ZeroDivisionError

        began = time.monotonic()
        with pytest.raises(Unavailable, match="did not answer"):
            await failing()
        assert time.monotonic() - began < 10
        assert await manager.answers()
        await manager.close()


@pytest.mark.timeout(30)
async def test_a_commit_that_nobody_answers_is_given_up(runtime_url, monkeypatch) -> None:
    monkeypatch.setattr("postroad.sql.manager.OWN_PATIENCE", seconds(0.5))
    port = urlsplit(runtime_url).port
    with TcpProxy(port) as line:
        url = runtime_url.replace(f":{port}", f":{line.port}")
        manager = await Manager.open(url, schema="postroad", patience=seconds(0.5))

        async def unanswered() -> None:
            async with AsyncpgTransactions(manager).begin() as unit:
                await unit.tx.execute("SELECT 1")
                line.strand()

        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await unanswered()
        assert time.monotonic() - began < 15
        await manager.close()


async def long_held(manager: Manager) -> None:
    async with manager.connection(patience=seconds(0.5)) as connection:
        await connection.fetchval("SELECT 1")


def one():
    yield Statement("SELECT 1")


def held():
    yield Statement("SELECT pg_sleep(0.1)")


async def test_a_handlers_statement_may_take_longer_than_one_of_ours(runtime_url, monkeypatch) -> None:
    monkeypatch.setattr("postroad.sql.manager.OWN_PATIENCE", seconds(0.2))
    manager = await Manager.open(runtime_url, schema="postroad", size=1)
    async with AsyncpgTransactions(manager).begin() as unit:
        assert await unit.tx.fetchval("SELECT 7 FROM pg_sleep(0.5)") == 7
    with pytest.raises(Unavailable, match="did not answer"):
        await manager.fetch(Statement("SELECT pg_sleep(2)"))
    await manager.close()
