"""Whole roads of real processes: an author, dispatchers and boards on one database and one virtual host."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pika
import pytest

from postroad.asyncpg import Publish, within
from postroad.clock import seconds
from postroad.testing.process import wait_until
from road.apps.parcels import ParcelMoved, ParcelWeighed
from runtime.processes import Running, postroad
from support import pooled

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres

TESTS = Path(__file__).parent.parent
AMQP, WITHOUT_BROKER = "amqp", "postgres"
EITHER = pytest.mark.parametrize("road", [AMQP, WITHOUT_BROKER], indirect=True)
"""Over either transport."""
EXCHANGE, QUEUE = "parcels.events", "board.moves"
TABLES = """
CREATE TABLE parcel (number int);
CREATE TABLE seen (number int, process int);
CREATE TABLE weight (id int GENERATED ALWAYS AS IDENTITY, key text, sequence bigint, process int);
GRANT INSERT ON parcel TO pr_author;
GRANT INSERT ON seen, weight TO pr_runtime;
"""


def until(condition: Callable[[], bool], *, within_seconds: float = 40) -> None:
    """Look until `condition` holds; each look may start a process."""
    assert wait_until(condition, within=seconds(within_seconds), every=seconds(0.1))


@dataclass
class Road:
    """One road, and the processes on it; they are gone when `processes` is closed."""

    postgres: Postgres
    name: str  # of the database
    broker_url: str
    processes: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.postgres.execute(TABLES, database=self.name)

    # --- processes --------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(TESTS), "POSTROAD_DATABASE_URL": pooled(self.postgres.url(self.name, "pr_runtime")),
            "POSTROAD_DIRECT_URL": self.postgres.url(self.name, "pr_runtime"),
            "POSTROAD_BROKER_URL": self.broker_url, "POSTROAD_LOG_LEVEL": "debug",
            "POSTROAD_SHARD_LEASE_SECONDS": "1", "POSTROAD_WORKER_LEASE_SECONDS": "2",
        }  # fmt: skip

    def dispatcher(self, **settings: str) -> Running:
        """A dispatcher that has come up."""
        return self._start("road.apps.parcels:app", "dispatch", settings)

    def board(self, **settings: str) -> Running:
        """A consumer that has come up; it makes its queues."""
        return self._start("road.apps.board:app", "consume,work", settings)

    def starting_board(self, **settings: str) -> Running:
        """A consumer that need not live long enough to come up."""
        given = {**self.settings, **settings}
        return self.processes.enter_context(Running("road.apps.board:app", "--only", "consume,work", **given))

    def _start(self, app: str, roles: str, settings: dict[str, str]) -> Running:
        running = self.processes.enter_context(Running(app, "--only", roles, **{**self.settings, **settings}))
        running.ready()
        return running

    def command(self, *arguments: str) -> str:
        """What one of the commands prints, run to its good end."""
        done = postroad(*arguments, **self.settings)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # --- authors ----------------------------------------------------------------------------------------------------

    def publish(self, numbers: Iterable[int], *, act: str = "", note: str = "") -> None:
        """Stage movements in one transaction, as the role that may do nothing else."""
        self.stage([ParcelMoved(number=number, act=act, note=note) for number in numbers])

    def weigh(self, key: str, *sequences: int) -> None:
        """Stage weights of one parcel with these sequence numbers, in this order."""
        self.stage([Publish(ParcelWeighed(grams=one), key=key, sequence=one) for one in sequences])

    def stage(self, events: Sequence[Any]) -> None:
        """Stage events in one transaction, with nothing of ours but a connection."""
        asyncio.run(_stage(self.postgres.url(self.name, "pr_author"), events))

    # --- what became of it ------------------------------------------------------------------------------------------

    def rows(self, sql: str) -> list[tuple[str, ...]]:
        return self.postgres.execute(sql, database=self.name)

    def count(self, table: str, where: str = "true") -> int:
        return int(self.rows(f"SELECT count(*) FROM {table} WHERE {where}")[0][0])

    def seen(self) -> Counter[int]:
        """How often each parcel is on the board."""
        return Counter({int(number): int(times) for number, times in self.rows(_SEEN)})

    def await_seen(self, numbers: Iterable[int], *, within_seconds: float = 40) -> None:
        """Wait until each is on the board, and the outbox knows that it arrived."""
        wanted = set(numbers)
        until(lambda: self.seen().keys() >= wanted, within_seconds=within_seconds)
        until(lambda: self.count("postroad.outbox") == 0)

    def assert_nothing_charged(self) -> None:
        for table, where in (
            ("work", "kind <> 'delivery'"),
            ("finished", "true"),
            ("quarantine", "true"),
            ("outbox", "attempts > 0"),
        ):
            assert self.count(f"postroad.{table}", where) == 0, table

    def quarantined(self) -> list[dict[str, Any]]:
        """What the command lists."""
        found: list[dict[str, Any]] = json.loads(self.command("quarantine", "list", "--json"))
        return found

    # --- the broker's side ------------------------------------------------------------------------------------------

    def on_channel(self, work: Callable[[Any], Any], *, url: str | None = None) -> Any:
        """Do something on a channel that is not Postroad's."""
        connection = pika.BlockingConnection(pika.URLParameters(url or self.broker_url))
        try:
            return work(connection.channel())
        finally:
            connection.close()


_SEEN = "SELECT number, count(*) FROM seen GROUP BY number"


async def _stage(url: str, events: Sequence[Any]) -> None:
    connection = await asyncpg.connect(pooled(url), statement_cache_size=0)  # As poolers need it.
    try:
        async with connection.transaction():
            await within(connection).publish_many(events)
    finally:
        await connection.close()


def told(running: Running, name: str, **fields: Any) -> list[dict[str, Any]]:
    """All records of a signal with these fields that a process has logged; one for each delivery that settled."""
    return [
        line
        for line in [*running.lines]
        if line.get("signal") == name and all(line.get(key) == value for key, value in fields.items())
        for _ in range(line["count"] if name == "delivery_settled" else 1)
    ]
