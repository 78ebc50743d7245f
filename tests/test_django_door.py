"""The author's door for Django: the same promises in its `atomic` blocks, in views, and in its test cases."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import unittest
from contextlib import suppress

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.http import HttpResponse
from django.test import Client, TestCase, TransactionTestCase, override_settings
from django.urls import path
from pydantic import BaseModel, Field

from django_site import Gate, databases
from django_site import database as place
from postroad import job
from postroad.django import Enqueue, Publish, alias, door, within
from postroad.errors import SchemaError, UsageError
from postroad.events import Producer
from postroad.events.cause import Cause, cause
from postroad.events.envelope import CONTENT_TYPE, decode

gates = Producer("docks")


@gates.event("gate.opened", version=3)
class Opened(BaseModel):
    """A gate was opened."""

    number: int = Field(description="Its number.")


@job("gates.paint")
def paint(request: Opened, run: object) -> None: ...


@pytest.fixture
def reader(database):
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("CREATE TABLE gate (id int PRIMARY KEY); GRANT ALL ON gate TO pr_author")

        def read(query):
            done = other.execute(query)
            return done.fetchall() if done.description else []

        yield read


@pytest.fixture
def django(author_url, reader):
    """Django on the database of the test, as the role that may publish and nothing more."""
    with databases(default=place(author_url)):
        yield


def left(reader):
    """The numbers of gates written, and of events staged."""
    bodies = reader("SELECT envelope FROM postroad.event ORDER BY seq")
    numbers = [decode(row[0], content_type=CONTENT_TYPE, headers={}).data["number"] for row in bodies]
    return sorted(row[0] for row in reader("SELECT id FROM gate")), numbers


def open_gate(number):
    Gate(id=number).save(force_insert=True)
    return within().publish(Opened(number=number), key="north")


def test_an_event_and_a_row_commit_together(django, reader):
    with transaction.atomic():
        identity = open_gate(1)
        assert left(reader) == ([], [])
    assert left(reader) == ([1], [1])
    assert reader("SELECT id::text FROM postroad.event") == [(str(identity),)]


@pytest.mark.parametrize("moment", ["between write and publish", "between publish and commit"])
def test_a_failure_leaves_neither(django, reader, moment):
    with suppress(ZeroDivisionError), transaction.atomic():
        Gate(id=1).save(force_insert=True)
        if moment == "between write and publish":
            raise ZeroDivisionError
        within().publish(Opened(number=1))
        raise ZeroDivisionError
    assert left(reader) == ([], [])


@pytest.mark.sabotage
def test_outside_of_the_block_an_event_would_be_left_alone(django, reader, monkeypatch, author_url):
    """Published on another connection than the block's."""
    with databases(default=place(author_url), apart=place(author_url)):
        other = connections["apart"]
        other.ensure_connection()
        monkeypatch.setattr(door, "check_open", lambda *_: other)
        with suppress(ZeroDivisionError), transaction.atomic():
            open_gate(1)
            raise ZeroDivisionError
    assert left(reader) == ([], [1])


def test_a_savepoint_that_is_rolled_back_takes_its_event_along(django, reader):
    with transaction.atomic():
        open_gate(1)
        with suppress(ZeroDivisionError), transaction.atomic():
            open_gate(2)
            raise ZeroDivisionError
        with transaction.atomic():
            open_gate(3)
    assert left(reader) == ([1, 3], [1, 3])


def test_outside_a_block_nothing_is_published(django, reader):
    for act in (
        lambda: within().publish(Opened(number=1)), lambda: within().publish_many([Opened(number=1)]),
        lambda: within().enqueue(paint, Opened(number=1)),
        lambda: within().enqueue_many([Enqueue(paint, Opened(number=1))]),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=r"with transaction\.atomic\(\):.*PR105"):
            act()
    assert left(reader) == ([], [])


