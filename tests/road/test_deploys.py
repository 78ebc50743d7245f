"""Deploys under load: newer schemas, two releases at once, rollback, more and fewer processes, web workers beside."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

import asyncpg
import pytest

from postroad.runtime.exits import Exit
from postroad.sql.migrations import CODE_NUMBER
from road.apps.parcels import ParcelMoved
from road.apps.parcels_next import ParcelMoved as NextParcelMoved
from road.roads import Road, told, until
from runtime.processes import Running, environment, postroad

pytestmark = pytest.mark.heavy
LATER = CODE_NUMBER + 1
TABLES = (
    "event", "outbox", "lease", "inbox", "starts", "order_guard", "work", "quarantine", "finished", "installation",
    "inbox_mark",
)  # fmt: skip


def step(road: Road, *, serves: int) -> None:
    """What a later release's migration does: it adds, and says which releases it still serves."""
    columns = "(number, name, serves, checksum)"
    road.rows(f"INSERT INTO postroad.migration {columns} VALUES ({LATER}, 'later', {serves}, 'x')")
    for table in TABLES:
        road.rows(f"ALTER TABLE postroad.{table} ADD COLUMN later integer NOT NULL DEFAULT 7")
    road.rows("CREATE TABLE postroad.later (id bigint PRIMARY KEY)")


def start(road: Road, app: str, roles: str = "dispatch,consume,work", **settings: str) -> Running:
    """A process that is not waited for."""
    return road.processes.enter_context(Running(app, "--only", roles, **{**road.settings, **settings}))


# --- schemas ----------------------------------------------------------------------------------------------------------


def test_old_code_goes_on_restarts_and_ends_in_order_on_a_newer_schema(road: Road) -> None:
    running = [road.board(), road.dispatcher()]
    road.publish(range(10))
    road.await_seen(range(10))
    step(road, serves=CODE_NUMBER)
    road.publish(range(10, 20))
    road.weigh("K", 1, 2)
    road.await_seen(range(20))
    for one in running:
        one.stop()
        assert one.process.returncode == 0
    road.publish(range(20, 30))
    road.board()
    road.dispatcher()
    road.await_seen(range(30))
    until(lambda: road.count("weight") == 2)
    assert road.seen() == Counter(range(30))
    road.assert_nothing_charged()


def test_a_schema_that_serves_this_code_no_more_stops_its_start_and_not_what_runs(road: Road) -> None:
    road.board()
    road.dispatcher()
    step(road, serves=LATER)
    done = postroad("run", "road.apps.parcels:app", **road.settings)
    assert done.returncode == Exit.SCHEMA
    assert f"serves releases from {LATER}" in done.stderr
    road.publish(range(5))
    road.await_seen(range(5))


# --- two releases at once ---------------------------------------------------------------------------------------------


def labels(road: Road) -> Counter[int]:
    return Counter(int(number) for (number,) in road.rows("SELECT sequence FROM weight WHERE key = 'label'"))


def test_two_releases_at_once_lose_and_double_nothing_and_the_new_one_takes_what_the_old_one_refused(
    road: Road,
) -> None:
    old = road.board()
    start(road, "road.apps.board_next:app", "consume,work").ready()
    road.dispatcher()
    both = set(range(40))
    for number in range(0, 40, 4):
        road.stage([ParcelMoved(number=one) for one in range(number, number + 2)])
        road.stage([NextParcelMoved(number=one, place="depot") for one in range(number + 2, number + 4)])
    until(lambda: road.count("postroad.outbox") == 0)
    until(lambda: len(road.seen()) + len(refused(road)) == len(both))
    until(lambda: labels(road) == Counter(range(40)))
    old.stop()
    for row in refused(road):
        assert row["code"] == "PR503"
        road.command("quarantine", "retry", str(row["id"]))
    road.await_seen(both)
    assert road.seen() == Counter(both)
    assert road.count("postroad.quarantine", "resolved_at IS NULL") == 0


