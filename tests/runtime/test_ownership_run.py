"""At the end of a process: background work is drained, and what nobody owns is named with its place."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from postroad.runtime.exits import Exit
from runtime.processes import APPS, Running

pytestmark = pytest.mark.heavy


@pytest.fixture
def settings(runtime_url: str) -> dict[str, str]:
    return {"POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_ROLES": "work", "POSTROAD_GRACE_SECONDS": "6"}


def stopped(**given: str) -> tuple[Running, dict[str, Any], float]:
    with Running("leaver:app", **given) as app:
        app.ready()
        taken = app.stop()
        return app, app.wait_for("shutdown_receipt"), taken


def line_of(text: str) -> int:
    lines = (APPS / "leaver.py").read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_background_work_is_finished_within_the_grace_period(settings: dict[str, str]) -> None:
    app, receipt, taken = stopped(LEAVER_MODE="work", **settings)
    assert app.process.returncode == Exit.OK
    assert (receipt["finished"], receipt["abandoned"], receipt["unfinished"]) == (6, 0, [])
    assert (receipt["left"], receipt["strays"]) == ([], [])
    assert taken < 4


@pytest.mark.sabotage
def test_without_the_drain_background_work_is_lost(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from postroad.runtime.background import Executor\n"
        "async def close(self, told): self._stopping = True; self._cancel_all()\n"
        "Executor.close = close\n"
    )
    _, receipt, _ = stopped(LEAVER_MODE="work", PYTHONPATH=f"{tmp_path}:{APPS}", **settings)
    assert receipt["finished"] < 6


def test_what_is_not_done_in_time_is_cancelled_and_named(settings: dict[str, str]) -> None:
    app, receipt, taken = stopped(LEAVER_MODE="endless", **settings)
    assert app.process.returncode == Exit.OK
    assert (receipt["abandoned"], receipt["unfinished"], receipt["left"]) == (3, ["poll (3)"], [])
    assert 3.9 < taken < 6


def test_a_stray_task_and_a_stray_thread_are_named_with_their_places(settings: dict[str, str]) -> None:
    app, receipt, _ = stopped(LEAVER_MODE="strays", **settings)
    created = line_of("create_task(poll()")
    runs, target = line_of("async def poll"), line_of("def spin")
    told = {line["name"]: line for line in app.lines if line.get("signal") == "stray"}
    assert told["poller"]["runs"] == f"poll (leaver.py:{runs})"
    assert told["poller"]["started"] == f"leave (leaver.py:{created})"
    assert (told["spinner"]["kind"], told["spinner"]["runs"]) == ("thread", f"spin (leaver.py:{target})")
    named = [re.sub(r"Task-\d+", "Task-N", stray) for stray in receipt["strays"]]
    assert len(named) == 3
    assert f"task poller: poll (leaver.py:{runs}), started in leave (leaver.py:{created})" in named
    assert f"thread spinner: spin (leaver.py:{target})" in named
    [other] = [stray for stray in named if "Task-N" in stray]
    assert other.endswith(f"started in leave (leaver.py:{line_of('ensure_future')})")
    assert receipt["left"] == []
    assert app.process.returncode == Exit.OK


@pytest.mark.sabotage
def test_without_the_notes_nobody_says_where_a_stray_was_created(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from postroad.runtime.strays import Notes\nNotes.install = lambda self: None\n"
    )
    _, receipt, _ = stopped(LEAVER_MODE="strays", PYTHONPATH=f"{tmp_path}:{APPS}", **settings)
    assert not any("poller" in stray for stray in receipt["strays"])


@pytest.mark.parametrize(("mode", "name"), [("thread", "spinner"), ("pool", "spinner_0")])
def test_a_stray_thread_that_keeps_the_interpreter_cannot_keep_the_process(
    settings: dict[str, str], mode: str, name: str
) -> None:
    given = {**settings, "POSTROAD_GRACE_SECONDS": "2"}
    app, receipt, taken = stopped(LEAVER_MODE=mode, **given)
    assert receipt["strays"] == [f"thread {name}: spin (leaver.py:{line_of('def spin')})"]
    assert app.process.returncode == -signal.SIGALRM
    assert taken < 3


@pytest.mark.sabotage
def test_without_the_alarm_a_stray_thread_keeps_the_process(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import postroad.runtime.serve as serve\nserve.stray_threads = lambda prefix: []\n"
    )
    given = {**settings, "PYTHONPATH": f"{tmp_path}:{APPS}", "POSTROAD_GRACE_SECONDS": "1", "LEAVER_MODE": "thread"}
    with Running("leaver:app", **given) as app:
        app.ready()
        app.process.send_signal(signal.SIGTERM)
        app.wait_for("shutdown_receipt")
        with pytest.raises(subprocess.TimeoutExpired):
            app.process.wait(2.5)
