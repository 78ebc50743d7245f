"""The bond: a database binds itself once, and is the only one of its installation that may send."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pika
import pytest

from outbox.installations import execute, marked, row, until_row
from postroad.clock import SYSTEM_CLOCK
from postroad.errors import AccessRefused
from postroad.outbox import bond as room
from postroad.outbox import installation
from postroad.outbox.bond import HELD, Bond
from postroad.signals import Signals
from postroad.signals.catalog import InstallationConfirmed, InstallationDoubted
from postroad.sql.manager import Manager
from postroad.testing.servers import TcpProxy
from postroad.transport.amqp import AmqpTransport
from support import Recorder, ThreadOwner, until

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres, Rabbit

SCHEMA = "postroad"


@dataclass
class Side:
    """A process's bond, and what it said."""

    bond: Bond
    heard: Recorder
    stop: asyncio.Event
    running: asyncio.Task[None]
    said: list[str] = field(default_factory=list)

    @property
    def clear(self) -> bool:
        return self.bond.cleared.is_set()

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.running, 10)


class Ready:
    def __init__(self) -> None:
        self.said: list[str] = []

    def up(self) -> None:
        self.said.append("")

    def down(self, reason: str) -> None:
        self.said.append(reason)


Start = Callable[..., Awaitable[Side]]


@pytest.fixture
async def side(vhost: str) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def start(url: str, broker: str = vhost) -> Side:
            manager = await Manager.open(url, schema=SCHEMA, size=2)
            stack.push_async_callback(manager.close)
            signals = Signals()
            owner = ThreadOwner(signals)
            transport = AmqpTransport(
                broker, owner=owner, signals=signals, clock=SYSTEM_CLOCK, chance=random.random
            )  # fmt: skip
            line = asyncio.Event()
            running = owner.task(transport.run(line, Ready()), name="transport")
            stack.push_async_callback(asyncio.wait, [running])
            stack.callback(line.set)
            bond = Bond(
                manager, transport.marks(), owner=owner, signals=signals, clock=SYSTEM_CLOCK, chance=random.random
            )
            stop, ready = asyncio.Event(), Ready()
            made = Side(bond, Recorder(signals), stop, owner.task(bond.run(stop, ready), name="bond"), ready.said)

            async def end() -> None:
                made.running.cancel()
                await asyncio.gather(made.running, return_exceptions=True)

            stack.push_async_callback(end)
            return made

        yield start


@pytest.fixture
def copied(postgres: Postgres, database: str, runtime_url: str) -> Callable[[], str]:
    """Copy the database within its server; the copy's URL. Nobody may be connected to it."""
    names: list[str] = []

    def copy() -> str:
        original = database.rpartition("/")[2]
        names.append(f"{original}_copy{len(names)}")
        postgres.create_database(names[-1], original)
        return runtime_url.replace(original, names[-1])

    yield copy  # type: ignore[misc]
    for name in names:
        postgres.drop_database(name)


# --- binding ----------------------------------------------------------------------------------------------------------


async def test_a_new_database_binds_itself_and_says_so(runtime_url: str, vhost: str, side: Start) -> None:
    one = await side(runtime_url)
    await until(lambda: one.clear)
    found = await row(runtime_url)
    told = await one.heard.wait(InstallationConfirmed)
    assert told.installation == str(found["id"])
    assert vhost.rpartition("/")[2] in found["broker"]
    assert "guest" not in found["broker"]
    assert await asyncio.to_thread(marked, vhost, found)


async def test_two_processes_that_bind_at_once_agree(runtime_url: str, side: Start) -> None:
    both = await asyncio.gather(*(side(runtime_url) for _ in range(4)))
    await until(lambda: all(one.clear for one in both))
    assert len({one.heard.all(InstallationConfirmed)[0].installation for one in both}) == 1


async def test_copies_made_before_the_first_start_are_installations_of_their_own(
    runtime_url: str, copied: Callable[[], str], side: Start
) -> None:
    other = copied()
    both = [await side(runtime_url), await side(other)]
    await until(lambda: all(one.clear for one in both))
    assert (await row(runtime_url))["id"] != (await row(other))["id"]


async def test_a_process_that_dies_while_it_binds_is_followed_by_one_that_finishes(
    runtime_url: str, side: Start
) -> None:
    await execute(runtime_url, "UPDATE postroad.installation SET next = gen_random_uuid(), place = 'of a copy'")
    one = await side(runtime_url)
    await until(lambda: one.clear)
    assert (await row(runtime_url))["broker"] is not None


