"""Each example's tests pass as they stand, in a folder of their own: as a reader finds them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from examples.services import EXAMPLES, SERVICES, copied
from testing.project import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("name", SERVICES)
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
        assert set(re.findall(r"`(\w+\.py)`", text)) == {file.name for file in (EXAMPLES / name).glob("*.py")}
