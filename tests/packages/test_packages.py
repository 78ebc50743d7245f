"""What is published can be installed: a whole sdist, a whole wheel, and a core that is small, quick and quiet."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from packages.built import ROOT, Built, Environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.heavy

FOLDERS = ("src", "tests", "docs", "examples", "benchmarks", ".ci")
CORE = {"annotated-types", "postroad", "pydantic", "pydantic-core", "typing-extensions", "typing-inspection"}
IMPORT_SECONDS = 0.3

# What a service needs to declare and publish, and to run things in the background.
AUTHORS = [
    "Backoff", "Cancel", "Dependency", "Drop", "Envelope", "Executor", "Keep", "OutcomeUnknown", "Producer",
    "Quarantine", "Retry", "Rules", "Sensitive", "Snooze", "Subscription", "hours", "job", "minutes", "seconds",
]  # fmt: skip
NAMES = """
import json, postroad
told = {}
for name in postroad.__all__:
    try:
        told[name] = getattr(postroad, name) and ""
    except Exception as error:
        told[name] = getattr(error, "code", repr(error))
import postroad.asgi
print(json.dumps(told))
"""
WHAT_AN_IMPORT_DOES = """
import json, os, sys, threading, time
def now():
    return {"threads": threading.active_count(), "files": len(os.listdir("/proc/self/fd"))}
known, before, began = set(sys.modules), now(), time.process_time()
import postroad
took = time.process_time() - began
foreign = {name.partition(".")[0] for name in set(sys.modules) - known} - sys.stdlib_module_names - {"postroad"}
print(json.dumps({"started": now() != before, "foreign": sorted(foreign), "seconds": took}))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built.of(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def fresh(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the wheel and nothing else that was asked for."""
    made = Environment(tmp_path_factory.mktemp("fresh"))
    made.install_core(built.wheel)
    return made


def files(folder: Path, *below: str) -> set[str]:
    """The files of a tree but for what running it leaves there."""
    found = (path for name in below for path in (folder / name).rglob("*") if path.is_file())
    kept = (path.relative_to(folder) for path in found if path.suffix != ".pyc")
    return {str(path) for path in kept if not any("cache" in part for part in path.parts[:-1])}


def missing_from_wheel(built: Built) -> set[str]:
    with zipfile.ZipFile(built.wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    return files(ROOT / "src", "postroad") ^ packed


def test_the_sdist_holds_all_that_its_tests_and_pages_need(built: Built) -> None:
    assert files(ROOT, *FOLDERS) == files(built.unpacked, *FOLDERS)
    for name in ("pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"):
        assert (built.unpacked / name).read_bytes() == (ROOT / name).read_bytes()


def test_the_wheel_made_from_the_sdist_holds_every_file_of_the_package_and_no_other(built: Built) -> None:
    assert missing_from_wheel(built) == set()
    kinds = {name.rpartition(".")[2] for name in files(ROOT / "src", "postroad")}
    assert {"sql", "csv", "typed"} < kinds  # That they are there to be missed.


@pytest.mark.sabotage
def test_a_build_that_leaves_the_queries_out_is_noticed(built: Built, tmp_path: Path) -> None:
    project = built.unpacked / "pyproject.toml"
    kept = project.read_text("utf-8")
    wheel = "[tool.hatch.build.targets.wheel]\n"
    project.write_text(kept.replace(wheel, f'{wheel}exclude = ["*.sql"]\n'), "utf-8")
    try:
        assert "postroad/outbox/stage.sql" in missing_from_wheel(Built.of(tmp_path, source=built.unpacked))
    finally:
        project.write_text(kept, "utf-8")


def test_the_core_installs_pydantic_and_nothing_that_runs_things(fresh: Environment) -> None:
    code = "import json; from importlib.metadata import distributions as all"
    names = fresh.answer(f"{code}; print(json.dumps([one.metadata['Name'] for one in all()]))")
    assert {name.lower().replace("_", "-") for name in names} == CORE


def test_the_core_is_enough_to_declare_and_every_other_name_says_what_it_needs(fresh: Environment) -> None:
    told = fresh.answer(NAMES)
    assert {name for name in AUTHORS if told[name]} == set()
    assert set(told.values()) == {"", "PR108"}


def quiet(told: list[dict[str, Any]]) -> bool:
    """Whether an import, looked at some times, started nothing, brought no package and was quick."""
    busy = any(one["started"] or one["foreign"] for one in told)
    return not busy and min(one["seconds"] for one in told) < IMPORT_SECONDS


def test_an_import_is_quick_starts_nothing_and_imports_no_other_package(fresh: Environment) -> None:
    told = [fresh.answer(WHAT_AN_IMPORT_DOES) for _ in range(3)]
    assert quiet(told), told


@pytest.mark.sabotage
@pytest.mark.parametrize(
    "instead",
    [
        "import threading; threading.Thread(target=time.sleep, args=(1,), daemon=True).start()",
        "import socket; kept = socket.socket()",
        "import pydantic",
        "while time.process_time() < began + 0.31: pass",
    ],
    ids=["a thread", "a socket", "a package", "a calculation"],
)
def test_an_import_that_does_more_is_noticed(fresh: Environment, instead: str) -> None:
    assert not quiet([fresh.answer(WHAT_AN_IMPORT_DOES.replace("import postroad\n", f"{instead}\n"))])