# --- the same database goes on ----------------------------------------------------------------------------------------


async def test_a_restarted_process_goes_on(runtime_url: str, side: Start) -> None:
    for _ in range(3):
        one = await side(runtime_url)
        await until(lambda: one.clear)  # noqa: B023 - waited for at once
        await one.end()
    assert not one.heard.all(InstallationDoubted)


async def test_tokens_change_once_they_are_old_and_the_mark_with_them(
    runtime_url: str, vhost: str, side: Start
) -> None:
    one = await side(runtime_url)
    await until(lambda: one.clear)
    before = await row(runtime_url)
    await execute(runtime_url, "UPDATE postroad.installation SET changed_at = now() - interval '2 minutes'")
    one.bond.look_again()
    await until_row(runtime_url, lambda now: now["token"] == before["next"])
    after = await row(runtime_url)
    assert await asyncio.to_thread(marked, vhost, after)
    assert not await asyncio.to_thread(marked, vhost, before)


@pytest.mark.parametrize("removed", [False, True], ids=["both-marked", "the-next-alone"])
async def test_a_process_that_dies_while_it_changes_tokens_is_followed_by_one_that_finishes(
    runtime_url: str, vhost: str, side: Start, removed: bool
) -> None:
    one = await side(runtime_url)
    await until(lambda: one.clear)
    await one.end()
    found = await row(runtime_url)

    def half() -> None:
        connection = pika.BlockingConnection(pika.URLParameters(vhost))
        channel = connection.channel()
        name = f"postroad.installation.{found['id']}"
        channel.exchange_declare(f"{name}.{found['next']}", "fanout", durable=True, internal=True)
        if removed:
            channel.exchange_delete(f"{name}.{found['token']}")
        connection.close()

    await asyncio.to_thread(half)
    two = await side(runtime_url)
    await until(lambda: two.clear)
    assert not two.heard.all(InstallationDoubted)
    now = await row(runtime_url)
    assert now["token"] == (found["next"] if removed else found["token"])


async def test_a_lost_broker_connection_is_a_doubt_until_it_is_proven_again(
    runtime_url: str, rabbit: Rabbit, vhost: str, side: Start
) -> None:
    with TcpProxy(rabbit.port) as line:
        one = await side(runtime_url, vhost.replace(f":{rabbit.port}/", f":{line.port}/"))
        await until(lambda: one.clear)
        line.cut()
        await until(lambda: not one.clear and "cannot be reached" in one.said[-1])
        line.heal()
        await until(lambda: one.clear)
    assert not one.heard.all(InstallationDoubted)


async def test_the_same_broker_by_another_name_is_the_same(
    runtime_url: str, rabbit: Rabbit, vhost: str, side: Start
) -> None:
    one = await side(runtime_url)
    await until(lambda: one.clear)
    with TcpProxy(rabbit.port) as line:
        two = await side(runtime_url, vhost.replace(f":{rabbit.port}/", f":{line.port}/"))
        await until(lambda: two.clear)


async def test_a_queue_deleted_by_hand_is_held_again(runtime_url: str, vhost: str, side: Start) -> None:
    one = await side(runtime_url)
    await until(lambda: one.clear)
    name = f"postroad.installation.{(await row(runtime_url))['id']}"

    def consumers(*, delete: bool = False) -> int:
        connection = pika.BlockingConnection(pika.URLParameters(vhost))
        try:
            channel = connection.channel()
            if delete:
                channel.queue_delete(name)
                return 0
            return int(channel.queue_declare(name, passive=True).method.consumer_count)
        except pika.exceptions.ChannelClosedByBroker:
            return 0
        finally:
            connection.close()

    await asyncio.to_thread(consumers, delete=True)
    async with asyncio.timeout(20):
        while await asyncio.to_thread(consumers) != 1:
            pass
    await until(lambda: one.clear)


# --- a copy does not --------------------------------------------------------------------------------------------------


async def a_copy(runtime_url: str, copied: Callable[[], str], side: Start) -> Side:
    """Start a copy of a bound database, whose processes have stopped."""
    one = await side(runtime_url)
    await until(lambda: one.clear)
    await one.end()
    await one.bond._manager.close()
    return await side(copied())