def test_a_block_of_another_database_is_no_block(django, reader, author_url):
    with databases(default=place(author_url), second=place(author_url)):
        with transaction.atomic(using="second"), pytest.raises(UsageError, match="PR105"):
            within().publish(Opened(number=1))
        with transaction.atomic(using="second"):
            within(using="second").publish(Opened(number=2))
        assert within(using="second").connection is connections["second"]
    assert left(reader) == ([], [2])


def test_options_many_and_jobs(django, reader):
    north = within()
    with transaction.atomic(), cause(Cause(correlation="story", causation="before")):
        ids = north.publish_many([Opened(number=1), Publish(Opened(number=2), key="k", sequence=7)])
        assert north.publish_many([]) == []
        first = north.enqueue(paint, Opened(number=1), unique="wall", priority=2)
        again = north.enqueue_many([Enqueue(paint, Opened(number=1), unique="wall"), Enqueue(paint, Opened(number=2))])
    assert [str(one) for one in ids] == [row[0] for row in reader("SELECT id::text FROM postroad.event ORDER BY seq")]
    assert reader("SELECT key, sequence, correlation, causation FROM postroad.event ORDER BY seq DESC LIMIT 1") == [
        ("k", 7, "story", "before")
    ]
    assert first.new
    assert [one.new for one in again] == [False, True]
    assert reader("SELECT event_type FROM postroad.work") == [("gates.paint",)] * 2


def test_what_the_database_refuses_is_djangos_error_and_marks_the_block(django, reader):
    reader("ALTER TABLE postroad.event ADD CONSTRAINT odd CHECK (key <> 'odd') NOT VALID")
    with transaction.atomic():
        with pytest.raises(IntegrityError):
            within().publish(Opened(number=1), key="odd")
        with pytest.raises(TransactionManagementError):
            within().publish(Opened(number=2))
    with transaction.atomic():
        with suppress(IntegrityError), transaction.atomic():
            within().publish(Opened(number=1), key="odd")
        within().publish(Opened(number=3))
    assert left(reader) == ([], [3])


def test_a_database_without_the_schema_is_one_line(empty_database):
    with databases(default=place(empty_database)), transaction.atomic(), pytest.raises(SchemaError, match="PR202"):
        within().publish(Opened(number=1))


