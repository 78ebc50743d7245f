"""Fixtures: real servers, one of each shared by a whole run, and private ones for tests that break them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4
from zlib import crc32

import pytest
from hypothesis import settings

from devservers import VARIABLES, end, shared
from postroad.errors import UsageError
from postroad.testing.servers import Postgres, PostgresServer, Rabbit, RabbitAddress, RabbitNode

RUNTIME, AUTHOR = "pr_runtime", "pr_author"
HEAVY_AT_ONCE = 2
_SHARED = "POSTROAD_TEST_SHARED"  # "folder:process", from the first process of a run to its xdist workers.


# Examples wait for a busy machine like all else: the time limit is the test's.
settings.register_profile("house", deadline=None)
settings.load_profile("house")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[_SHARED] = f"{tempfile.mkdtemp(prefix='postroad-run-')}:{os.getpid()}"


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        folder = Path(os.environ.pop(_SHARED).rpartition(":")[0])
        end(folder)
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("heavy") is not None:
            # By file, so that each lot is the same on every run: with them in one, the run waits for that one.
            item.add_marker(pytest.mark.xdist_group(f"heavy-{crc32(item.path.name.encode()) % HEAVY_AT_ONCE}"))


def _reach(kind: str) -> str:
    given = os.environ.get(VARIABLES[kind])
    if given:
        return given
    folder, _, process = os.environ[_SHARED].rpartition(":")
    return shared(kind, Path(folder), watch=int(process))


@pytest.fixture(scope="session")
def postgres() -> Postgres:
    """The run's PostgreSQL server, with the roles RUNTIME and AUTHOR."""
    server = Postgres(_reach("postgres"))
    server.add_role(RUNTIME)
    server.add_role(AUTHOR)
    return server


@pytest.fixture(scope="session")
def rabbit() -> Rabbit:
    """The run's RabbitMQ node."""
    return Rabbit(RabbitAddress.from_json(_reach("rabbit")))


@pytest.fixture(scope="session")
def migrated_template(postgres: Postgres) -> str | None:
    """The database that `database` copies: made once per server, state of the code and day (partitions lie ahead)."""
    if find_spec("postroad.sql.migrations") is None:
        return None
    name = f"template_{_fingerprint()}"
    if postgres.execute(f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
        return name
    building = f"building_{uuid4().hex}"
    _migrate(postgres.create_database(building))
    try:
        postgres.execute(f"ALTER DATABASE {building} RENAME TO {name}")
    except UsageError:  # Another worker was first; its copy is the same.
        postgres.drop_database(building)
    return name


def _fingerprint() -> str:
    root = Path(__file__).parent.parent / "src" / "postroad"
    files = sorted([*root.rglob("*.sql"), *(root / "sql").rglob("*.py")])
    return hashlib.sha256(
        b"".join([datetime.now(UTC).date().isoformat().encode(), *map(Path.read_bytes, files)])
    ).hexdigest()[:16]


def _migrate(url: str) -> None:
    """Migrate on a loop of its own thread, so that it matters to nobody whether one runs here."""
    migrations = import_module("postroad.sql.migrations")
    failures: list[BaseException] = []

    def run() -> None:
        try:
            roles = migrations.Roles(runtime=RUNTIME, author=AUTHOR)
            asyncio.run(migrations.migrate(url, schema="postroad", roles=roles, days_ahead=2))
        except BaseException as error:  # noqa: BLE001 - carried to the test that asked
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


@pytest.fixture
def empty_database(postgres: Postgres) -> Iterator[str]:
    """The superuser's URL of a fresh database with nothing in it."""
    name = f"test_{uuid4().hex}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def database(postgres: Postgres, migrated_template: str | None) -> Iterator[str]:
    """The superuser's URL of a fresh, migrated database."""
    name = f"test_{uuid4().hex}"
    yield postgres.create_database(name, migrated_template)
    postgres.drop_database(name)


@pytest.fixture
def runtime_url(database: str, postgres: Postgres) -> str:
    """The URL of `database` for the role that Postroad's processes use."""
    return postgres.url(database.rpartition("/")[2], RUNTIME)


@pytest.fixture
def author_url(database: str, postgres: Postgres) -> str:
    """The URL of `database` for the role that may publish and nothing more."""
    return postgres.url(database.rpartition("/")[2], AUTHOR)


@pytest.fixture
def vhost(rabbit: Rabbit) -> Iterator[str]:
    """The URL of a fresh virtual host."""
    name = f"test-{uuid4().hex}"
    yield rabbit.add_vhost(name)
    rabbit.drop_vhost(name)


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for this test alone, to stop and kill."""
    with PostgresServer() as server:
        server.add_role(RUNTIME)
        server.add_role(AUTHOR)
        yield server


@pytest.fixture
def own_rabbit() -> Iterator[RabbitNode]:
    """A RabbitMQ node for this test alone, to stop, kill and pause."""
    with RabbitNode() as node:
        yield node
