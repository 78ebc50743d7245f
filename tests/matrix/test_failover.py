"""A PostgreSQL primary is killed under load and its standby promoted: what was committed is handled once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from matrix.load import Following, under_load
from postroad.testing.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from soak.world import Author

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(180)]


def test_a_standby_promoted_under_load_loses_and_doubles_nothing_and_leases_go_on_from_their_tokens(
    tmp_path: Path,
) -> None:
    tokens: list[dict[str, int]] = []

    def act(world: Following, author: Author) -> None:
        tokens.append(world.tokens())
        world.fail_over()
        assert world.goes_on(author)
        tokens.append(world.tokens())

    verdict = under_load(Following(tmp_path), act)
    assert verdict.good, (verdict, logs(tmp_path))
    before, after = tokens
    assert before
    assert all(after[name] >= token for name, token in before.items())


class Careless(Following):
    """Commits wait for nobody."""

    waits = False


@pytest.mark.sabotage
def test_without_waiting_for_the_standby_a_failover_loses_what_authors_were_told_is_committed(tmp_path: Path) -> None:
    def act(world: Following, author: Author) -> None:
        world.standby.execute("ALTER SYSTEM SET primary_conninfo = ''; SELECT pg_reload_conf()")  # It falls behind.
        known = len(author.acknowledged)
        assert wait_until(lambda: len(author.acknowledged) > known + 60)
        world.fail_over()

    verdict = under_load(Careless(tmp_path), act, rest_seconds=15)
    assert verdict.lost > 0


def logs(folder: Path) -> list[str]:
    return [log.read_text(errors="replace")[-3000:] for log in folder.glob("*.log")]
