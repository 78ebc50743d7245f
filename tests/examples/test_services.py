"""Each example's tests pass as they stand, in a folder of their own: as a reader finds them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from examples.services import EXAMPLES, SERVICES, copied, lines
from testing.project import Project

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "django"])  # See test_django_example.py.
def test_the_tests_of_an_example_pass_as_they_stand(name: str, tmp_path: Path) -> None:
    folder = copied(name, tmp_path)
    written = sum(
        len(re.findall(r"^(?:async )?def test_", file.read_text("utf-8"), re.MULTILINE))
        for file in folder.glob("test_*.py")
    )
    assert written > 0
    assert f"{written} passed" in Project.made(folder).pytest()


def test_every_example_is_listed_with_its_page() -> None:
    page = (EXAMPLES / "README.md").read_text("utf-8")
    assert set(re.findall(r"\((\w+)/README\.md\)", page)) == set(SERVICES)
    for name in SERVICES:
        text = (EXAMPLES / name / "README.md").read_text("utf-8")
        files = [file.relative_to(EXAMPLES / name) for file in (EXAMPLES / name).rglob("*.py")]
        told = {str(file) for file in files if file.name != "__init__.py" and file.parent.name != "migrations"}
        assert set(re.findall(r"`([\w/]+\.py)`", text)) == told


@pytest.mark.parametrize("name", SERVICES)
def test_a_page_says_how_to_install_test_run_and_stop_it(name: str) -> None:
    script = lines(name, wheel=Path("the.whl"))
    done = subprocess.run(["bash", "-n", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the.whl -r requirements.txt\n" in script
    assert re.search(r"^(pytest|python manage.py test)$", script, re.MULTILINE)
    assert re.search(r"postroad run [\w.]+:app & ROAD=", script)
    assert script.endswith("kill $DEV\nwait $DEV\n")
    assert not re.search(r"\b(5433\d|8000)\b", script), "a port that may be in use here"
