"""The site's navigation names every page, and links lead to pages and headings that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAVIGATION = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
PAGES = sorted(page.name for page in DOCS.glob("*.md"))
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return FENCED.sub("", path.read_text("utf-8"))


def anchors(path: Path) -> set[str]:
    """The names of a page's headings, which the site and forges form alike but for what the next test refuses."""
    titles = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def links(path: Path) -> list[tuple[str, str]]:
    """Page (empty: the same) and anchor (empty: none) of each link that stays within this tree."""
    found = re.findall(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]+))?\)", prose(path))
    return [(page, anchor) for page, anchor in found if page or anchor]


def test_the_navigation_names_every_page_once() -> None:
    assert sorted(re.findall(r": ([\w-]+\.md)$", NAVIGATION, re.MULTILINE)) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_links_to_pages_and_headings_that_are_there(page: str) -> None:
    wrong = []
    for target, anchor in links(DOCS / page):
        there = DOCS / (target or page)
        beside = target.startswith("../")  # The site shows such a link's words alone (.ci/site.py).
        if not there.is_file() or (there.parent != DOCS and not beside) or (anchor and anchor not in anchors(there)):
            wrong.append(f"{target}#{anchor}")
    assert wrong == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_a_page_beside_the_site_links_to_headings_that_are_there(page: str) -> None:
    linked = [(ROOT / target, anchor) for target, anchor in links(ROOT / page) if target.endswith(".md")]
    assert [(path.name, anchor) for path, anchor in linked if anchor and anchor not in anchors(path)] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_heading_is_linked_to_by_the_same_name_everywhere(page: str) -> None:
    """The site writes one hyphen where a forge writes two, and numbers headings that stand twice."""
    titles = re.findall(r"^#+ (.+)$", prose(DOCS / page), re.MULTILINE)
    assert len(titles) == len(anchors(DOCS / page))
    assert [anchor for anchor in anchors(DOCS / page) if "--" in anchor] == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One & two\n[a](gone.md) [b](#nowhere) [c](https://example.org/#x)\n```sh\n[d](code.md)\n```\n")
    assert links(page) == [("gone.md", ""), ("", "nowhere")]
    assert anchors(page) == {"one--two"}


def test_the_site_asks_no_other_server() -> None:
    assert "highlightjs: false" in (ROOT / "mkdocs.yml").read_text("utf-8")
