"""What Django's test cases can see of the road, as docs/testing.md says."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from runtime.processes import environment
from testing.project import SOURCE, TESTS
from testing.shop import TABLES

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres

CASES = """
import os
import unittest
from urllib.parse import urlsplit

import django
from django.conf import settings

url = os.environ["URL"]
parts = urlsplit(url)
settings.configure(
    DATABASES={"default": {
        "ENGINE": "django.db.backends.postgresql", "HOST": parts.hostname, "PORT": parts.port, "USER": parts.username,
        "NAME": parts.path[1:],
    }},
    INSTALLED_APPS=[],
)
django.setup()

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from postroad.psycopg import within
from postroad.testing import BlockingRoad, enqueued_on, published_on
from testing.shop import Mail, OrderPlaced, app, print_mail


def place():
    with transaction.atomic(), connection.cursor() as cursor:
        within(cursor.connection).publish(OrderPlaced(number="A-1"))
        within(cursor.connection).enqueue(print_mail, Mail(receiver="Ada"))


class InOneTransaction(TestCase):
    def test_it_is_seen_on_djangos_own_connection_and_by_nobody_else(self):
        place()
        self.assertEqual([one.event.number for one in published_on(connection, OrderPlaced)], ["A-1"])
        self.assertEqual([one.request.receiver for one in enqueued_on(connection, print_mail)], ["Ada"])
        road = BlockingRoad(app, url)
        self.assertEqual(road.published(OrderPlaced), [])
        self.assertEqual(road.drain().jobs, 0)


class Committing(TransactionTestCase):
    def setUp(self):
        self.road = BlockingRoad(app, url)
        self.road.clear()

    def test_everything_runs(self):
        place()
        self.assertEqual(self.road.drain().jobs, 2)
        with connection.cursor() as cursor:
            cursor.execute("SELECT number FROM bill")
            self.assertEqual(cursor.fetchall(), [("A-1",)])

    def test_nothing_is_left_of_another_test(self):
        self.assertEqual(self.road.published(OrderPlaced), [])


unittest.main()
"""


def test_a_test_case_sees_its_own_transaction_and_a_transaction_test_case_the_road(
    database: str, postgres: Postgres, tmp_path
) -> None:
    postgres.execute(TABLES, database=database.rpartition("/")[2])
    (tmp_path / "cases.py").write_text(CASES)
    done = subprocess.run(
        [sys.executable, "cases.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100,
        env=environment(PYTHONPATH=f"{SOURCE}:{TESTS}", URL=database),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr
