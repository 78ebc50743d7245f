"""The grounds that the suites are run on: which broker, which database, and what stands in between."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from matrix.pgbouncer import Pgbouncer
from postroad.testing.installed import OTHER_POSTGRES, OTHER_RABBITMQ
from postroad.testing.servers import PostgresServer, RabbitCluster, RabbitNode

if TYPE_CHECKING:
    from collections.abc import Iterator

TREE: Final = Path(os.environ.get("POSTROAD_TEST_MATRIX", "/var/cache/postroad/trixie"))
"""The Debian 13 that `.ci/install-matrix` has made; what it runs lies beside it."""
TRIXIE: Final = TREE.with_name(TREE.name + ".bin")
POSTGRES_15: Final = Path("/usr/lib/postgresql/15/bin")

SUITES: Final = ("tests/transport", "tests/outbox", "tests/consume")
"""Transport, dispatcher and consumer."""
POOLED: Final = (
    "tests/matrix/behind_pooler.py",
    "tests/matrix/locks_behind_pooler.py",
    "tests/outbox",
    "tests/consume",
    "tests/road/test_several.py",
    "tests/road/test_killed.py",
    # The pooler keeps a client's connection where the backend behind it is ended, so that nothing is reached anew.
    "--deselect=tests/outbox/test_permit.py::test_a_database_that_was_reached_anew_is_in_doubt_until_it_is_proven",
)
"""What has to do with the database that a pooler stands before; the road with processes that find it by themselves."""
CLUSTER: Final = ("tests/matrix/test_cluster.py", "tests/matrix/cluster_in_parts.py")
FAILOVER: Final = ("tests/matrix/test_failover.py",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One ground and what runs on it. `broker` is 3 or 4, `database` 15 or 18; `tests` are pytest's."""

    tests: tuple[str, ...]
    broker: int = 3
    database: int = 18
    nodes: int = 1
    pooler: str = ""
    asks: str = ""
    """What the ground is for, in a few words."""


CELLS: Final = {
    "rabbitmq-3": Cell(tests=SUITES, asks="RabbitMQ 3.10, PostgreSQL 18"),
    "rabbitmq-4": Cell(tests=SUITES, broker=4, asks="RabbitMQ 4, PostgreSQL 18"),
    "postgres-15": Cell(tests=SUITES, database=15, asks="RabbitMQ 3.10, PostgreSQL 15"),
    "pgbouncer-old": Cell(
        tests=POOLED, database=15, pooler="pgbouncer", asks="behind pgbouncer 1.18, no statement cache, PostgreSQL 15"
    ),
    "pgbouncer-new": Cell(
        tests=POOLED, pooler=str(TRIXIE / "pgbouncer"), asks="behind pgbouncer 1.24 with the statement cache"
    ),
    "suites-on-cluster": Cell(tests=SUITES, nodes=3, broker=4, asks="three nodes of RabbitMQ 4, quorum queues on each"),
    "cluster-3": Cell(tests=CLUSTER, asks="RabbitMQ 3.10: leader killed, minority cut off, rolling restart"),
    "cluster-4": Cell(tests=CLUSTER, broker=4, asks="RabbitMQ 4: the same"),
    "failover-15": Cell(tests=FAILOVER, database=15, asks="PostgreSQL 15: primary killed, standby promoted"),
    "failover-18": Cell(tests=FAILOVER, asks="PostgreSQL 18: the same"),
}  # fmt: skip


@contextmanager
def ground(cell: Cell) -> Iterator[dict[str, str]]:
    """Start what `cell` asks for; the variables that lead the tests there, and their own servers to the versions."""
    variables: dict[str, str] = {}
    if cell.broker == 4:
        variables[OTHER_RABBITMQ] = str(TRIXIE)
    if cell.database == 15:
        variables[OTHER_POSTGRES] = str(POSTGRES_15)
    with ExitStack() as stack:
        # Our own process has to look there too, while it starts them.
        stack.callback(lambda kept=dict(os.environ): (os.environ.clear(), os.environ.update(kept)))
        os.environ.update(variables)
        if cell.tests not in {CLUSTER, FAILOVER}:  # Those break all that they run on, and start it themselves.
            _shared(cell, stack, variables)
        yield variables


def _shared(cell: Cell, stack: ExitStack, variables: dict[str, str]) -> None:
    server = stack.enter_context(PostgresServer())
    variables["POSTROAD_TEST_POSTGRES_URL"] = server.url()
    if cell.pooler:
        pooler = stack.enter_context(Pgbouncer(server, cell.pooler))
        variables["POSTROAD_TEST_PGBOUNCER"] = cell.pooler
        variables["POSTROAD_TEST_POOLER"] = f"{server.port}:{pooler.port}"
    node = stack.enter_context(RabbitNode()) if cell.nodes == 1 else stack.enter_context(RabbitCluster()).nodes[0]
    variables["POSTROAD_TEST_RABBIT"] = node.address.to_json()


def missing() -> str | None:
    """None where every ground can be had, else one line."""
    for file in (TREE / ".made", TRIXIE / "pgbouncer", POSTGRES_15 / "postgres", Path("/usr/sbin/pgbouncer")):
        if not file.exists():
            return f"{file} is missing; `make matrix` installs it, as root on Debian 12"
    return None
