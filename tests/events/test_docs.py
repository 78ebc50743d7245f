"""The examples of docs/events.md and docs/outbox.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import asyncpg
import psycopg

DOCS = Path(__file__).parents[2] / "docs"


def run_examples(page: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "docs"}
    for example in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL):
        exec(compile(example, page, "exec"), names)
    return names


async def test_the_examples_publish_what_the_subscription_reads(author_url, runtime_url, postgres, database):
    ddl = "CREATE TABLE flight (id text, departed boolean); GRANT ALL ON flight TO pr_author"
    postgres.execute(ddl, database=database.rpartition("/")[2])
    events, outbox = run_examples("events.md"), run_examples("outbox.md")
    author = await asyncpg.connect(author_url)
    reader = await asyncpg.connect(runtime_url)
    event = events["FlightDeparted"](flight_id="UA-1", carrier="UA", delay=3)
    identity = await outbox["depart"](author, event)
    assert await reader.fetchval("SELECT id FROM postroad.event") == identity
    with psycopg.connect(author_url) as blocking:
        again = outbox["depart_blocking"](blocking, event)
    assert await reader.fetchval("SELECT id FROM postroad.event ORDER BY seq DESC LIMIT 1") == again
    read = events["Departed"].decode(event.model_dump())
    assert read == events["Departure"](carrier="UA", delay=3)
    await author.close()
    await reader.close()
