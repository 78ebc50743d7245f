"""What takes longer than CI has: a minority cut off, and a rolling restart, both under load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from matrix.load import Clustered, under_load
from matrix.test_cluster import cluster
from postroad.testing.process import listens

if TYPE_CHECKING:
    from pathlib import Path

    from postroad.testing.servers import RabbitCluster
    from soak.world import Author

__all__ = ["cluster"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]


@pytest.mark.parametrize("leads", [True, False])
def test_a_minority_that_is_cut_off_pauses_and_its_clients_go_to_the_others(
    cluster: RabbitCluster, tmp_path: Path, leads: bool
) -> None:
    def act(world: Clustered, author: Author) -> None:
        leader = cluster.leader("soak.moves", vhost=world.vhost)
        parted = next(node for node in cluster.nodes if (node is leader) == leads)
        cluster.cut_off(parted)
        try:
            assert world.goes_on(author)
            assert not listens(parted.port)
        finally:
            cluster.rejoin(parted)
        assert world.goes_on(author)

    verdict = under_load(Clustered(tmp_path, cluster), act)
    assert verdict.good, (verdict, [log.read_text(errors="replace")[-3000:] for log in tmp_path.glob("*.log")])


def test_a_node_that_says_nothing_any_more_is_given_up_for_the_others(cluster: RabbitCluster, tmp_path: Path) -> None:
    def act(world: Clustered, author: Author) -> None:
        silent = cluster.leader("soak.moves", vhost=world.vhost)
        silent.pause()
        try:
            assert world.goes_on(author, within_seconds=60)
        finally:
            silent.resume()
            cluster.await_whole()

    verdict = under_load(Clustered(tmp_path, cluster), act)
    assert verdict.good, (verdict, [log.read_text(errors="replace")[-3000:] for log in tmp_path.glob("*.log")])


def test_all_nodes_are_restarted_one_by_one_under_load(cluster: RabbitCluster, tmp_path: Path) -> None:
    def act(world: Clustered, author: Author) -> None:
        for node in cluster.nodes:
            node.restart()
            assert world.goes_on(author)
            cluster.await_whole()

    verdict = under_load(Clustered(tmp_path, cluster), act)
    assert verdict.good, (verdict, [log.read_text(errors="replace")[-3000:] for log in tmp_path.glob("*.log")])


@pytest.mark.sabotage
def test_processes_that_know_one_node_alone_wait_for_it(cluster: RabbitCluster, tmp_path: Path) -> None:
    only = cluster.nodes[1]

    def act(world: Clustered, author: Author) -> None:
        only.kill()
        try:
            assert not world.goes_on(author, within_seconds=8)
        finally:
            only.start()
            cluster.await_whole()

    assert under_load(Clustered(tmp_path, cluster, reach=only), act).good
