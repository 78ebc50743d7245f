"""Named queries, and the promise that every one in the package fits a migrated database."""

from __future__ import annotations

import re
from pathlib import Path

import asyncpg
import pytest

import postroad
from postroad.errors import UsageError
from postroad.leases import FENCE
from postroad.outbox.replay import CHOSEN
from postroad.sql import Queries, Statement, queries, render

SOURCE = Path(postroad.__file__).parent
FILES = sorted(path for path in SOURCE.rglob("*.sql") if path.parent.name != "migrations")
NAMED = [
    (path.relative_to(SOURCE).as_posix(), name)
    for path in FILES
    for name in Queries(path.read_text("utf-8"), source=path.name)
]
FRAGMENTS = {"{fence}": FENCE, "{chosen}": CHOSEN}  # what rooms put into their queries


def filled(file: str, name: str) -> str:
    text = (SOURCE / file).read_text("utf-8")
    for placeholder, fragment in FRAGMENTS.items():
        text = text.replace(placeholder, fragment)
    return Queries(text, source=file).text(name, "postroad")


def test_the_packages_queries_are_found() -> None:
    assert ("leases/store.sql", "renew") in NAMED
    assert ("sql/partitions.sql", "missing") in NAMED
    assert len(NAMED) > 10


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[f"{file}:{name}" for file, name in NAMED])
async def test_a_query_is_prepared_against_a_migrated_database(postgres, standing, file, name) -> None:
    text = filled(file, name)
    assert not re.findall(r"\{\w+\}", text), "a placeholder that this test does not know"
    connection = await asyncpg.connect(postgres.url(standing, "pr_runtime"))
    try:
        await connection.prepare(text)
    finally:
        await connection.close()


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[f"{file}:{name}" for file, name in NAMED])
def test_a_query_says_in_a_sentence_what_it_does_and_names_its_schema(file, name) -> None:
    text = (SOURCE / file).read_text("utf-8")
    body = re.split(rf"^-- name: {name}\s*$", text, flags=re.MULTILINE)[1]
    assert body.lstrip().startswith("-- ")
    unqualified = re.findall(
        r"\b(?:FROM|INTO|UPDATE|JOIN)\s+(?:event|outbox|lease|inbox|starts|order_guard|work|quarantine|finished)\b",
        re.split(r"^-- name:", body, flags=re.MULTILINE)[0],
    )
    assert unqualified == [], "the search path must not decide"


def test_queries_are_read_by_name_and_filled_with_the_quoted_schema() -> None:
    text = "-- name: one\n-- Says one.\nSELECT 1 FROM {schema}.a;\n\n-- name: two\n-- Says two.\nSELECT 2\n"
    read = Queries(text, source="x.sql")
    assert list(read) == ["one", "two"]
    assert read.statement("one", "road", 7) == Statement('-- Says one.\nSELECT 1 FROM "road".a', (7,))
    assert read.text("one", "road") is read.text("one", "road")
    with pytest.raises(KeyError):
        read.text("three", "road")


def test_a_file_is_read_once() -> None:
    assert queries("postroad.leases", "store.sql") is queries("postroad.leases", "store.sql")


@pytest.mark.parametrize("name", ['a"; DROP TABLE x; --', "A", "1a", "", "a" * 56, "a-b", "a.b", "á"])
def test_a_schema_name_that_needs_thought_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="POSTROAD_SCHEMA"):
        render("SELECT {schema}.x", name)
