"""The how-to page's sections about replays run as they stand, each against the trouble that it is about."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from cli.test_work import postroad
from postroad.asyncpg import within
from postroad.testing.servers import RabbitNode
from road.roads import until
from runtime.processes import Running, import_app

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres

pytestmark = pytest.mark.heavy
PAGE = Path(__file__).parents[2] / "docs" / "howto.md"
QUEUE, EXCHANGE = "orders.book", "orders.events"


@dataclass
class Shop:
    """The App of the page, whose process has roles that come and go, on a database of its own."""

    postgres: Postgres
    database: str
    given: dict[str, str]
    processes: ExitStack = field(default_factory=ExitStack)

    def runs(self, roles: str) -> Running:
        running = self.processes.enter_context(Running("orders:app", "--only", roles, **self.given))
        running.ready()
        return running

    def publish(self, *numbers: int) -> None:
        booked = import_app("orders").OrderBooked

        async def stage() -> None:
            connection = await asyncpg.connect(self.postgres.url(self.database, "pr_author"))
            async with connection.transaction():
                await within(connection).publish_many([booked(number=number) for number in numbers])
            await connection.close()

        asyncio.run(stage())

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.postgres.execute(sql, database=self.database)

    def booked(self) -> list[int]:
        return sorted(int(row[0]) for row in self.rows("SELECT number FROM booked"))

    def await_sent(self) -> None:
        until(lambda: not self.rows("SELECT 1 FROM postroad.outbox"))

    def await_booked(self, *numbers: int) -> None:
        until(lambda: self.booked() == sorted(numbers))

    def follow(self, title: str, block: int, *, codes: dict[int, int] | None = None) -> list[str]:
        """Run every command of one block of a section; what each printed. `codes` are those that are not 0."""
        section = PAGE.read_text("utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
        lines = re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)[block].splitlines()
        printed = []
        for place, line in enumerate(lines):
            done = postroad(*shlex.split(line)[1:], **self.given)
            assert done.returncode == (codes or {}).get(place, 0), (line, done.stdout, done.stderr)
            printed.append(done.stdout)
        assert printed
        return printed


@pytest.fixture
def shop(postgres: Postgres, database: str, runtime_url: str) -> Iterator[Shop]:
    name = database.rpartition("/")[2]
    postgres.execute("CREATE TABLE booked (number int); GRANT INSERT ON booked TO pr_runtime", database=name)
    given = {
        "POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_BROKER_URL": "postgres:", "LOGNAME": "ada",
        "POSTROAD_SHARD_LEASE_SECONDS": "1", "POSTROAD_WORKER_LEASE_SECONDS": "2", "COLUMNS": "200",
    }  # fmt: skip
    made = Shop(postgres, name, given)
    with made.processes:
        yield made


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitNode]:
    """A node with the management API, by which bindings are seen."""
    with RabbitNode(management=True) as made:
        yield made


def test_a_lost_binding(shop: Shop, node: RabbitNode) -> None:
    shop.given |= {"POSTROAD_BROKER_URL": node.add_vhost("lost"), "POSTROAD_MANAGEMENT_URL": node.management_url()}
    shop.runs("dispatch,consume,work")
    shop.publish(1, 2)
    shop.await_booked(1, 2)
    unbound(shop.given["POSTROAD_BROKER_URL"])
    shop.publish(3, 4, 5)
    shop.await_sent()
    found = shop.follow("A lost binding", 0, codes={0: 1})
    assert "orders.order.booked.*" in found[0]
    assert shop.booked() == [1, 2]
    dry, sent, again, audit = shop.follow("A lost binding", 1)
    assert "replay to orders.book: 5 events" in dry
    assert "2 of them would be ignored as handled" in dry
    assert "5 of 5 sent to orders.book" in sent
    assert "5 events" in again
    assert "because: binding lost since yesterday" in audit
    shop.await_booked(1, 2, 3, 4, 5)


def unbound(url: str) -> None:
    """Take the consumer's binding away; somebody else's queue gets the events still."""
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare("others", durable=True)
    channel.queue_bind("others", EXCHANGE, "#")
    channel.queue_unbind(QUEUE, EXCHANGE, "orders.order.booked.*")
    connection.close()


def test_a_rebuilt_projection(shop: Shop) -> None:
    dispatcher = shop.runs("dispatch")
    consumer = shop.runs("consume,work")
    shop.publish(1, 2, 3)
    shop.await_booked(1, 2, 3)
    consumer.stop()
    shop.publish(4)  # It waits, and comes both ways.
    shop.await_sent()
    shop.rows("DELETE FROM booked")
    held, rehandled, _, done = shop.follow("A rebuilt projection", 0)
    assert "replay 1 is stopped: 0 of 4 sent" in held
    assert "orders.book runs replay" in rehandled
    assert "replay 1 is done: 4 of 4 sent" in done
    shop.runs("consume,work")
    shop.await_booked(1, 2, 3, 4)
    shop.publish(5)
    shop.await_booked(1, 2, 3, 4, 5)
    until(lambda: not shop.rows("SELECT 1 FROM postroad.work"))
    assert shop.booked() == [1, 2, 3, 4, 5]
    assert dispatcher.process.poll() is None


def test_moving_to_rabbitmq(shop: Shop, vhost: str) -> None:
    shop.follow("Moving from the PostgreSQL transport to RabbitMQ", 0)  # Of the old transport, as a deploy did it.
    before = shop.runs("dispatch")
    shop.publish(1, 2)
    shop.await_sent()
    before.stop()
    shop.publish(3)
    shop.given["POSTROAD_BROKER_URL"] = vhost
    shop.follow("Moving from the PostgreSQL transport to RabbitMQ", 0)
    shop.runs("dispatch,consume,work")
    shop.publish(4)
    shop.await_booked(1, 2, 3, 4)
    until(lambda: not shop.rows("SELECT 1 FROM postroad.work"))
    left, proof = shop.follow("Moving from the PostgreSQL transport to RabbitMQ", 1)
    assert left == "nothing is open\n"
    assert "replay to orders.book: 4 events" in proof
    assert "4 of them would be ignored as handled" in proof
