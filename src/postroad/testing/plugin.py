"""The pytest plugin: a database per test, and the road through the user's App on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from postroad.runtime.app import App
    from postroad.testing.blocking import BlockingRoad
    from postroad.testing.databases import Copies, Tables
    from postroad.testing.postgres import Postgres
    from postroad.testing.road import Road

# Loaded by every pytest that finds Postroad installed: nothing of it is imported before a fixture is asked for.


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--postroad-dsn``."""
    parser.getgroup("postroad").addoption(
        "--postroad-dsn",
        metavar="URL",
        default=None,
        help="make test databases on this PostgreSQL server, as a role that may create them; "
        "without it an embedded server is started (pip install 'postroad[embedded]')",
    )


@pytest.fixture(scope="session")
def postroad_tables() -> Tables:
    """Override it: your own tables, as SQL or as a function of a database's URL; made once, in the template."""
    return None


@pytest.fixture
def postroad_app() -> App:
    """Override it: return your App."""
    pytest.fail("define the fixture `postroad_app` in conftest.py; it returns your App", pytrace=False)


@pytest.fixture(scope="session")
def postroad_server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """The PostgreSQL server of this run; each worker of xdist starts its own, or all share ``--postroad-dsn``."""
    from postroad.testing.databases import server

    yield from _standing(server(request.config.getoption("--postroad-dsn")))


@pytest.fixture(scope="session")
def postroad_template(postroad_server: Postgres, postroad_tables: Tables) -> Iterator[str]:
    """The name of the database that every test gets a copy of."""
    from postroad.testing.databases import template

    yield from _standing(template(postroad_server, postroad_tables))


@pytest.fixture(scope="session")
def _postroad_copies(postroad_server: Postgres, postroad_template: str) -> Iterator[Copies]:
    from postroad.testing.databases import Copies

    copies = Copies(postroad_server, postroad_template)
    yield copies
    copies.close()


@pytest.fixture
def postroad_database(_postroad_copies: Copies, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a fresh, migrated database for this test; POSTROAD_DATABASE_URL names it, so that the App finds it."""
    monkeypatch.delenv("POSTROAD_DIRECT_URL", raising=False)
    monkeypatch.setenv("POSTROAD_BROKER_URL", "postgres:")
    for url in _standing(_postroad_copies.one()):
        monkeypatch.setenv("POSTROAD_DATABASE_URL", url)
        yield url


@pytest.fixture
def road(postroad_app: App, postroad_database: str) -> Road:
    """The App on a database of its own: see `postroad.testing.Road`."""
    from postroad.testing.road import Road

    return Road(postroad_app, postroad_database)


@pytest.fixture
def blocking_road(postroad_app: App, postroad_database: str) -> BlockingRoad:
    """`road` for ``def`` tests."""
    from postroad.testing.blocking import BlockingRoad

    return BlockingRoad(postroad_app, postroad_database)


def _standing(context: Any) -> Iterator[Any]:
    """What `context` gives, for as long as the fixture stands; a mistake of the user's is one line."""
    from postroad.errors import UsageError

    try:
        value = context.__enter__()
    except UsageError as error:
        _refuse(str(error))
    try:
        yield value
    finally:
        context.__exit__(None, None, None)


def _refuse(message: str) -> NoReturn:
    pytest.fail(message, pytrace=False)
