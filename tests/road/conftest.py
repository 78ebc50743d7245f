"""A road on the run's servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from postroad.runtime.settings import POSTGRES
from road.roads import AMQP, WITHOUT_BROKER, Road

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres


@pytest.fixture
def road(postgres: Postgres, database: str, request: pytest.FixtureRequest) -> Iterator[Road]:
    """Over RabbitMQ, unless a test is parametrized with `EITHER`, indirectly."""
    broker_url = POSTGRES if getattr(request, "param", AMQP) == WITHOUT_BROKER else request.getfixturevalue("vhost")
    made = Road(postgres, database.rpartition("/")[2], broker_url)
    with made.processes:
        yield made
