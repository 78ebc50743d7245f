"""A road on the run's servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroad.testing.servers import Postgres
from road.roads import Road


@pytest.fixture
def road(postgres: Postgres, database: str, vhost: str) -> Iterator[Road]:
    made = Road(postgres, database.rpartition("/")[2], vhost)
    with made.processes:
        yield made
