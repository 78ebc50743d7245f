"""One tick: what is due becomes rows, once, whatever happens to the process or the clock."""

from __future__ import annotations

from datetime import timedelta

import pytest

from schedules.planbench import START, at, begin_at, finish, occurrences, office, schedule, settled, states, tick


async def test_what_is_due_becomes_an_occurrence_and_a_row_of_work(here, sql) -> None:
    held = await office(here, schedule(cron="15 2 * * *", zone="America/New_York"))
    await begin_at(sql, at("02 00:00"))
    done = await tick(here, held, at("02 07:15:01"))
    assert done.queues == {"reports.render"}
    [one] = await occurrences(sql)
    [row] = await sql.fetch("SELECT * FROM work")
    assert (one["state"], one["work_id"], one["queue"]) == ("started", row["id"], "reports.render")
    assert one["due"] == at("02 07:15")
    assert row["key"] == one["key"] == f"sched:{one['schedule']}:2026-03-02T07:15:00+00:00"
    assert row["body"] == b'{"day":"2026-03-02"}'
    assert (one["token"], one["tz_version"], one["revision"]) == (held.lease.token, "2025b", 1)
