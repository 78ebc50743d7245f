"""An App with a `def` consumer, as a process."""

from __future__ import annotations

import sys
import time
from importlib import import_module

import psycopg
import pytest

from postroad.psycopg import within
from runtime.processes import APPS, Running

pytestmark = pytest.mark.heavy
OPEN = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'postroad plain.book' AND xact_start IS NOT NULL"


@pytest.fixture
def settings(postgres, database, runtime_url, vhost):
    postgres.execute(
        "CREATE TABLE booked (number int); GRANT INSERT ON booked TO pr_runtime", database=database.rpartition("/")[2]
    )
    return {"POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_BROKER_URL": vhost}


@pytest.fixture
def look(postgres, database):
    return lambda query: [tuple(map(int, row)) for row in postgres.execute(query, database=database.rpartition("/")[2])]


def stage(url, numbers):
    sys.path.insert(0, str(APPS))
    try:
        placed = import_module("plain").Placed
    finally:
        sys.path.remove(str(APPS))
    with psycopg.connect(url) as connection:
        within(connection).publish_many([placed(number=number) for number in numbers])


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)  # a poll: another process tells nothing


def test_a_def_consumer_carries_events_and_its_own_onward(settings, author_url, look):
    with Running("plain:app", **settings) as app:
        stage(author_url, range(50))
        until(lambda: look("SELECT count(*), count(DISTINCT number) FROM booked") == [(50, 50)])
        until(lambda: look("SELECT count(*) FROM postroad.outbox") == [(0,)])
        assert app.stop() < 10
        assert app.process.returncode == 0
    story = "SELECT count(*) FROM postroad.event b JOIN postroad.event p ON b.causation = p.id::text"
    assert look(story) == [(50,)]
    assert look("SELECT count(*) FROM postroad.work") == [(0,)]


def test_a_thread_that_never_returns_is_reported_and_keeps_nothing_from_ending(settings, author_url, look):
    grace = 4
    with Running("plain:app", ORDERS_MODE="hangs", POSTROAD_GRACE_SECONDS=str(grace), **settings) as app:
        stage(author_url, range(10))
        app.wait_for("threads_stuck", pool="plain.book", count=1)
        until(lambda: look("SELECT count(*) FROM booked") == [(9,)])
        until(lambda: look("SELECT count(*) FROM postroad.work") == [(1,)])
        assert app.stop() < grace + 1
        assert app.process.returncode == 0
        assert app.wait_for("shutdown_receipt")["abandoned"] == 1
    assert look("SELECT count(*) FROM booked WHERE number = 0") == [(0,)]


def test_told_to_stop_while_it_hangs_the_delivery_goes_back(settings, author_url, look):
    with Running("plain:app", ORDERS_MODE="hangs", POSTROAD_GRACE_SECONDS="1", **settings) as app:
        stage(author_url, [0])
        until(lambda: look(OPEN) != [(0,)])
        assert app.stop() < 2
    assert look("SELECT count(*) FROM booked") == [(0,)]
    assert look("SELECT count(*) FROM postroad.inbox WHERE outcome = 'handled'") == [(0,)]
