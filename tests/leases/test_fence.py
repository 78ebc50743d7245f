"""The fence: a write under a lease that was taken over changes nothing, at whatever moment the take-over comes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import asyncpg
import pytest

from postroad.clock import ManualClock, seconds
from postroad.leases import FENCE, Lapsed, Lease, expired, fence, lapsed, living, store
from postroad.sql import drive, render
from postroad.sql.asyncpg import AsyncpgHand

GUARDED = render(f"WITH {FENCE} DELETE FROM thing WHERE lease IN (SELECT name FROM fence) RETURNING id", "postroad")
EXISTS = render(
    "DELETE FROM thing WHERE lease = ANY ($1::text[]) AND EXISTS (SELECT FROM {schema}.lease AS lease"
    " WHERE lease.name = thing.lease AND lease.token = ANY ($2::bigint[]) AND lease.holder = $3::uuid) RETURNING id",
    "postroad",
)
TTL = seconds(30)


@pytest.fixture
async def connect(database: str) -> AsyncIterator[object]:
    opened: list[asyncpg.Connection] = []

    async def open_one() -> asyncpg.Connection:
        connection = await asyncpg.connect(database)
        opened.append(connection)
        return connection

    first = await open_one()
    await first.execute(
        "CREATE TABLE thing (id int PRIMARY KEY, lease text NOT NULL);INSERT INTO thing VALUES (1, 'op:a'), (2, 'op:a')"
    )
    yield open_one
    for connection in opened:
        connection.terminate()


async def take(connection: asyncpg.Connection, name: str, holder: UUID, ttl: float = 30) -> Lease | None:
    statement = store.acquire("postroad", [name], holder=holder, ttl=seconds(ttl))
    rows = await connection.fetch(statement.text, *statement.args)
    made = [
        Lease(row["name"], token=row["token"], holder=holder, ttl=seconds(ttl), sent=0, clock=ManualClock())
        for row in rows
    ]
    return made[0] if made else None


async def let_lapse(connection: asyncpg.Connection) -> None:
    await connection.execute("UPDATE postroad.lease SET expires_at = clock_timestamp() - interval '1 s'")


async def write(connection: asyncpg.Connection, lease: Lease, text: str = GUARDED) -> list[int]:
    return [row["id"] for row in await connection.fetch(text, [lease.name], [lease.token], lease.holder)]


async def waits(watcher: asyncpg.Connection, connection: asyncpg.Connection) -> None:
    while not await watcher.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", connection.get_server_pid()):
        pass


async def test_the_holder_writes_and_a_stranger_does_not(connect) -> None:
    one = await connect()
    lease = await take(one, "op:a", uuid4())
    assert lease is not None
    assert await one.fetch(GUARDED, ["op:a"], [lease.token], uuid4()) == []
    assert await one.fetch(GUARDED, ["op:a"], [lease.token + 1], lease.holder) == []
    assert sorted(await write(one, lease)) == [1, 2]


async def test_a_write_after_the_take_over_changes_nothing(connect) -> None:
    one, two = await connect(), await connect()
    old = await take(one, "op:a", uuid4())
    await let_lapse(one)
    new = await take(two, "op:a", uuid4())
    assert old is not None
    assert new is not None
    assert new.token == old.token + 1
    assert await write(one, old) == []
    assert sorted(await write(two, new)) == [1, 2]


async def test_a_name_is_not_to_be_had_while_a_fenced_write_is_under_way(connect) -> None:
    one, two = await connect(), await connect()
    old = await take(one, "op:a", uuid4())
    assert old is not None
    await let_lapse(one)
    transaction = one.transaction()
    await transaction.start()
    assert len(await write(one, old)) == 2
    assert await take(two, "op:a", uuid4()) is None, "and nobody waits for it"
    await transaction.commit()
    new = await take(two, "op:a", uuid4())
    assert new is not None
    assert new.token == 2


async def take_over_while_the_write_waits(connect, text: str) -> list[int]:
    """Trap: the write waits for a row of its own table, and the take-over commits before it goes on."""
    one, two, third, watcher = [await connect() for _ in range(4)]
    old = await take(one, "op:a", uuid4())
    assert old is not None
    blocking = third.transaction()
    await blocking.start()
    await third.execute("SELECT FROM thing WHERE id = 1 FOR UPDATE")
    late = asyncio.ensure_future(write(one, old, text))
    await waits(watcher, one)
    pushing = asyncio.ensure_future(
        two.execute("UPDATE postroad.lease SET token = token + 1, holder = $1 WHERE name = 'op:a'", uuid4())
    )
    if text == EXISTS:
        await pushing
    else:
        await waits(watcher, two)
    await blocking.rollback()
    written = await late
    await pushing
    return written


async def test_the_fence_makes_a_take_over_wait_even_while_the_write_waits(connect) -> None:
    assert len(await take_over_while_the_write_waits(connect, GUARDED)) == 2


@pytest.mark.sabotage
async def test_without_the_lock_a_write_passes_after_the_take_over(connect) -> None:
    assert len(await take_over_while_the_write_waits(connect, EXISTS)) == 2, "two writers believe in the name"


async def test_the_pipeline_locks_for_the_rest_of_the_transaction(connect) -> None:
    one, two = await connect(), await connect()
    lease = await take(one, "op:a", uuid4())
    assert lease is not None
    await let_lapse(one)
    async with one.transaction():
        assert await drive(fence("postroad", [lease]), AsyncpgHand(one)) == {"op:a"}
        assert await take(two, "op:a", uuid4()) is None
        await one.execute("DELETE FROM thing WHERE id = 1")
        assert await take(two, "op:a", uuid4()) is None
    assert await take(two, "op:a", uuid4()) is not None
    assert await drive(fence("postroad", [lease]), AsyncpgHand(one)) == frozenset()


async def test_renewals_and_fences_of_many_names_never_deadlock(connect) -> None:
    one, two = await connect(), await connect()
    holder, names = uuid4(), [f"shard:{number:02}" for number in range(16)]
    statement = store.acquire("postroad", names, holder=holder, ttl=TTL)
    rows = await one.fetch(statement.text, *statement.args)
    leases = [
        Lease(row["name"], token=row["token"], holder=holder, ttl=TTL, sent=0, clock=ManualClock()) for row in rows
    ]
    chance = random.Random(7)

    async def renew() -> None:
        for _ in range(150):
            shuffled = chance.sample(leases, len(leases))
            statement = store.renew("postroad", shuffled)
            assert len(await one.fetch(statement.text, *statement.args)) == 16

    async def guard() -> None:
        for _ in range(150):
            assert len(await drive(fence("postroad", chance.sample(leases, len(leases))), AsyncpgHand(two))) == 16

    await asyncio.gather(renew(), guard())


async def test_recovery_sees_the_dead_and_not_the_living_or_the_released(connect) -> None:
    one = await connect()
    hand = AsyncpgHand(one)
    await take(one, "worker:dead", uuid4(), ttl=1)
    await let_lapse(one)
    await take(one, "worker:alive", uuid4())
    gone = await take(one, "worker:gone", uuid4())
    assert gone is not None
    released = store.release("postroad", [gone])
    await one.fetch(released.text, *released.args)
    assert await drive(living("postroad", "worker:"), hand) == 1
    assert await drive(expired("postroad", "worker:"), hand) == (Lapsed("worker:dead", 1),)
    asked = ["worker:alive", "worker:dead", "worker:gone", "worker:never"]
    assert await drive(lapsed("postroad", asked), hand) == (
        Lapsed("worker:dead", 1),
        Lapsed("worker:gone", 1),
        Lapsed("worker:never", 0),
    )


WROTE = render(
    f"WITH {FENCE} INSERT INTO wrote (token) SELECT ($2::bigint[])[1] FROM fence RETURNING place", "postroad"
)


async def contend(connect, *, text: str, rounds: int, seed: int) -> list[int]:
    """Eight processes fight for one name, with pauses past their lease; the tokens in the order of their commits."""
    first = await connect()
    await first.execute("CREATE TABLE wrote (place bigserial PRIMARY KEY, token bigint NOT NULL)")
    chance = random.Random(seed)

    async def process() -> None:
        connection, holder = await connect(), uuid4()
        for _ in range(rounds):
            lease = await take(connection, "op:hot", holder, ttl=0.005)
            if lease is None:
                await asyncio.sleep(chance.random() * 0.003)
                continue
            for _ in range(3):
                await asyncio.sleep(chance.choice([0, 0, 0.002, 0.008]))
                await connection.fetch(text, ["op:hot"], [lease.token], holder)

    await asyncio.gather(*(process() for _ in range(8)))
    return [row["token"] for row in await first.fetch("SELECT token FROM wrote ORDER BY place")]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_of_many_contenders_at_most_one_passes_and_tokens_only_grow(connect, seed) -> None:
    tokens = await contend(connect, text=WROTE, rounds=60, seed=seed)
    assert len(set(tokens)) > 5
    assert tokens == sorted(tokens), "a write with an old token came after a newer one's"


@pytest.mark.sabotage
async def test_without_a_fence_old_tokens_write_after_newer_ones(connect) -> None:
    bare = "INSERT INTO wrote (token) SELECT ($2::bigint[])[1] WHERE $1::text[] IS NOT NULL AND $3::uuid IS NOT NULL"
    tokens = await contend(connect, text=bare, rounds=60, seed=1)
    assert tokens != sorted(tokens)