def refused(road: Road) -> list[dict[str, Any]]:
    return [row for row in road.quarantined() if row["queue"] == "board.moves"]


def test_a_rolled_back_release_leaves_what_only_it_can_do_and_finds_it_when_it_comes_again(road: Road) -> None:
    new = start(road, "road.apps.board_next:app", "consume,work")
    new.ready()
    road.dispatcher()
    road.publish(range(10))
    until(lambda: labels(road) == Counter(range(10)))
    road.publish(range(10, 40))
    until(lambda: len(labels(road)) > 15)
    new.stop()
    old = road.board()
    road.publish(range(40, 50))
    road.await_seen(range(50))
    assert not told(old, "service_failed")
    start(road, "road.apps.board_next:app", "consume,work").ready()
    until(lambda: labels(road) == Counter(range(50)))
    assert road.seen() == Counter(range(50))
    assert road.quarantined() == []


def test_a_rolling_deploy_under_load_loses_doubles_and_charges_nothing(road: Road) -> None:
    running = [start(road, "road.apps.whole:app") for _ in range(3)]
    for one in running:
        one.ready()
    with Load(road) as load:
        for place in (0, 1, 2, 0, 1, 2):  # Out with each, in with its successor; and back again.
            running[place].stop()
            assert running[place].process.returncode == 0
            running[place] = start(road, "road.apps.whole:app")
            running[place].ready()
        load.await_some(more=200)
    road.await_seen(range(load.count))
    assert road.seen() == Counter(range(load.count))
    road.assert_nothing_charged()


# --- more and fewer processes -----------------------------------------------------------------------------------------


@dataclass
class Load:
    """Stages events in the background, numbered from nought, while the block lasts."""

    road: Road
    batch: int = 20
    act: str = "wait:0.01"
    count: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _errors: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._errors

    def await_some(self, *, more: int) -> None:
        """Wait until so many more were staged."""
        wanted = self.count + more
        until(lambda: self.count >= wanted)

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.1):
                self.road.publish(range(self.count, self.count + self.batch), act=self.act)
                self.count += self.batch
        except BaseException as error:  # noqa: BLE001 - told by the block's end
            self._errors.append(error)


LOOK = """
SELECT extract(EPOCH FROM clock_timestamp())::float8, name, coalesce(holder::text, ''),
    holder IS NOT NULL AND expires_at > clock_timestamp()
FROM postroad.lease WHERE starts_with(name, 'shard:')
"""


