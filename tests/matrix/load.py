"""Worlds of a soak on more than one server, and what must hold when one of those goes away under load."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeVar
from uuid import uuid4

from postroad.clock import seconds
from postroad.testing.process import wait_until
from postroad.testing.servers import PostgresServer, RabbitCluster, RabbitNode, TcpProxy
from soak.checker import Verdict, judged
from soak.world import Author, World, at_rest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from pathlib import Path

RATE = 30
"""Transactions a second, of two events each."""

W = TypeVar("W", bound="Watched")


class Watched(World):
    """Fewer processes than a soak has, and a look at how far they are."""

    processes: ClassVar[dict[str, int]] = {"dispatcher": 1, "board": 2}

    def goes_on(self, author: Author, *, within_seconds: float = 40) -> bool:
        """Whether what is committed from now on arrives, in time."""
        began = max(author.acknowledged, default=0)
        newer = lambda: max(author.acknowledged, default=0) > began + 20  # noqa: E731
        if not wait_until(newer, within=seconds(within_seconds)):
            return False
        last = max(author.acknowledged)
        arrived = lambda: self.count(f"SELECT count(*) FROM seen WHERE number = {last}") > 0  # noqa: E731
        return wait_until(arrived, within=seconds(within_seconds), every=seconds(0.2))


class Clustered(Watched):
    """A virtual host of its own on a cluster; processes know `reach` of its nodes, or all."""

    def __init__(self, folder: Path, cluster: RabbitCluster, reach: RabbitNode | None = None) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.reach = reach
        self.vhost = f"world-{uuid4().hex}"

    def serve(self, stack: ExitStack) -> None:
        self.postgres, self.rabbit = stack.enter_context(PostgresServer()), self.cluster.nodes[0]
        self.rabbit.add_vhost(self.vhost)

    @property
    def broker_url(self) -> str:
        return self.cluster.url(self.vhost) if self.reach is None else self.reach.url(self.vhost)


class Following(Watched):
    """A primary and its standby; commits wait for the standby, unless `waits` is False."""

    waits = True

    def serve(self, stack: ExitStack) -> None:
        self.postgres, self.rabbit = stack.enter_context(PostgresServer()), stack.enter_context(RabbitNode())
        self.line = stack.enter_context(TcpProxy(self.rabbit.port))
        self._servers = stack

    def ready(self) -> None:
        self.primary = self.postgres
        self.standby = self._servers.enter_context(PostgresServer(standby_of=self.primary))
        if self.waits:
            self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'; SELECT pg_reload_conf()")
            state = "SELECT sync_state FROM pg_stat_replication"
            assert wait_until(lambda: self.primary.execute(state) == [("sync",)])

    def database_url(self, user: str) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in (self.primary, self.standby))
        return f"postgresql://{user}@{hosts}/soak?target_session_attrs=read-write"

    def fail_over(self) -> None:
        """The primary is gone, the standby takes its place."""
        self.primary.kill()
        self.standby.promote()
        self.postgres = self.standby

    def tokens(self) -> dict[str, int]:
        """The fencing token of every lease."""
        rows = self.postgres.execute("SELECT name, token FROM postroad.lease", database="soak")
        return {name: int(token) for name, token in rows}


def under_load(world: W, act: Callable[[W, Author], None], *, rest_seconds: float = 60) -> Verdict:
    """Let `act` happen while traffic goes on, and judge what has become of everything.

    What an author was told of and the database does not know any more counts as lost. Where a promise is broken, not
    all need come to rest.
    """
    with world:
        with Author(world, per_second=RATE) as author:
            assert world.goes_on(author, within_seconds=60)
            act(world, author)
        rested = at_rest(world, within_seconds=rest_seconds)
        found = world.found()
        lost = author.acknowledged - set(found.committed)
        codes = [member.stop() for members in world.members.values() for member in members]
        assert not any(codes), codes
    verdict = judged(found)
    fields = {name: getattr(verdict, name) for name in Verdict.__slots__}
    verdict = Verdict(**{**fields, "lost": verdict.lost + len(lost)})
    assert rested or not verdict.good
    return verdict
