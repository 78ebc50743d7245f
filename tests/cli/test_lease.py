"""``postroad lease``: who holds what, and taking a name away."""

from __future__ import annotations

import json

import asyncpg
import pytest

from postroad import leases
from postroad.cli.lease import PREFIX
from postroad.runtime.exits import Exit
from runtime.processes import postroad

HOLD = """
    INSERT INTO postroad.lease (name, holder, expires_at, ttl)
    VALUES ($1, gen_random_uuid(), clock_timestamp() + $2 * interval '1 s', interval '60 s')
"""


@pytest.fixture
async def sql(database: str):
    connection = await asyncpg.connect(database)
    await connection.execute(HOLD, "user:reports daily", 60)
    await connection.execute(HOLD, "user:old", -60)
    await connection.execute(HOLD, "shard:03", 60)
    yield connection
    await connection.close()


async def test_list_says_who_holds_what(sql, runtime_url) -> None:
    done = postroad("lease", "list", "--json", POSTROAD_DATABASE_URL=runtime_url)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["name"], row["held"], row["token"]) for row in rows] == [
        ("shard:03", True, 1), ("user:old", False, 1), ("user:reports daily", True, 1),
    ]  # fmt: skip
    assert set(rows[0]) == {
        "name", "held", "holder", "token", "acquired_at", "expires_at", "fenced_by", "reason",
    }  # fmt: skip


async def test_people_see_the_authors_leases_first_and_ours_in_a_line_each(sql, runtime_url) -> None:
    await sql.executemany(HOLD, [("shard:04", 60), ("worker:7", 60), ("worker:8", -60)])
    meta = json.dumps({"fenced_by": "ops", "reason": "it hung"})
    await sql.execute("UPDATE postroad.lease SET meta = $1 WHERE name = 'user:old'", meta)
    given = {"POSTROAD_DATABASE_URL": runtime_url, "COLUMNS": "80"}
    lines = postroad("lease", "list", **given).stdout.splitlines()
    assert lines[0] == "4 of 6 leases held"
    assert lines[1].split()[-1] == "name"
    assert (lines[2].split()[0], lines[2].split()[-1]) == ("free", "old")
    assert lines[3] == "    fenced by ops: it hung"
    assert lines[4].startswith("held")
    assert lines[4].endswith("  reports daily")
    assert [line.partition(", holders: ")[0] for line in lines[5:]] == ["shard: 2 of 2 held", "worker: 1 of 2 held"]
    assert max(map(len, lines)) <= 80
    every = postroad("lease", "list", "--all", **given).stdout.splitlines()
    assert [line.split()[-1] for line in every[5:]] == ["shard:03", "shard:04", "worker:7", "worker:8"]
    assert PREFIX == leases.PREFIX


@pytest.mark.parametrize("name", ["reports daily", "user:reports daily"])
async def test_fence_takes_a_name_away_and_keeps_who_and_why(sql, runtime_url, name) -> None:
    given = {"POSTROAD_DATABASE_URL": runtime_url}
    done = postroad("lease", "fence", name, "--reason", "it hangs", "--by", "ops", "--json", **given)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["name"], row["held"], row["holder"], row["token"]) == ("user:reports daily", False, None, 2)
    assert (row["fenced_by"], row["reason"]) == ("ops", "it hangs")
    done = postroad("lease", "fence", name, "--by", "ops", **given)  # Safe to repeat.
    assert done.stdout == "lease user:reports daily is fenced by ops: its token is 3, and it is free\n"
    assert await sql.fetchval("SELECT meta ->> 'fenced_by' FROM postroad.lease WHERE token = 3") == "ops"
    assert await sql.fetchval("SELECT count(*) FROM postroad.lease WHERE token = 1") == 2, "the others are as before"


async def test_what_cannot_be_fenced_is_one_line(sql, runtime_url, author_url) -> None:
    for arguments, url, code, words in (
        (["nothing"], runtime_url, Exit.USAGE, "there is no lease 'nothing'; see `postroad lease list` [PR107]"),
        (["x", "--reason", "a\nb"], runtime_url, Exit.USAGE, "one line"),
        ([], runtime_url, Exit.USAGE, "NAME"),
        (["reports daily"], author_url, Exit.REFUSED, "PR303"),
        (["reports daily"], "postgresql://nobody@127.0.0.1:1/none", Exit.UNAVAILABLE, "PR301"),
        (["reports daily"], "", Exit.SETTINGS, "POSTROAD_DATABASE_URL"),
    ):
        done = postroad("lease", "fence", *arguments, POSTROAD_DATABASE_URL=url)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert words in done.stderr


async def test_a_fenced_transaction_that_stays_open_is_told(sql, runtime_url) -> None:
    async with sql.transaction():
        await sql.execute("SELECT FROM postroad.lease FOR SHARE")
        done = postroad("lease", "fence", "reports daily", POSTROAD_DATABASE_URL=runtime_url)
    assert done.returncode == Exit.UNAVAILABLE
    assert "has been open for 5 s; nothing was changed, try again [PR304]" in done.stderr
    assert await sql.fetchval("SELECT max(token) FROM postroad.lease") == 1
