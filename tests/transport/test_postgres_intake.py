from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from postroad.clock import seconds
from postroad.errors import UsageError
from postroad.signals.catalog import WorkSettled
from postroad.transport.base import Settlement
from postroad.transport.postgres import PostgresTransport
from support import until
from transport.ends import SETTINGS, End, Numbers, PostgresEnds, bodies

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres

SLEEPY = replace(SETTINGS, idle=seconds(8), busy=seconds(8), sweep=seconds(30), repair=seconds(30))


@pytest.fixture
async def ends(postgres: Postgres, database: str, runtime_url: str) -> AsyncIterator[PostgresEnds]:
    async with AsyncExitStack() as stack:
        yield PostgresEnds(stack, postgres, database, runtime_url)


async def sent_after_a_look(ends: PostgresEnds) -> End:
    """An event that comes when the claimer has just looked, and would not look again for eight seconds."""
    end = await ends.open(settings=SLEEPY)
    await end.send(Numbers().message(b"7"))
    return end


async def test_in_one_process_the_commit_of_a_publish_wakes_the_consumer(ends: PostgresEnds) -> None:
    end = await sent_after_a_look(ends)
    assert bodies(await end.take(1, within=4)) == [7]


@pytest.mark.sabotage
async def test_without_the_wake_it_waits_for_the_next_look(ends: PostgresEnds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresTransport, "_wake", lambda *_: None)
    end = await sent_after_a_look(ends)
    with pytest.raises(TimeoutError):
        await end.take(1, within=3)


async def test_a_redelivered_one_is_never_kept_apart_as_a_suspect_since_its_starts_are_counted(
    ends: PostgresEnds, postgres: Postgres, database: str
) -> None:
    """A process that dies has its whole prefetch in hand: one by one they would take minutes."""
    numbers = Numbers()
    first = await ends.open(prefetch=50)
    await first.send(*numbers.messages(50))
    await first.take(50)
    name = database.rpartition("/")[2]
    gone = "UPDATE postroad.work SET worker = 'worker:gone'"  # Of a lease that nobody has: dead.
    postgres.execute(gone, database=name)
    second = await ends.open(prefetch=50)
    again = await second.take(50)
    assert {one.redelivered for one in again} == {True}
    second.intake.ack([one.tag for one in again])
    await until(lambda: sum(one.count for one in second.heard.all(WorkSettled) if one.result == "ok") == 50)
    assert postgres.execute("SELECT count(*) FROM postroad.work WHERE queue LIKE 'billing:%'", database=name) == [
        ("0",)
    ]


@pytest.mark.parametrize("prefetch", [0, -1, 65_536])
async def test_a_prefetch_that_no_transport_takes_is_refused(ends: PostgresEnds, prefetch: int) -> None:
    with pytest.raises(UsageError, match="prefetch"):
        await ends.open(prefetch=prefetch)


async def test_one_that_the_database_cannot_hold_is_refused_and_the_rest_of_its_batch_confirmed(
    ends: PostgresEnds,
) -> None:
    end, numbers = await ends.open(), Numbers()
    batch = [numbers.message(b"1"), numbers.message(b"2", content_type="a\x00b"), numbers.message(b"3")]
    settled = await end.send(*batch)
    assert [one.settlement for one in settled] == [Settlement.CONFIRMED, Settlement.REFUSED, Settlement.CONFIRMED]
    assert "22021" in settled[1].reason
    assert [one.body for one in await end.take(2)] == [b"1", b"3"]
