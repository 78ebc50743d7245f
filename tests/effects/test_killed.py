"""A process killed at each arrow of the state chart: at most one act per key, and nothing leaves unknown unlooked."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli.test_work import postroad as command
from effects.apps.till import ARROWS, BLIND, REPEATING, SCRIPTS, SEEING
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
        self.providers = {
            arrow: stack.enter_context(Provider(*SCRIPTS[arrow], honours=arrow in REPEATING)) for arrow in ARROWS
        }
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
                POSTROAD_WORKER_LEASE_SECONDS="2",
                **settings,
            )
        )

    def run(self, *, decides: tuple[str, str] | None = None, **settings: str) -> None:
        """Each till dies at its arrow; then one that has them all does what they have left, and a person their part."""
        for process in [self.start(arrow, **settings) for arrow in self.arrows]:
            process.process.wait(90)
            assert process.process.returncode == -9, process.plain
        self.start(**settings)
        if decides is not None:
            ((number,),) = self.rows(f"SELECT id FROM postroad.effect WHERE key = '{decides[0]}' AND state = 'manual'")
            words = ("effects", "resolve", number, "--as", "done", "--ref", decides[1])
            done = command(*words, POSTROAD_DATABASE_URL=self._postgres.url(self._name, "pr_runtime"), LOGNAME="ada")
            assert done.returncode == 0, done.stderr
        until(lambda: self.rows("SELECT count(*) FROM postroad.work") == [("0",)], within_seconds=60)

    def receipts(self) -> list[tuple[str, ...]]:
        """Each payment, how often it was written down, and as what."""
        return sorted(
            self.rows("SELECT payment, count(*), min(outcome) FROM postroad.receipt GROUP BY payment")
        )  # fmt: skip

    def record(self) -> dict[str, set[str]]:
        """What the audit has of each effect."""
        rows = self.rows(
            "SELECT DISTINCT effect.key, act FROM postroad.effect JOIN postroad.audit"
            " ON subject = 'effect ' || effect.id"
        )
        found: dict[str, set[str]] = {}
        for key, act in rows:
            found.setdefault(key, set()).add(act)
        return found

    def acts(self) -> dict[str, int]:
        return {arrow: self.providers[arrow].acts[arrow] for arrow in self.arrows}


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def test_killed_at_any_arrow_each_key_acts_once_and_nothing_leaves_unknown_without_a_look_up(postgres, database, stack):
    tills = Tills(postgres, database, stack, SEEING)
    tills.run()
    assert tills.acts() == dict.fromkeys(SEEING, 1)
    assert {len(tills.providers[arrow].keys[arrow]) for arrow in SEEING} == {1}
    assert tills.receipts() == sorted((arrow, "1", f"Done(ref='ref-{arrow}-1')") for arrow in SEEING)
    assert tills.rows("SELECT DISTINCT state FROM postroad.effect") == [("succeeded",)]
    looked = {"sent", "answered", "unknown", "reconciling", "looked-up", "not_found"}
    record = tills.record()
    assert record.keys() >= looked  # A machine in need may cost one more its lease.
    assert {act for acts in record.values() for act in acts} == {"effect.look-up"}
    assert tills.rows("SELECT count(*) FROM postroad.quarantine") == [("0",)]


def test_killed_on_the_way_in_a_repeat_or_before_a_person_each_key_still_acts_once(postgres, database, stack):
    tills = Tills(postgres, database, stack, BLIND)
    tills.run(decides=("manual", "by-hand"))
    assert tills.acts() == {**dict.fromkeys(BLIND, 1), "rejected": 0}
    assert {len(tills.providers[arrow].keys[arrow]) for arrow in BLIND} == {1}
    assert tills.receipts() == sorted([
        ("calling", "1", "Done(ref='ref-calling-1')"), ("manual", "1", "Done(ref='by-hand')"),
        ("rejected", "1", "Refused(code='no-cover')"), ("repeat", "1", "Done(ref='ref-repeat-1')"),
        ("repeat-answered", "1", "Done(ref='ref-repeat-answered-1')"),
    ])  # fmt: skip
    record = tills.record()
    assert record.keys() >= {"calling", "repeat", "repeat-answered"}
    assert record.pop("manual") == {"effect.resolve"}
    assert {act for acts in record.values() for act in acts} == {"effect.look-up"}
    assert tills.providers["rejected"].requests["rejected"] == 1
    assert tills.rows("SELECT count(*) FROM postroad.quarantine") == [("0",)]


@pytest.mark.sabotage
def test_without_doubt_what_a_killed_process_had_sent_is_sent_again(postgres, database, stack):
    tills = Tills(postgres, database, stack, ("answered",))
    tills.run(TILL_WITHOUT="doubt")
    assert tills.acts() == {"answered": 2}
