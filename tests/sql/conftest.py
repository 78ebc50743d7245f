"""What the tests of this room share: one database for those that change nothing in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres


@pytest.fixture(scope="module")
def standing(postgres: Postgres, migrated_template: str | None) -> Iterator[str]:
    """The name of a migrated database that a module's tests leave as it is."""
    name = f"test_{uuid4().hex}"
    postgres.create_database(name, migrated_template)
    yield name
    postgres.drop_database(name)
