"""The system checks of the installed app, and what its commands make of the settings."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import asyncpg
import pytest
from django.core.checks import run_checks
from django.test import override_settings

from django_site import database as place
from django_site import databases
from postroad.django import alias
from postroad.errors import UsageError

SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


def found(*, deployment=False, asked=None):
    tags = ["postroad"]
    return {one.id: one.msg for one in run_checks(tags=tags, databases=asked, include_deployment_checks=deployment)}


def test_all_is_well_where_the_schema_stands(database):
    with databases(default=place(database, ATOMIC_REQUESTS=True)):
        assert found(asked=["default"], deployment=True) == {}


def test_without_a_database_of_postgresql_there_is_an_error(database):
    with databases(default=SQLITE):
        assert [*found(asked=["default"])] == ["postroad.E001"]
    with databases(default=place(database), small=SQLITE):
        assert found(asked=["small"]) == {}


def test_psycopg2_is_an_error(database, monkeypatch):
    monkeypatch.setattr("django.db.backends.postgresql.psycopg_any.is_psycopg3", False)
    with databases(default=place(database)):
        assert "psycopg2" in found()["postroad.E001"]


def test_a_schema_that_is_missing_is_a_warning_so_that_migrate_goes_on(empty_database):
    with databases(default=place(empty_database)):
        assert [*found(asked=["default"])] == ["postroad.W002"]


def test_a_schema_that_is_newer_is_an_error(database, postgres):
    text = "INSERT INTO postroad.migration (number, name, serves, checksum) VALUES (9999, 'later', 9999, '')"
    postgres.execute(text, database=database.rpartition("/")[2])
    with databases(default=place(database)):
        assert [*found(asked=["default"])] == ["postroad.E003"]


def test_a_database_that_is_away_is_a_warning(database):
    with databases(default=place(database, PORT=1)):
        assert [*found(asked=["default"])] == ["postroad.W003"]


def test_two_schemas_are_an_error(database, monkeypatch):
    monkeypatch.setenv("POSTROAD_SCHEMA", "one")
    with databases(default=place(database)), override_settings(POSTROAD_SCHEMA="two"):
        assert [*found()] == ["postroad.E002"]


def test_views_without_a_block_are_told_before_a_deployment(database):
    with databases(default=place(database)):
        assert found() == {}
        assert [*found(deployment=True)] == ["postroad.W001"]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"USER": "a@b", "PASSWORD": "p/w:d", "HOST": "db", "PORT": 6543}, "postgresql://a%40b:p%2Fw%3Ad@db:6543/shop"),
        ({"USER": "a", "HOST": "one,two", "PORT": "1,2"}, "postgresql://a@one:1,two:2/shop"),
        ({"USER": "a", "HOST": "one,two", "PORT": "1"}, "postgresql://a@one:1,two:1/shop"),
        ({"USER": "a", "HOST": "/run/pg", "PORT": "1"}, "postgresql://a@/shop?host=%2Frun%2Fpg&port=1"),
        ({"USER": "a", "OPTIONS": {"sslmode": "require", "pool": True}}, "postgresql://a@/shop?sslmode=require"),
    ],
)
def test_the_address_of_a_database_is_that_of_the_settings(given, url):
    with databases(default={"ENGINE": "django.db.backends.postgresql", "NAME": "shop", **given}):
        assert alias.url_of("default") == url


def test_the_address_leads_to_the_database(database):
    async def name(url):
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval("SELECT current_database()")
        finally:
            await connection.close()

    with databases(default=place(database)):
        assert asyncio.run(name(alias.url_of("default"))) == urlsplit(database).path[1:]


def test_a_service_file_is_one_line():
    given = {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"service": "shop"}}
    with databases(default=given), pytest.raises(UsageError, match=r"set POSTROAD_DATABASE_URL.*PR201"):
        alias.url_of("default")
