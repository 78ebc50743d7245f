"""A road on the run's servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from road.roads import Road

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres


@pytest.fixture
def road(postgres: Postgres, database: str, vhost: str) -> Iterator[Road]:
    made = Road(postgres, database.rpartition("/")[2], vhost)
    with made.processes:
        yield made