@dataclass
class Watch:
    """Looks at the shards' leases while the block lasts, and knows for how long each had nobody who lives."""

    road: Road
    dead: dict[str, float] = field(default_factory=dict)  # Holders that were killed, and when.
    looks: list[list[tuple[float, str, str, bool]]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    async def _run(self) -> None:
        connection = await asyncpg.connect(self.road.postgres.url(self.road.name))
        while not self._stop.wait(0.05):
            self.looks.append([tuple(row) for row in await connection.fetch(LOOK)])
        await connection.close()

    def longest_idle(self) -> float:
        """The longest time for which a shard had no living holder; a killed one is dead from then on."""
        since: dict[str, float] = {}
        longest = 0.0
        for now, name, holder, held in (row for look in self.looks for row in look):
            if held and now < self.dead.get(holder, now + 1):
                longest = max(longest, now - since.pop(name, now))
            else:
                since.setdefault(name, max(self.dead.get(holder, now), 0.0) if held else now)
                longest = max(longest, now - since[name])
        return longest


def kill(running: Running, watch: Watch) -> None:
    """SIGKILL; its leases run out by themselves."""
    holder = next(
        line["name"].partition(":")[2]
        for line in told(running, "lease_acquired")
        if line["name"].startswith("dispatcher:")
    )
    watch.dead[holder] = time.time()
    running.stop(signal.SIGKILL)


LEASE = 2.0
SCALED = {"POSTROAD_SHARD_LEASE_SECONDS": f"{LEASE:g}", "POSTROAD_WORKER_LEASE_SECONDS": "4"}


def scaled(road: Road, watch: Watch) -> int:
    """One process, then ten, then two, under load; how many events there were."""
    running = [start(road, "road.apps.whole:app", **SCALED)]
    running[0].ready()
    until(lambda: road.count("postroad.lease", "starts_with(name, 'shard:') AND holder IS NOT NULL") == 16)
    with watch, Load(road) as load:
        running += [start(road, "road.apps.whole:app", **SCALED) for _ in range(9)]
        for one in running:
            one.ready()
        until(lambda: road.count("postroad.lease", "starts_with(name, 'dispatcher:') AND holder IS NOT NULL") == 10)
        load.await_some(more=200)
        for one in running[2:4]:
            kill(one, watch)
        for one in running[4:]:
            one.process.send_signal(signal.SIGTERM)
        for one in running[4:]:
            assert one.process.wait(30) == 0
        load.await_some(more=200)
        until(lambda: len(holders(road)) == 2)
    return load.count


def holders(road: Road) -> set[str]:
    sql = "SELECT DISTINCT holder FROM postroad.lease WHERE starts_with(name, 'shard:') AND holder IS NOT NULL"
    return {holder for (holder,) in road.rows(sql)}


def test_one_process_scaled_to_ten_and_to_two_under_load_loses_and_charges_nothing_and_no_shard_idles(
    road: Road,
) -> None:
    watch = Watch(road)
    count = scaled(road, watch)
    road.await_seen(range(count))
    assert road.seen() == Counter(range(count))
    road.assert_nothing_charged()
    assert len(watch.looks) > 50
    assert watch.longest_idle() < LEASE + 1


@pytest.mark.sabotage
def test_sabotage_shards_that_nobody_takes_over_idle_and_the_watch_sees_it(road: Road) -> None:
    """With the takers gone the measure of the test above must go up."""
    watch = Watch(road)
    only = start(road, "road.apps.whole:app", **SCALED)
    only.ready()
    until(lambda: road.count("postroad.lease", "starts_with(name, 'shard:') AND holder IS NOT NULL") == 16)
    with watch:
        kill(only, watch)
        until(lambda: watch.longest_idle() > LEASE + 1)


# --- web workers ------------------------------------------------------------------------------------------------------


def served(road: Road, *, workers: int, events: int, **settings: str) -> set[str]:
    """Forked web workers beside a process that runs: what they publish arrives. Who holds leases meanwhile."""
    start(road, "road.apps.whole:app").ready()
    author = road.postgres.url(road.name, "pr_author")
    web = subprocess.Popen(
        [sys.executable, "-m", "road.apps.web", author, str(workers), str(events)],
        env=environment(**{**road.settings, **settings}), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert web.stdout is not None
        assert [web.stdout.readline() for _ in range(workers)] == ["served\n"] * workers
        road.await_seen(range(workers * events))
        sql = "SELECT DISTINCT holder FROM postroad.lease WHERE holder IS NOT NULL AND expires_at > now()"
        found = {holder for (holder,) in road.rows(sql)}
        web.communicate("\n" * workers, timeout=30)
    finally:
        web.kill()
        web.wait()
    assert web.returncode == 0
    return found


def test_four_web_workers_beside_a_process_that_runs_publish_and_do_nothing_else(road: Road) -> None:
    assert len(served(road, workers=4, events=25)) == 1
    assert road.seen() == Counter(range(100))
    road.assert_nothing_charged()


@pytest.mark.sabotage
def test_sabotage_web_workers_that_are_given_roles_hold_leases_too(road: Road) -> None:
    assert len(served(road, workers=2, events=5, POSTROAD_ROLES="dispatch", POSTROAD_TOPOLOGY="apply")) == 3
