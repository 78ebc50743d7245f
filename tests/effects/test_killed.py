"""A process killed at each arrow of the state chart: at most one act per key, and nothing leaves unknown unlooked."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from effects.apps.till import ARROWS, SCRIPTS
from effects.provider import Provider
from road.roads import until
from runtime.processes import Running

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres

TESTS = Path(__file__).parent.parent
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(180)]


class Tills:
    """One till for each arrow, each at a provider of its own, and what became of it all."""

    def __init__(self, postgres: Postgres, database: str, stack: ExitStack, arrows: tuple[str, ...]) -> None:
        self._postgres, self._name = postgres, database.rpartition("/")[2]
        self._stack = stack
        self.arrows = arrows
        self.providers = {arrow: stack.enter_context(Provider(*SCRIPTS[arrow])) for arrow in ARROWS}
        self.rows("CREATE TABLE postroad.receipt (payment text, outcome text)")
        self.rows("GRANT ALL ON postroad.receipt TO pr_runtime")
        for arrow in arrows:
            self.rows(
                "INSERT INTO postroad.work (id, queue, kind, state, due, event_type, body, content_type)"
                f" VALUES (nextval('postroad.work_id'), 'till.{arrow}', 'job', 'ready', now(), 'till.{arrow}',"
                f" convert_to('{{\"payment\": \"{arrow}\"}}', 'UTF8'), 'application/json')"
            )

    def rows(self, sql: str) -> list[Any]:
        return self._postgres.execute(sql, database=self._name)

    def start(self, at: str = "", **settings: str) -> Running:
        urls = ",".join(f"{arrow}={provider.url}" for arrow, provider in self.providers.items())
        return self._stack.enter_context(
            Running(
                "effects.apps.till:app",
                "--only",
                "work",
                PYTHONPATH=str(TESTS),
                TILL_AT=at,
                TILL_URLS=urls,
                POSTROAD_DATABASE_URL=self._postgres.url(self._name, "pr_runtime"),
                POSTROAD_WORKER_LEASE_SECONDS="1",
                **settings,
            )
        )

    def run(self, **settings: str) -> None:
        """Each till dies at its arrow; then one that has them all does what they have left."""
        for process in [self.start(arrow, **settings) for arrow in self.arrows]:
            process.process.wait(90)
            assert process.process.returncode == -9, process.plain
        self.start(**settings)
        until(lambda: self.rows("SELECT count(*) FROM postroad.work") == [("0",)], within_seconds=60)

    def acts(self) -> dict[str, int]:
        return {arrow: self.providers[arrow].acts[arrow] for arrow in self.arrows}


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def test_killed_at_any_arrow_each_key_acts_once_and_nothing_leaves_unknown_without_a_look_up(postgres, database, stack):
    tills = Tills(postgres, database, stack, ARROWS)
    tills.run()
    assert tills.acts() == dict.fromkeys(ARROWS, 1)
    assert {len(provider.keys[arrow]) for arrow, provider in tills.providers.items()} == {1}
    receipts = tills.rows("SELECT payment, count(*), min(outcome) FROM postroad.receipt GROUP BY payment")
    assert sorted(receipts) == sorted((arrow, "1", f"Done(ref='ref-{arrow}-1')") for arrow in ARROWS)
    assert tills.rows("SELECT DISTINCT state FROM postroad.effect") == [("succeeded",)]
    looked = tills.rows(
        "SELECT DISTINCT effect.key FROM postroad.effect JOIN postroad.audit ON subject = 'effect ' || effect.id"
        " WHERE act = 'effect.look-up'"
    )
    assert {key for (key,) in looked} == {"sent", "answered", "unknown", "reconciling", "looked-up", "not_found"}
    assert tills.rows("SELECT count(*) FROM postroad.quarantine") == [("0",)]


@pytest.mark.sabotage
def test_without_doubt_what_a_killed_process_had_sent_is_sent_again(postgres, database, stack):
    tills = Tills(postgres, database, stack, ("answered",))
    tills.run(TILL_WITHOUT="doubt")
    assert tills.acts() == {"answered": 2}
