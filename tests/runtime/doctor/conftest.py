"""Fixtures: the doctor asked about a database, and a broker with its management API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from postroad.runtime.doctor import Finding, Limits, examine_database
from postroad.runtime.settings import read_settings
from postroad.testing.servers import Postgres, RabbitNode
from runtime.doctor.patients import AT_ONCE, SUBJECT, Examine, by_name


@pytest.fixture
def examine(runtime_url: str) -> Examine:
    """The database as the doctor sees it, by the names of its checks."""

    def look(
        url: str = runtime_url, *, author: str | None = None, limits: Limits = AT_ONCE, app: bool = True, **given: str
    ) -> dict[str, list[Finding]]:
        environment = {"POSTROAD_DATABASE_URL": url, "POSTROAD_BROKER_URL": "amqp://guest@127.0.0.1/", **given}
        settings = read_settings(environment)
        return by_name(asyncio.run(examine_database(settings, SUBJECT if app else None, author=author, limits=limits)))

    return look


@pytest.fixture
def sql(postgres: Postgres, database: str) -> Callable[[str], list[tuple[str, ...]]]:
    """Runs statements in `database` as the superuser."""
    return lambda text: postgres.execute(text, database=database.rpartition("/")[2])


@pytest.fixture(scope="session")
def managed() -> Iterator[RabbitNode]:
    """A node with the management API."""
    with RabbitNode(management=True) as node:
        yield node
