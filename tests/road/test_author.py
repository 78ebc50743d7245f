"""P1 and P15: an event is staged with the author's own state or not at all, and staging waits for nobody."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import pytest

from postroad.testing.servers import TcpProxy
from road.roads import TESTS, Road, until
from runtime.processes import environment

pytestmark = pytest.mark.heavy

# The author's COMMIT stays under way for a while, or fails: both by constraints of its own that are checked then.
AT_COMMIT = """
CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {body} RETURN NULL; END';
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON parcel DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION at_commit();
"""
SLOW, BROKEN = "PERFORM pg_sleep(1.5);", "RAISE EXCEPTION ''never'' USING ERRCODE = ''check_violation'';"
AUTHORS = "FROM pg_stat_activity WHERE usename = 'pr_author' AND datname = current_database()"
ENDINGS = {
    # How the author ends, and whether its transaction is then committed.
    "killed before the commit": False,
    "ended by the database in the commit": False,
    "refused by a constraint in the commit": False,
    "killed in the commit": True,  # The server finishes what it was told.
    "cut off in the commit": True,
    "killed after the commit": True,
}


@contextmanager
def author(url: str, manner: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "road.apps.author", url, manner]
    with subprocess.Popen(
        command, env=environment(PYTHONPATH=str(TESTS)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def end(road: Road, ending: str, manner: str) -> None:
    """Let an author come to `ending`, and wait until its session is over."""
    if ending.endswith("in the commit"):
        road.rows(AT_COMMIT.format(body=BROKEN if "constraint" in ending else SLOW))
    with TcpProxy(road.postgres.port) as line:
        url = f"postgresql://pr_author@127.0.0.1:{line.port}/{road.name}"
        with author(url, manner) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "staged\n"
            if ending == "killed before the commit":
                process.kill()
            else:
                process.stdin.write("commit\n")
                process.stdin.flush()
            if ending == "killed after the commit":
                assert process.stdout.readline() == "committed\n"
                process.kill()
            elif ending.endswith("in the commit") and "constraint" not in ending:
                until(
                    lambda: (
                        road.rows(f"SELECT count(*) {AUTHORS} AND query = 'COMMIT;' AND state = 'active'") == [("1",)]
                    )
                )
                match ending:
                    case "killed in the commit":
                        process.kill()
                    case "cut off in the commit":
                        line.cut()
                    case _:
                        road.rows(f"SELECT pg_terminate_backend(pid) {AUTHORS}")
            process.wait(30)
    until(lambda: road.rows(f"SELECT count(*) {AUTHORS}") == [("0",)])


def assert_both_or_neither(road: Road, ending: str) -> None:
    wanted = int(ENDINGS[ending])
    counts = road.count("parcel"), road.count("postroad.event"), road.count("postroad.outbox")
    assert counts == (wanted, wanted, wanted)


@pytest.mark.parametrize("ending", ENDINGS)
def test_however_an_author_ends_its_state_and_its_event_are_both_there_or_neither(road: Road, ending: str) -> None:
    end(road, ending, "together")
    assert_both_or_neither(road, ending)


@pytest.mark.sabotage
@pytest.mark.parametrize("ending", ["killed before the commit", "refused by a constraint in the commit"])
def test_an_event_in_a_transaction_of_its_own_outlives_the_state_that_it_speaks_of(road: Road, ending: str) -> None:
    end(road, ending, "apart")
    with pytest.raises(AssertionError):
        assert_both_or_neither(road, ending)


# --- nothing runs, nothing is prepared ------------------------------------------------------------------------------

DAYS = """
SELECT format('DROP TABLE postroad.%I', relname) FROM pg_class
WHERE relnamespace = 'postroad'::regnamespace AND relkind = 'r' AND relname ~ '_[0-9]{8}$'
"""


def remove_partitions(road: Road) -> None:
    """As if nothing of ours had run for two weeks."""
    statements = [statement for (statement,) in road.rows(DAYS)]
    assert statements
    road.rows(";".join(statements))


def test_publishing_works_at_once_with_every_process_stopped_and_no_partition_ahead(road: Road) -> None:
    remove_partitions(road)
    began = time.monotonic()
    road.publish(range(50))
    assert time.monotonic() - began < 2
    assert road.count("postroad.event", "tableoid::regclass::text LIKE '%_rest'") == road.count("postroad.outbox") == 50
    board, dispatcher = road.board(), road.dispatcher()
    road.await_seen(range(50))
    road.publish(range(50, 60))
    road.await_seen(range(60))
    assert set(road.seen().values()) == {1}
    road.assert_nothing_charged()
    assert board.stop() < 10
    assert dispatcher.stop() < 10


@pytest.mark.sabotage
def test_without_the_default_partitions_an_author_fails_where_maintenance_was_late(road: Road) -> None:
    remove_partitions(road)
    rest = road.rows(DAYS.replace("_[0-9]{8}$", "^event_.*_rest$"))
    road.rows(";".join(statement for (statement,) in rest))
    with pytest.raises(asyncpg.CheckViolationError, match="no partition"):
        road.publish([1])
