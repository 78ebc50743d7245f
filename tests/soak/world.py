"""The world of a soak: servers of its own, the lines to them, and the processes of both services."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import asyncpg
import pika

from postroad.asyncpg import Publish, within
from postroad.clock import seconds
from postroad.errors import Unavailable
from postroad.testing.process import wait_until
from postroad.testing.servers import PostgresServer, RabbitNode, TcpProxy
from soak.checker import Found
from soak.clock import Clock
from soak.service import Moved, Weighed

TESTS = Path(__file__).parent.parent
TABLES = """
CREATE TABLE parcel (number int);
CREATE TABLE weighed (key text, sequence bigint);
CREATE TABLE seen (number int, attempt int, process int);
CREATE TABLE weight (id int GENERATED ALWAYS AS IDENTITY, key text, sequence bigint, attempt int);
GRANT INSERT ON parcel, weighed TO soak_author;
GRANT INSERT ON seen, weight TO soak_runtime;
"""
KEYS = 20
PROCESSES = {"dispatcher": 2, "board": 3}
QUEUES = ("soak.moves", "soak.weights")
TAP = "soak.tap"
UP_SECONDS = 60.0


class Member:
    """One process of a service, started again by hand when it was killed."""

    def __init__(self, app: str, roles: str, environment: dict[str, str], log: Path) -> None:
        self._command = [sys.executable, "-m", "postroad", "run", app, "--only", roles]
        self._environment = environment
        self._log = log
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """SIGKILL it, and start another."""
        self.process.kill()
        self.process.wait()
        self.start()

    def stop(self) -> int:
        """SIGTERM it; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class World:
    """Everything that a soak runs on; entered it stands, left it is gone.

    The first process of each role has a clock of its own, which can be stepped.
    """

    vhost = "/"
    processes: ClassVar[dict[str, int]] = PROCESSES

    def __init__(self, folder: Path, *, board: str = "soak.service:board") -> None:
        self._folder = folder
        self._apps = {"dispatcher": ("soak.service:author", "dispatch"), "board": (board, "consume,work")}
        self._stack = ExitStack()
        self.members: dict[str, list[Member]] = {}
        self.clocks = [Clock(folder / f"{role}.clock") for role in self.processes]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in [member for members in self.members.values() for member in members]:
            with suppress(ProcessLookupError):
                member.process.kill()
            member.process.wait()
        self._stack.close()

    def _start(self) -> None:
        self.serve(self._stack)
        for role in ("soak_runtime", "soak_author"):
            self.postgres.add_role(role)
        self.postgres.create_database("soak")
        self._postroad("migrate", "--runtime-role", "soak_runtime", "--author-role", "soak_author")
        self.postgres.execute(TABLES, database="soak")
        self._postroad("topology", "apply", "soak.service:author")
        self._postroad("topology", "apply", "soak.service:board")
        self._tap()
        self.ready()
        environment = self.environment(self.database_url("soak_runtime"))
        for (role, count), clock in zip(self.processes.items(), self.clocks, strict=True):
            log = self._folder / f"{role}.log"
            given = [{**environment, **clock.environment}, *[environment] * (count - 1)]
            self.members[role] = [Member(*self._apps[role], each, log) for each in given]
        if not wait_until(self._is_up, within=seconds(UP_SECONDS), every=seconds(0.5)):
            raise Unavailable("PR302", "the services of the soak did not come up; their logs say why")

    def serve(self, stack: ExitStack) -> None:
        """Start the servers, and a line to the broker."""
        self.postgres, self.rabbit = stack.enter_context(PostgresServer()), stack.enter_context(RabbitNode())
        self.line = stack.enter_context(TcpProxy(self.rabbit.port))

    def ready(self) -> None:
        """What else has to be done before the processes start."""

    def database_url(self, user: str) -> str:
        """How authors and processes reach the database."""
        return self.postgres.url("soak", user)

    @property
    def broker_url(self) -> str:
        """How processes reach the broker."""
        return self.rabbit.url(port=self.line.port)

    def environment(self, database_url: str) -> dict[str, str]:
        """What a process is told."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
        path = os.pathsep.join(filter(None, [str(TESTS), kept.get("PYTHONPATH")]))
        return {
            **kept, "PYTHONPATH": path, "POSTROAD_DATABASE_URL": database_url,
            "POSTROAD_BROKER_URL": self.broker_url, "POSTROAD_LOG_LEVEL": "warning",
            "POSTROAD_SHARD_LEASE_SECONDS": "2", "POSTROAD_WORKER_LEASE_SECONDS": "3",
            "POSTROAD_START_TIMEOUT": "120",  # Nobody starts again here what gave up on a server that was away.
        }  # fmt: skip

    def _postroad(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "postroad", *arguments]
        environment = self.environment(self.postgres.url("soak"))  # As the owner.
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)

    def _tap(self) -> None:
        """A queue beside the consumer's own, which nobody consumes: what went over the wire, in its order."""
        connection = pika.BlockingConnection(pika.URLParameters(self.rabbit.url(self.vhost)))
        channel = connection.channel()
        channel.queue_declare(TAP, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind(TAP, "soak.events", "soak.parcel.weighed.*")
        connection.close()

    def victims(self, role: str, number: int) -> Member:
        """One of the processes of a role."""
        members = self.members[role]
        return members[number % len(members)]

    def _is_up(self) -> bool:
        """Whether every process dispatches or consumes."""
        dispatching = "SELECT count(DISTINCT holder) FROM postroad.lease WHERE starts_with(name, 'shard:')"
        if self.count(dispatching) < self.processes["dispatcher"]:
            return False
        consuming = self._queues("consumers")
        return all(consuming.get(queue, 0) >= self.processes["board"] for queue in QUEUES)

    def _queues(self, what: str) -> dict[str, int]:
        """A number that the broker has of each queue."""
        lines = self.rabbit.ctl(
            "list_queues", "-p", self.vhost, "--quiet", "--no-table-headers", "name", what
        ).splitlines()
        return {name: int(number) for name, number in (line.split("\t") for line in lines if "\t" in line)}

    # --- the end ------------------------------------------------------------------------------------------------

    def count(self, sql: str) -> int:
        """A number from the database."""
        return int(self.postgres.execute(sql, database="soak")[0][0])

    def is_at_rest(self) -> bool:
        """Whether everything that was committed went out and came in."""
        if self.count("SELECT count(*) FROM postroad.outbox") or self.count("SELECT count(*) FROM postroad.work"):
            return False
        if self.count("SELECT count(*) FROM parcel WHERE number NOT IN (SELECT number FROM seen)"):
            return False
        left = self._queues("messages")
        return all(left.get(queue, 0) == 0 for queue in QUEUES)

    def found(self) -> Found:
        """What the checker looks at; empties the tap."""
        rows = lambda sql: self.postgres.execute(sql, database="soak")  # noqa: E731
        kept = Counter({
            table: self.count(f"SELECT count(*) FROM postroad.{table}") for table in ("work", "quarantine", "outbox")
        })  # fmt: skip
        kept["finished"] = self.count("SELECT count(*) FROM postroad.finished")
        return Found(
            committed=[int(number) for (number,) in rows("SELECT number FROM parcel")],
            seen=[(int(number), int(attempt)) for number, attempt in rows("SELECT number, attempt FROM seen")],
            weighed=[(key, int(sequence)) for key, sequence in rows("SELECT key, sequence FROM weighed")],
            weights=[(k, int(s), int(a)) for k, s, a in rows("SELECT key, sequence, attempt FROM weight ORDER BY id")],
            wire=self._wire(),
            kept=+kept,
        )

    def _wire(self) -> list[tuple[str, int]]:
        connection = pika.BlockingConnection(pika.URLParameters(self.rabbit.url(self.vhost)))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=500)
        came: list[tuple[str, int]] = []
        for method, _, body in channel.consume(TAP, inactivity_timeout=3):
            if method is None:
                break
            envelope: dict[str, Any] = json.loads(body)
            came.append((envelope["partitionkey"], int(envelope["sequence"])))
            channel.basic_ack(method.delivery_tag)
        connection.close()
        return came


