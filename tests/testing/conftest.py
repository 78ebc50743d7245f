"""The shop on the run's server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroad.testing import Road
from testing.shop import TABLES, app

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres


@pytest.fixture
def own(database: str, postgres: Postgres) -> str:
    """The URL of a migrated database with the shop's own tables."""
    postgres.execute(TABLES, database=database.rpartition("/")[2])
    return database


@pytest.fixture
def road(own: str) -> Road:
    return Road(app, own)