def test_another_backend_is_one_line(author_url):
    with (
        databases(default=place(author_url), small={"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}),
        transaction.atomic(using="small"),
        pytest.raises(UsageError, match=r"'small' of DATABASES is SQLite, .*PR107"),
    ):
        within(using="small").publish(Opened(number=1))


def test_an_unknown_alias_is_one_line(django):
    with pytest.raises(UsageError, match=r"DATABASES has no 'nowhere'.*PR107"):
        within(using="nowhere").publish(Opened(number=1))


def test_psycopg2_is_one_line(django, monkeypatch):
    monkeypatch.setattr("django.db.backends.postgresql.psycopg_any.is_psycopg3", False)
    with pytest.raises(UsageError, match=r"psycopg2; install psycopg 3.*PR108"):
        within().publish(Opened(number=1))


def test_without_psycopg_and_asyncpg_the_door_can_be_imported():
    code = """
import sys
sys.modules["psycopg"] = sys.modules["psycopg_pool"] = sys.modules["asyncpg"] = sys.modules["pika"] = None
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
from postroad.django import Atomic, within
Atomic()
try:
    within().publish(object())
except Exception as error:
    print(error.code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "PR107\n"


def test_each_thread_has_a_block_of_its_own(django, reader):
    shared, seen = within(), []

    def elsewhere():
        try:
            shared.publish(Opened(number=1))
        except UsageError as error:
            seen.append(error.code)
        with transaction.atomic():
            shared.publish(Opened(number=2))
        connections.close_all()

    with suppress(ZeroDivisionError), transaction.atomic():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        raise ZeroDivisionError
    assert seen == ["PR105"]
    assert left(reader) == ([], [2])


# --- views ----------------------------------------------------------------------------------------------------------


def opening(request, number):
    open_gate(number)
    if request.GET.get("fail"):
        raise ZeroDivisionError
    return HttpResponse(status=201)


async def opening_async(request, number):
    if request.GET.get("bare"):
        within().publish(Opened(number=number))

    @sync_to_async
    def work():
        with transaction.atomic():
            open_gate(number)
            if request.GET.get("fail"):
                raise ZeroDivisionError

    await work()
    return HttpResponse(status=201)


urlpatterns = [path("gates/<int:number>", opening), path("async/<int:number>", opening_async)]


@pytest.fixture
def views():
    client = Client(raise_request_exception=False)
    with override_settings(ROOT_URLCONF=__name__):
        yield client


def test_under_atomic_requests_a_view_publishes_and_its_failure_takes_all_back(author_url, reader, views):
    with databases(default=place(author_url, ATOMIC_REQUESTS=True)):
        assert views.post("/gates/1").status_code == 201
        assert views.post("/gates/2?fail=1").status_code == 500
    assert left(reader) == ([1], [1])


def test_without_atomic_requests_a_view_that_publishes_bare_is_refused(django, reader, views):
    assert views.post("/gates/1").status_code == 500
    assert left(reader)[1] == []


def test_an_async_view_publishes_in_the_function_that_sync_to_async_runs(django, reader, views):
    assert views.post("/async/1").status_code == 201
    assert views.post("/async/2?fail=1").status_code == 500
    assert left(reader) == ([1], [1])


def test_in_async_code_itself_it_is_refused_with_what_to_do(django, reader):
    async def view():
        within().publish(Opened(number=1))

    with pytest.raises(UsageError, match=r"await sync_to_async\(function\)\(\) .*PR105"):
        asyncio.run(view())


# --- test cases -----------------------------------------------------------------------------------------------------


def failures_of(kind, method):
    """Run one method as a test case of Django's, as its runner would; the failures' tracebacks."""
    made = type("Case", (kind,), {"test": method})
    result = unittest.TestResult()
    unittest.TestSuite([made("test")]).run(result)
    return [text for _, text in result.errors + result.failures]


def test_a_test_case_sees_what_is_published_and_leaves_nothing(database, reader, views):
    seen = []

    def test(self):
        with transaction.atomic():
            open_gate(1)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM postroad.event")
            seen.append(cursor.fetchone()[0])
        seen.append(left(reader))  # Another connection: the dispatcher's, for instance.

    with databases(default=place(database)):
        assert failures_of(TestCase, test) == []
    assert seen == [1, ([], [])]
    assert left(reader) == ([], [])


def test_a_test_case_refuses_what_production_would_refuse(database, reader, views):
    def bare(self):
        open_gate(1)

    def by_view(self):
        assert Client(raise_request_exception=False).post("/gates/1").status_code == 201

    with databases(default=place(database)):
        (failure,) = failures_of(TestCase, bare)
        assert "PR105" in failure
    with databases(default=place(database)):
        (failure,) = failures_of(TestCase, by_view)
        assert "assert 500 == 201" in failure
    with databases(default=place(database, ATOMIC_REQUESTS=True)):
        assert failures_of(TestCase, by_view) == []
    assert left(reader) == ([], [])


@pytest.mark.sabotage
def test_by_in_atomic_block_alone_a_test_case_would_pass_what_production_refuses(database, reader, monkeypatch):
    monkeypatch.setattr(alias, "all", lambda _: False, raising=False)

    def bare(self):
        open_gate(1)

    with databases(default=place(database)):
        assert failures_of(TestCase, bare) == []


def test_a_transaction_test_case_commits_and_keeps_events_for_the_next(database, reader):
    def test(self):
        with transaction.atomic():
            open_gate(1)

    with databases(default=place(database)):
        assert failures_of(TransactionTestCase, test) == []
    assert left(reader)[1] == [1]  # Its flush knows the tables of models alone.
