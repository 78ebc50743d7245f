"""The node that leads a consumer's queue is killed under load: the other two are enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from matrix.load import Clustered, under_load
from postroad.testing.servers import RabbitCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from soak.world import Author

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RabbitCluster]:
    with RabbitCluster() as started:
        yield started


def test_the_leader_of_a_consumers_queue_is_killed_under_load_and_dispatch_and_consumption_go_on(
    cluster: RabbitCluster, tmp_path: Path
) -> None:
    def act(world: Clustered, author: Author) -> None:
        leader = cluster.leader("soak.moves", vhost=world.vhost)
        leader.kill()
        try:
            assert world.goes_on(author)
        finally:
            leader.start()
            cluster.await_whole()

    verdict = under_load(Clustered(tmp_path, cluster), act)
    assert verdict.good, (verdict, [log.read_text(errors="replace")[-3000:] for log in tmp_path.glob("*.log")])
