"""One run of the demo: flights through both services, with or without faults, until everything has arrived."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import pika

from postroad.clock import SYSTEM_CLOCK, Clock, seconds
from postroad.demo import flights, provider, reports, verify
from postroad.demo.chaos import Chaos
from postroad.demo.fleet import Fleet, Program, Role, inherited
from postroad.demo.notices import PROVIDER
from postroad.demo.servers import SCHEMA, Servers
from postroad.errors import Unavailable
from postroad.runtime.settings import is_postgres
from postroad.testing.process import wait_until

QUEUE: Final = "punctuality.projection"
PRODUCER_APP: Final = "postroad.demo.departures:app"
CONSUMER_APP: Final = "postroad.demo.punctuality:app"
PROCESSES: Final = {Role.CONSUMER: 2, Role.DISPATCHER: 2}
STALL: Final = 60.0
EXTRA: Final = 10
QUIET: Final = 0.8
HOPELESS: Final = 15.0
ALL: Final = 1 << 40
_PUBLISHED = f"SELECT count(*) FROM {SCHEMA}.event"  # noqa: S608 - a constant
_WAITING = f"SELECT count(*) FROM {SCHEMA}.outbox"  # noqa: S608 - a constant
_HANDLED = f"SELECT count(*) FROM {SCHEMA}.inbox WHERE outcome = 'handled'"  # noqa: S608 - a constant
_QUARANTINED = f"SELECT count(*) FROM {SCHEMA}.quarantine WHERE resolved_at IS NULL"  # noqa: S608 - a constant
_DELAYED = f"SELECT count(*) FROM {SCHEMA}.work"  # noqa: S608 - a constant
_UNREPORTED = f"""
SELECT (SELECT count(*) FROM {SCHEMA}.schedule_backfill WHERE ended_at IS NULL)
     + (SELECT count(*) FROM {SCHEMA}.occurrence WHERE kind = 'backfill' AND state IN ('pending', 'queued'))
     + (SELECT count(*) FROM {SCHEMA}.work)
"""  # noqa: S608 - a constant
_LOOKED_UP = f"SELECT count(DISTINCT subject) FROM {SCHEMA}.audit WHERE act = 'effect.look-up'"  # noqa: S608
_SEEN = "SELECT count(DISTINCT flight_id) FROM flight_seen"


@dataclass(slots=True)
class Progress:
    """How far the run is: lines staged, deliveries settled, and what just happened."""

    total: int
    staged: int = 0
    settled: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to; all counts, and the judge's word."""

    published: int
    confirmed: int
    handled: int
    duplicates: int
    quarantined: int
    seconds: float
    faults: dict[str, int]
    verdict: verify.Verdict
    unanswered: int
    looked_up: int
    malformed: tuple[flights.Malformed, ...] = ()
    repeated: int = 0


@dataclass(slots=True)
class Author:
    """The author's process, and what it has said."""

    process: subprocess.Popen[bytes]
    said: IO[str]
    staged: int = 0
    done: bool = False
    allowed: int = 0
    waits_at: int = -1
    repeated: int = 0
    malformed: list[flights.Malformed] = field(default_factory=list)

    def allow(self, lines: int) -> None:
        """Let it go on until so many lines."""
        if lines > self.allowed and self.process.stdin and not self.done:
            self.allowed = lines
            self.process.stdin.write(b"%d\n" % lines)
            self.process.stdin.flush()

    def listen(self) -> None:
        """Take in what it said since the last call.

        Raises:
            Unavailable: it ended before its work was done.
        """
        while (line := self.said.readline()).endswith("\n"):
            heard = json.loads(line)
            self.staged = heard.get("staged", self.staged)
            self.done = heard.get("done", self.done)
            self.waits_at = heard.get("waits_at", self.waits_at)
            self.repeated += "repeated" in heard
            if "malformed" in heard:
                self.malformed.append(flights.Malformed(*heard["malformed"]))
        if not self.done and self.process.poll() not in {None, 0}:
            raise Unavailable("PR301", f"the demo's author ended with code {self.process.returncode}")


