"""The how-to of a lost binding, run as it stands against one."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import asyncpg

from cli.test_work import Table, postroad
from postroad.asyncpg import within
from postroad.runtime.settings import POSTGRES
from reconcile.airport import settings_of
from reconcile.test_flights import until
from runtime.processes import import_app

PAGE = (Path(__file__).parents[2] / "docs" / "howto.md").read_text("utf-8")
SECTION = PAGE.partition("## Events that never reached a consumer\n")[2].partition("\n## ")[0]
COMMANDS = [line for block in re.findall(r"^```sh\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
            for line in block.splitlines()]  # fmt: skip
boutique = import_app("boutique")


async def sell(url: str, *numbers: int) -> None:
    author = await asyncpg.connect(url)
    async with author.transaction():
        for number in numbers:
            await within(author).publish(boutique.DressSold(number=number))
    await author.close()


async def test_a_lost_binding_is_found_explained_and_repaired(postgres, database, runtime_url, author_url):
    sql = await asyncpg.connect(database)
    await sql.execute(
        "CREATE TABLE billed (number int); CREATE TABLE counted (number int);GRANT ALL ON billed, counted TO pr_runtime"
    )
    table = Table(postgres, database, runtime_url)
    given = {**table.given, "POSTROAD_BROKER_URL": POSTGRES}
    async with boutique.made(settings_of(runtime_url, POSTGRES)) as app:
        await app.ready()
        await sell(author_url, 1, 2)
        await until(sql, "SELECT count(*) = 2 FROM billed")
        await sql.execute("DELETE FROM postroad.subscription WHERE consumer = 'boutique.billing'")
        await sell(author_url, 3, 4, 5)
        await until(sql, "SELECT count(*) = 5 FROM counted")
        done = []
        for line in COMMANDS:
            done.append(await asyncio.to_thread(postroad, *shlex.split(line)[1:], **given))
            if " repair " in line and "--yes" in line:
                await until(sql, "SELECT count(*) = 5 FROM billed")
    assert [one.returncode for one in done] == [1, 0, 1, 0, 0, 0, 0, 0], [one.stderr for one in done]
    verified, _, found, listed, plan, repaired, last, audit = (one.stdout for one in done)
    assert "boutique.billing" in verified
    assert "3 missing, 0 extra, 0 mismatched" in found
    assert listed.startswith("3 keys open")
    assert plan.startswith("repair: 3 keys: 3 missing")
    assert "repaired 3 of 3 keys" in repaired
    assert "5 keys compared, no drift" in last
    assert "its binding was lost" in audit
    assert sorted(row["number"] for row in await sql.fetch("TABLE billed")) == [1, 2, 3, 4, 5]
    await sql.close()
