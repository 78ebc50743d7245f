"""Copies of a database beside their original: silent until a person says so; restarts and fail-overs go on."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy as copy_of
from typing import TYPE_CHECKING, Any

import pytest

from postroad.testing.servers import PostgresServer, Rabbit
from road.roads import Road, told, until
from runtime.processes import Running, fetch, postroad

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres

pytestmark = pytest.mark.heavy
ADOPT = ("adopt", "--yes", "--json")


def silent(road: Road, app: str, roles: str, **settings: str) -> Running:
    """A process that has found its doubt, and said so."""
    running = road.processes.enter_context(Running(app, "--only", roles, **{**road.settings, **settings}))
    port = int(running.wait_for("health_serving")["port"])
    running.wait_for("installation_doubted")
    status, page = fetch(port, "/health/ready")
    assert status == 503
    assert json.loads(page)["services"]["installation"]["ready"] is False
    return running


def waits(road: Road) -> int:
    return road.count("postroad.outbox")


@pytest.fixture
def copied(postgres: Postgres, road: Road) -> Iterator[Callable[[], Road]]:
    """Copies `road` within its server; nobody may be connected to it."""
    names: list[str] = []

    def copy() -> Road:
        names.append(f"{road.name}_copy")
        postgres.create_database(names[-1], road.name)
        return unmade(road, postgres, names[-1])

    yield copy
    for name in names:
        postgres.drop_database(name)


def unmade(road: Road, postgres: Postgres, name: str) -> Road:
    """A road like this one on a database that has its tables already."""
    made = copy_of(road)
    made.postgres, made.name = postgres, name
    return made


def used(road: Road) -> None:
    """The road has carried something, and its processes have stopped; three events wait."""
    board, dispatcher = road.board(), road.dispatcher()
    road.publish(range(3))
    road.await_seen(range(3))
    for running in (board, dispatcher):
        running.stop()
    road.publish(range(3, 6))


# --- a logical copy ---------------------------------------------------------------------------------------------------


def test_a_copy_on_the_same_broker_sends_nothing_until_it_is_adopted(road: Road, copied: Callable[[], Road]) -> None:
    used(road)
    copy = copied()
    road.board()
    own = silent(copy, "road.apps.parcels:app", "dispatch")
    assert waits(copy) == 3
    road.dispatcher()
    road.await_seen(range(6))
    copy.publish([99])

    shown = json.loads(copy.command(*ADOPT, "--discard-waiting"))
    assert "is a copy" in shown["doubt"]
    assert shown["waiting"] == shown["adopted"]["discarded"] == 4
    own.wait_for("installation_confirmed")
    copy.publish([7])
    road.publish([8])
    road.await_seen([7, 8])
    assert road.seen() == dict.fromkeys([*range(6), 7, 8], 1)
    assert waits(copy) == 0


def test_a_copy_of_a_consumer_takes_nothing(road: Road, copied: Callable[[], Road]) -> None:
    used(road)
    copy = copied()
    silent(copy, "road.apps.board:app", "consume,work")
    road.board()
    road.dispatcher()
    road.publish(range(6, 40))
    road.await_seen(range(40))
    assert copy.seen() == dict.fromkeys(range(3), 1)


@pytest.mark.sabotage
def test_sabotage_a_copy_that_is_not_found_out_sends_what_its_original_sends(
    road: Road, copied: Callable[[], Road]
) -> None:
    used(road)
    copy = copied()
    copy.dispatcher(ROAD_WITHOUT="doubt")
    until(lambda: waits(copy) == 0)


# --- another broker ---------------------------------------------------------------------------------------------------


def test_a_database_with_another_broker_is_silent_until_it_is_adopted(road: Road, rabbit: Rabbit) -> None:
    used(road)
    other = f"{road.broker_url.rpartition('/')[2]}-other"
    url = rabbit.add_vhost(other)
    try:
        staging = copy_of(road)
        staging.broker_url = url
        silent(staging, "road.apps.parcels:app", "dispatch")
        assert waits(road) == 3
        doctor = postroad("doctor", "--json", **staging.settings)
        assert doctor.returncode == 1
        (finding,) = (one for one in json.loads(doctor.stdout)["findings"] if one["name"] == "installation")
        assert finding["severity"] == "error"
        assert other in finding["found"]
        assert json.loads(staging.command(*ADOPT, "--send-waiting"))["adopted"]["waiting"] == 3
        boarded = staging.board()
        staging.await_seen(range(6))
        boarded.stop()
    finally:
        road.processes.close()
        rabbit.drop_vhost(other)


# --- a physical copy --------------------------------------------------------------------------------------------------


@contextmanager
def physical(original: PostgresServer, *, standby: bool = False) -> Iterator[PostgresServer]:
    """A server on a copy of the files of `original`, which runs; not started yet."""
    copy = PostgresServer(bin_dir=original._binaries)
    try:
        data = copy._data
        copied = subprocess.run(
            [
                original._binaries / "pg_basebackup", "-D", data, "-d", original.url(), "-c", "fast", "-X", "stream",
                *(["-R"] if standby else []),
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert copied.returncode == 0, copied.stderr
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"port = {copy.port}\nunix_socket_directories = '{data.parent}'\n")
        if copy._account is not None:
            for path in [data.parent, *data.parent.rglob("*")]:
                os.chown(path, *copy._account)
        yield copy
    finally:
        copy.close()


@pytest.fixture
def own_road(own_postgres: PostgresServer, vhost: str) -> Iterator[Road]:
    """A road on a server of its own."""
    url = own_postgres.create_database("own")
    done = postroad("migrate", "--runtime-role", "pr_runtime", "--author-role", "pr_author", POSTROAD_DATABASE_URL=url)
    assert done.returncode == 0, done.stderr
    made = Road(own_postgres, "own", vhost)
    with made.processes:
        yield made


def test_a_physical_copy_beside_its_original_is_silent_at_once_and_when_the_original_is_gone(
    own_road: Road, own_postgres: PostgresServer
) -> None:
    road = own_road
    road.board()
    dispatcher = road.dispatcher()
    road.publish(range(3))
    road.await_seen(range(3))
    with physical(own_postgres) as server, ExitStack() as stack:
        server.start()
        copy = unmade(road, server, "own")
        copy.processes = stack
        copy.publish([50])
        found = silent(copy, "road.apps.parcels:app", "dispatch")
        assert "another running database" in told(found, "installation_doubted")[0]["reason"]
        road.publish(range(3, 6))
        road.await_seen(range(6))
        for _ in range(2):  # Two minutes pass, for the tokens.
            grown_old(road)
        dispatcher.stop()
        until(lambda: any("does not know this state" in line["reason"] for line in told(found, "installation_doubted")))
        assert waits(copy) == 1
        assert not told(dispatcher, "installation_doubted")
        road.dispatcher()
        road.publish([6])
        road.await_seen(range(7))
        assert 50 not in road.seen()


def grown_old(road: Road) -> None:
    """The tokens are over a minute old, and change."""
    before = road.rows("SELECT token FROM postroad.installation")
    road.rows("UPDATE postroad.installation SET changed_at = now() - interval '2 minutes'")
    until(lambda: road.rows("SELECT token FROM postroad.installation") != before)


@pytest.mark.sabotage
def test_sabotage_a_physical_copy_that_is_not_denied_sends(own_road: Road, own_postgres: PostgresServer) -> None:
    own_road.board()
    own_road.dispatcher()
    with physical(own_postgres) as server, ExitStack() as stack:
        server.start()
        copy = unmade(own_road, server, "own")
        copy.processes = stack
        copy.publish([50])
        copy.dispatcher(ROAD_WITHOUT="doubt")
        until(lambda: 50 in own_road.seen())


# --- the same database ------------------------------------------------------------------------------------------------


def test_a_promoted_standby_goes_on_by_itself(own_road: Road, own_postgres: PostgresServer) -> None:
    road = own_road
    running = [road.board(), road.dispatcher()]
    road.publish(range(3))
    road.await_seen(range(3))
    with physical(own_postgres, standby=True) as server, ExitStack() as stack:
        server.start()
        grown_old(road)
        road.publish(range(3, 6))
        road.await_seen(range(6))
        last = own_postgres.execute("SELECT pg_current_wal_lsn()")[0][0]
        until(lambda: server.execute(f"SELECT pg_last_wal_replay_lsn() >= '{last}'") == [("t",)])
        own_postgres.kill()
        server.execute("SELECT pg_promote()")
        promoted = unmade(road, server, "own")
        promoted.processes = stack
        for one in running:
            one.stop()
        one, two = promoted.board(), promoted.dispatcher()
        promoted.publish(range(6, 9))
        promoted.await_seen(range(9))
        assert promoted.seen() == dict.fromkeys(range(9), 1)
        assert not told(one, "installation_doubted")
        assert not told(two, "installation_doubted")


def test_a_database_that_crashed_under_several_processes_goes_on_by_itself(
    own_road: Road, own_postgres: PostgresServer
) -> None:
    road = own_road
    running = [road.board(), road.dispatcher(), road.dispatcher()]
    road.publish(range(3))
    road.await_seen(range(3))
    own_postgres.kill()
    own_postgres.start()
    road.publish(range(3, 6))
    road.await_seen(range(6))
    road.assert_nothing_charged()
    assert not [line for one in running for line in told(one, "installation_doubted")]


# --- the command ------------------------------------------------------------------------------------------------------


def adopt(road: Road, *arguments: str) -> subprocess.CompletedProcess[Any]:
    return postroad("adopt", *arguments, **road.settings)


def test_nothing_is_adopted_where_nothing_is_in_doubt(road: Road) -> None:
    used(road)
    before = road.rows("SELECT id, token FROM postroad.installation")
    done = adopt(road, "--yes", "--discard-waiting")
    assert (done.returncode, "nothing to adopt" in done.stdout) == (0, True)
    assert json.loads(adopt(road, "--json").stdout)["adopted"] is None
    assert road.rows("SELECT id, token FROM postroad.installation") == before
    assert waits(road) == 3


def test_a_person_has_to_say_what_becomes_of_what_waits_and_that_it_is_meant(
    road: Road, copied: Callable[[], Road]
) -> None:
    used(road)
    copy = copied()
    undecided = adopt(copy, "--yes")
    assert undecided.returncode == 2
    assert "3 events wait" in undecided.stderr
    assert "the oldest for" in undecided.stdout
    unasked = adopt(copy, "--send-waiting")
    assert unasked.returncode == 2
    assert "--yes" in unasked.stderr
    assert (
        "postroad adopt" in json.loads(adopt(copy, "--json", "--yes", "--send-waiting", "--by", "jo").stdout)["doubt"]
    )
    assert copy.rows("SELECT adopted_by FROM postroad.installation") == [("jo",)]
    assert waits(copy) == 3