class Author:
    """Stages at a steady rate from a thread of its own, and goes on through every outage; its rows tell the truth."""

    def __init__(self, world: World, *, per_second: int) -> None:
        self._url = world.database_url("soak_author")
        self._pause = 1 / per_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._write()), name="author")
        self.slow_until = 0.0  # Until then its parcels ask for slow handlers.
        self.staged = 0
        self.acknowledged: set[int] = set()  # Parcels whose commit was answered.

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    async def _write(self) -> None:
        connection: asyncpg.Connection[asyncpg.Record] | None = None
        number, sequence = 0, 0
        while not self._stop.is_set():
            number, sequence = number + 1, sequence + 1
            try:
                if connection is None:
                    connection = await asyncpg.connect(self._url, timeout=5)
                await asyncio.wait_for(self._one(connection, number, sequence), 10)
                self.staged += 2
                self.acknowledged.add(number)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError):
                if connection is not None:  # Whether it was committed, the rows will tell.
                    connection.terminate()
                connection = None
                await asyncio.sleep(0.1)  # no hot loop while the database is away
            await asyncio.sleep(self._pause)  # the rate of its traffic
        if connection is not None:
            await connection.close()

    async def _one(self, connection: asyncpg.Connection[asyncpg.Record], number: int, sequence: int) -> None:
        key = f"k{sequence % KEYS}"
        slow = 0.5 if time.monotonic() < self.slow_until else 0.0
        async with connection.transaction():
            await connection.execute("INSERT INTO parcel VALUES ($1)", number)
            await connection.execute("INSERT INTO weighed VALUES ($1, $2)", key, sequence)
            events = [Publish(Moved(number=number, slow=slow)), Publish(Weighed(grams=1), key=key, sequence=sequence)]
            await within(connection).publish_many(events)


def at_rest(world: World, *, within_seconds: float) -> bool:
    """Wait until everything has arrived."""
    return wait_until(world.is_at_rest, within=seconds(within_seconds), every=seconds(0.5))