class Road:
    """One run: `Servers` that stand, a `Fleet` on them, an author, and faults where they are asked for."""

    def __init__(
        self, servers: Servers, folder: Path, *, csv: Path, chaos: bool, consumer_app: str = CONSUMER_APP,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:  # fmt: skip
        """Prepare to send `csv` through; `consumer_app` is the consumer service's ``module:app``."""
        self._servers = servers
        self._folder = folder
        self._csv = csv
        self._clock = clock
        self._last_day = reports.last_day(clock.now())
        self._lines = sum(1 for _ in flights.read(csv))
        self.fleet = Fleet(folder, self._programs(consumer_app, chaos=chaos))
        carrier = servers.rabbit or (servers.postgres if is_postgres(servers.broker_url) else None)
        self._chaos = Chaos(self.fleet, carrier, self._lines) if chaos and carrier else None
        self.progress = Progress(self._lines)

    def _programs(self, consumer_app: str, *, chaos: bool) -> dict[Role, Program]:
        servers = self._servers
        shared = {
            "POSTROAD_BROKER_URL": servers.broker_url,
            "POSTROAD_TOPOLOGY": "apply",
            PROVIDER: servers.provider,
            "POSTROAD_GRACE_SECONDS": "10",
            "POSTROAD_START_TIMEOUT": "120",  # One that is killed may come back while the broker restarts.
        }
        if chaos:  # A killed process's leases run out soon, so that the run stays short.
            shared |= {
                "POSTROAD_SHARD_LEASE_SECONDS": "3",
                "POSTROAD_WORKER_LEASE_SECONDS": "5",
                "POSTROAD_SCHEDULER_LEASE_SECONDS": "3",
            }
        consumer = {**shared, "POSTROAD_DATABASE_URL": servers.consumer.runtime}
        producer = {**shared, "POSTROAD_DATABASE_URL": servers.producer.runtime}
        return {
            Role.CONSUMER: Program(consumer_app, "consume,work,schedule", consumer),
            Role.DISPATCHER: Program(PRODUCER_APP, "dispatch", producer),
        }

    def run(self, watch: Callable[[Progress], None]) -> Outcome:
        """Send everything through, calling `watch` as it goes; stop the processes, then ask the judge."""
        try:
            for role, count in PROCESSES.items():
                for _ in range(count):
                    self.fleet.start(role)
                self.fleet.await_ready()
            started = self._clock.monotonic()
            author = self._start_author()
            try:
                self._travel(author, watch)
            finally:
                _let_go(author)
            self._report(watch)
            took = self._clock.monotonic() - started
        finally:
            self.fleet.stop()
        return self._outcome(author, took)

    def _start_author(self) -> Author:
        out = self._folder / "author.out"
        with out.open("wb") as said, (self._folder / "author.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "postroad.demo.author", str(self._csv)],
                env={**inherited(), "DEMO_AUTHOR_URL": self._servers.producer.author},
                stdin=subprocess.PIPE, stdout=said, stderr=log,
            )  # fmt: skip
        return Author(process, out.open(encoding="utf-8"))

    def _travel(self, author: Author, watch: Callable[[Progress], None]) -> None:
        moved = (self._clock.monotonic(), -1, -1)

        def arrived() -> bool:
            nonlocal moved
            author.listen()
            self._look(author)
            watch(self.progress)
            if (self.progress.staged, self.progress.settled) != moved[1:]:
                moved = (self._clock.monotonic(), self.progress.staged, self.progress.settled)
            stalled = self._clock.monotonic() - moved[0]
            self._deal_faults(author, stalled)
            return stalled > STALL or (author.done and not self._pending() and stalled > QUIET and self._drained())

        wait_until(arrived, within=seconds(3600), every=seconds(0.05 if self._chaos is None else 0.004))

    def _report(self, watch: Callable[[Progress], None]) -> None:
        """Have the daily reports of the flights' own dates written, which are long past."""
        days = reports.days_of(self._csv, until=self._last_day)
        reports.ask(self._servers.consumer.runtime, days)
        self.progress.note = f"{len(days)} daily reports"
        watch(self.progress)

        def written() -> bool:
            dealt = self._chaos is None or not days or self._chaos.kill_scheduler()
            self.fleet.revive()
            return dealt and self._count(_UNREPORTED, self._servers.consumer.database) == 0

        wait_until(written, within=seconds(STALL), every=seconds(0.05 if self._chaos is None else 0.004))

    def _pending(self) -> bool:
        return self._chaos is not None and self._chaos.next_gate is not None

    def _deal_faults(self, author: Author, stalled: float) -> None:
        self.fleet.revive()
        if self._chaos is None or self._chaos.next_gate is None:
            author.allow(ALL)
            return
        gate = self._chaos.next_gate
        author.allow(gate.at)
        if self._chaos.step(author.staged):
            self.progress.note = f"{gate.fault.replace('_', ' ')}: {self._chaos.dealt[gate.fault]}"
        elif stalled > HOPELESS:
            self._chaos.give_up()
        elif stalled > QUIET and author.waits_at == author.allowed:
            author.allow(min(author.allowed + EXTRA, self._lines - 1))

    def _look(self, author: Author) -> None:
        self.progress.staged = author.staged
        self.progress.settled = min(sum(one.settled for one in self.fleet.gauges().values()), self._lines)

    def _drained(self) -> bool:
        sent, heard = self._servers.producer.database, self._servers.consumer.database
        return (
            self.fleet.held() == 0
            and self._count(_WAITING, sent) == 0
            and self._count(_DELAYED, heard) == 0
            and self._count(_SEEN, heard) + self._count(_QUARANTINED, heard) >= self._count(_PUBLISHED, sent)
            and self._queued() == 0
        )

    def _count(self, question: str, database: str) -> int:
        return int(self._servers.postgres.execute(question, database=database)[0][0])

    def _queued(self) -> int:
        if is_postgres(self._servers.broker_url):
            return 0  # What is under way is among the rows that were counted.
        connection = pika.BlockingConnection(pika.URLParameters(self._servers.broker_url))
        try:
            return int(connection.channel().queue_declare(QUEUE, passive=True).method.message_count)
        finally:
            connection.close()

    def _outcome(self, author: Author, took: float) -> Outcome:
        sent, heard = self._servers.producer.database, self._servers.consumer.database
        published = self._count(_PUBLISHED, sent)
        counted = self.fleet.gauges().values()
        faults = {str(fault): count for fault, count in self._chaos.dealt.items()} if self._chaos else {}
        skip = frozenset(line.line for line in author.malformed)
        _, told = asyncio.run(provider.ask(self._servers.provider, "GET"))
        owners = {"producer": self._servers.producer.owner, "consumer": self._servers.consumer.owner}
        return Outcome(
            published=published,
            confirmed=published - self._count(_WAITING, sent),
            handled=self._count(_HANDLED, heard),
            duplicates=sum(one.duplicates for one in counted),
            quarantined=self._count(_QUARANTINED, heard),
            seconds=round(took, 3),
            faults={
                **faults,
                "kills": sum(self.fleet.deaths.values()),
                "redeliveries": sum(one.redelivered for one in counted),
            },
            verdict=asyncio.run(
                verify.judge(self._csv, skip=skip, sent=told["notices"], until=self._last_day, **owners)
            ),
            unanswered=told["unanswered"],
            looked_up=self._count(_LOOKED_UP, heard),
            malformed=tuple(author.malformed),
            repeated=author.repeated,
        )


def _let_go(author: Author) -> None:
    if author.process.stdin:
        author.process.stdin.close()
    if author.process.poll() is None and not author.done:
        author.process.kill()
    author.process.wait()
    author.said.close()