async def test_a_copy_is_told_by_its_place(runtime_url: str, copied: Callable[[], str], side: Start) -> None:
    copy = await a_copy(runtime_url, copied, side)
    told = await copy.heard.wait(InstallationDoubted)
    assert "is a copy" in told.reason
    assert "postroad adopt" in told.reason
    assert copy.bond.doubt == told.reason == copy.said[-1]


async def test_a_database_restored_to_an_older_state_is_told_by_its_tokens(runtime_url: str, side: Start) -> None:
    one = await side(runtime_url)
    await until(lambda: one.clear)
    await one.end()
    await execute(runtime_url, "UPDATE postroad.installation SET token = gen_random_uuid(), next = gen_random_uuid()")
    told = await (await side(runtime_url)).heard.wait(InstallationDoubted)
    assert "was restored" in told.reason


async def test_another_broker_is_told_with_both_names(
    runtime_url: str, rabbit: Rabbit, vhost: str, side: Start
) -> None:
    one = await side(runtime_url)
    await until(lambda: one.clear)
    await one.end()
    other = f"{vhost.rpartition('/')[2]}-other"
    url = rabbit.add_vhost(other)
    try:
        two = await side(runtime_url, url)
        told = await two.heard.wait(InstallationDoubted)
        await two.end()
    finally:
        rabbit.drop_vhost(other)
    assert other in told.reason
    assert "is bound to broker" in told.reason
    back = await side(runtime_url)
    await until(lambda: back.clear)


async def test_another_running_server_with_the_same_state_is_denied_while_the_first_one_runs(
    runtime_url: str, side: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A physical copy has the same identifiers and tokens; only the start of its server differs."""
    one = await side(runtime_url)
    await until(lambda: one.clear)
    monkeypatch.setattr(room, "_PATIENCE", room._SOON)
    as_another_server(monkeypatch)
    two = await side(runtime_url)
    told = await two.heard.wait(InstallationDoubted)
    assert told.reason == HELD
    assert one.clear
    monkeypatch.undo()
    await one.end()
    as_another_server(monkeypatch)
    await until(lambda: two.clear)  # As a standby that was promoted does.


def as_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on what is read comes from a server that was started at another time."""
    read = installation.read
    monkeypatch.setattr(installation, "read", lambda found: read({**dict(found), "instance": 4711}))


async def test_a_broker_user_without_the_rights_is_refused_by_name(
    runtime_url: str, rabbit: Rabbit, vhost: str, side: Start
) -> None:
    name = vhost.rpartition("/")[2]
    url = rabbit.add_user(f"user-{name}", "pw", vhost=name, configure="^$", read="^$", write="^$")
    one = await side(runtime_url, url)
    with pytest.raises(AccessRefused, match=r"postroad\\.installation"):
        await asyncio.wait_for(asyncio.shield(one.running), 20)


# --- sabotage ---------------------------------------------------------------------------------------------------------


@pytest.mark.sabotage
async def test_sabotage_without_the_place_a_fresh_copy_passes(
    runtime_url: str, copied: Callable[[], str], side: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = installation.read
    monkeypatch.setattr(installation, "read", lambda found: read({**dict(found), "place": found["here"]}))
    copy = await a_copy(runtime_url, copied, side)
    await until(lambda: copy.clear)


@pytest.mark.sabotage
async def test_sabotage_without_the_held_name_two_servers_pass_at_once(
    runtime_url: str, side: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from postroad.transport.amqp.marks import AmqpMarks

    async def held(*_: object) -> bool:
        return True

    monkeypatch.setattr(AmqpMarks, "hold", held)
    one = await side(runtime_url)
    await until(lambda: one.clear)
    as_another_server(monkeypatch)
    two = await side(runtime_url)
    await until(lambda: one.clear and two.clear)


@pytest.mark.sabotage
async def test_sabotage_without_marks_a_restored_database_passes(
    runtime_url: str, side: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from postroad.transport.amqp.marks import AmqpMarks

    async def has(*_: object) -> bool:
        return True

    one = await side(runtime_url)
    await until(lambda: one.clear)
    await one.end()
    await execute(runtime_url, "UPDATE postroad.installation SET token = gen_random_uuid(), next = gen_random_uuid()")
    monkeypatch.setattr(AmqpMarks, "has", has)
    two = await side(runtime_url)
    await until(lambda: two.clear)
