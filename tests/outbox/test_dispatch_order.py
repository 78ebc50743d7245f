"""Places appear out of order: no late commit is passed over, and no key is turned round; each with its sabotage."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict

import asyncpg
import pytest

from dispatching import an_event
from postroad.clock import seconds
from postroad.events.envelope import key_hash, shard_of
from postroad.outbox.floor import Floors
from support import until

HELD_OPEN = 0.03
WRITERS = 8
# Of one shard: they share a cursor, so that they can turn each other round.
NAMES = [name for name in (f"key-{number}" for number in range(1000)) if shard_of(key_hash(name)) == 0][:30]


@pytest.fixture
def no_floor(monkeypatch):
    """The floor is the cursor: nothing below it is looked at, but by the sweep."""
    advance = Floors.advance

    def both(self, shard, place):
        advance(self, shard, place)
        self.floor[shard] = self.cursor[shard]

    monkeypatch.setattr(Floors, "advance", both)


async def a_late_commit_arrives(author, broker, process, *, within: float) -> None:
    running = await process(broker)
    first, second = an_event("k1"), an_event("k1")
    async with author.open() as connection:
        await author.stage_on(connection, first)
        await author.stage(second)
        await until(lambda: broker.ids() == [str(second.id)])
        others = await author.stage(*[an_event("k1") for _ in range(30)])
        await until(lambda: set(others) <= set(broker.ids()))
        await until(lambda: not running.dispatcher._window.places())
        if running.dispatcher._floors.ranges(range(16))[0]:
            await until(lambda: running.dispatcher._floors.marked)  # The floor has had every chance to move.
    await until(lambda: str(first.id) in broker.ids(), within=within)


async def test_an_uncommitted_writer_with_a_lower_place_is_not_skipped(author, broker, process):
    await a_late_commit_arrives(author, broker, process, within=5)


@pytest.mark.sabotage
async def test_without_the_floor_an_uncommitted_writer_would_be_skipped(author, broker, process, no_floor):
    with pytest.raises(TimeoutError):
        await a_late_commit_arrives(author, broker, process, within=2)


@pytest.mark.sabotage
async def test_without_waiting_for_older_transactions_a_writer_would_be_skipped(author, broker, process, monkeypatch):
    passed = Floors.passed
    monkeypatch.setattr(Floors, "passed", lambda self, _oldest, seen: passed(self, 2**62, seen))
    with pytest.raises(TimeoutError):
        await a_late_commit_arrives(author, broker, process, within=2)


async def test_the_sweep_finds_what_the_floor_has_passed(author, broker, process, monkeypatch):
    passed = Floors.passed
    monkeypatch.setattr(Floors, "passed", lambda self, _oldest, seen: passed(self, 2**62, seen))
    running = await process(broker, sweep=seconds(0.3))
    first = an_event("k1")
    async with author.open() as connection:
        await author.stage_on(connection, first)
        ids = await author.stage(an_event("k1"))
        await until(lambda: broker.ids() == ids)
        await until(lambda: not running.dispatcher._floors.lagging)
    await until(lambda: str(first.id) in broker.ids())


async def keyed_traffic(url: str, author, *, for_seconds: float) -> int:
    """Writers that lock and count up a row of their key, stage, and stay open for 30 ms on average; how many staged."""
    ends = asyncio.get_running_loop().time() + for_seconds
    staged = 0

    async def write() -> None:
        nonlocal staged
        connection = await asyncpg.connect(url)
        while asyncio.get_running_loop().time() < ends:
            key = random.randrange(len(NAMES))
            async with connection.transaction():
                number = await connection.fetchval("UPDATE counter SET n = n + 1 WHERE key = $1 RETURNING n", key)
                await author.stage_on(connection, an_event(NAMES[key], correlation=f"{key}:{number}"))
                await asyncio.sleep(random.uniform(0, 2 * HELD_OPEN))
            staged += 1
        await connection.close()

    await asyncio.gather(*[write() for _ in range(WRITERS)])
    return staged


async def inversions(author, broker, process, database, database_rows, **settings) -> tuple[int, int]:
    """Run keyed traffic beside a dispatcher; how many events were sent, and how many after a later one of their key."""
    await database_rows.execute("CREATE TABLE counter (key int PRIMARY KEY, n int NOT NULL)")
    await database_rows.execute("INSERT INTO counter SELECT n, 0 FROM generate_series(0, $1) AS n", len(NAMES) - 1)
    await process(broker, **settings)
    staged = await keyed_traffic(database, author, for_seconds=3)
    await until(lambda: len(set(broker.ids())) == staged)
    newest: dict[str, int] = defaultdict(int)
    turned = 0
    for message in broker.seen:
        key, _, number = message.correlation_id.partition(":")
        turned += int(number) < newest[key]
        newest[key] = max(newest[key], int(number))
    return staged, turned


async def test_keyed_events_of_writers_that_stay_open_keep_their_order(
    author, broker, process, database, database_rows
):
    staged, turned = await inversions(author, broker, process, database, database_rows)
    assert staged > 300
    assert turned == 0
    assert len(broker.ids()) == staged


@pytest.mark.sabotage
async def test_without_the_floor_keyed_events_of_writers_that_stay_open_would_be_turned_round(
    author, broker, process, database, database_rows, no_floor
):
    _, turned = await inversions(author, broker, process, database, database_rows, sweep=seconds(1))
    assert turned > 10


async def test_a_writer_that_is_held_up_between_drawing_its_place_and_writing_is_not_skipped(
    author, broker, process, database_rows
):
    """A place is drawn before the row is written: by then the writer must be known to be running."""
    await database_rows.execute(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF NEW.retention = 7 THEN PERFORM pg_advisory_xact_lock_shared(7); END IF; RETURN NEW; END $$"
    )
    await database_rows.execute(
        "CREATE TRIGGER dawdle BEFORE INSERT ON postroad.outbox FOR EACH ROW EXECUTE FUNCTION dawdle()"
    )
    await author.stage(*[an_event("warm", retention=30) for _ in range(3)])
    running = await process(broker)
    held = an_event("k1", retention=7)
    await database_rows.execute("SELECT pg_advisory_lock(7)")
    staging = asyncio.ensure_future(author.stage(held))
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
    async with asyncio.timeout(10):
        while not await database_rows.fetchval(waits):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    later = await author.stage(*[an_event("k1", retention=30) for _ in range(5)])
    await until(lambda: set(later) <= set(broker.ids()))
    await until(lambda: not running.dispatcher._window.places())
    looks = running.dispatcher._floors
    await until(lambda: looks.marked or not looks.lagging)
    with contextlib.suppress(TimeoutError):
        await until(lambda: not looks.lagging, within=0.5)
    await database_rows.execute("SELECT pg_advisory_unlock(7)")
    await staging
    await until(lambda: str(held.id) in broker.ids(), within=3)
