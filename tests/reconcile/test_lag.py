"""How far a consumer is behind: what is still to come, wherever it waits, and how long the latest ones took."""

from __future__ import annotations

import json

import pytest

from cli.test_work import postroad
from postroad.consume import consumer_of
from postroad.reconcile.lag import lag
from postroad.runtime.settings import POSTGRES
from postroad.signals.catalog import ProjectionLag
from reconcile.airport import airport, depart, see, some_flights
from reconcile.test_flights import sql, until

__all__ = ["sql"]


async def behind(ground, *, logged: bool = True, here: bool = True, queue: int | None = None):
    now = ground.clock.now()
    return await ground.manager.run(lag("postroad", consumer_of(see), logged=logged, here=here, queue=queue, now=now))


async def test_what_waits_is_counted_wherever_it_waits(sql, ground, author_url):
    await depart(author_url, some_flights(5))
    found = await behind(ground)
    assert (found.outbox, found.queue, found.work, found.to_come) == (5, 0, 0, 5)
    assert found.oldest_seconds is not None
    assert found.median_seconds is None
    for number, queue in enumerate(("reconcile.seen", "reconcile.seen:deliveries", "other")):
        await sql.execute(
            "INSERT INTO work (id, queue, kind, state, body, content_type, created_at)"
            " VALUES ($1, $2, 'retry', 'ready', '', 'x', now() - interval '1 hour')", number, queue,
        )  # fmt: skip
    await sql.execute("UPDATE outbox SET target = 'another' WHERE place = (SELECT min(place) FROM outbox)")
    found = await behind(ground)
    assert (found.outbox, found.work, found.oldest_seconds >= 3600) == (4, 1, True)


async def test_another_services_outbox_is_not_guessed(sql, ground, author_url):
    await depart(author_url, some_flights(5))
    found = await behind(ground, logged=False, here=False, queue=7)
    assert (found.outbox, found.queue, found.to_come) == (None, 7, None)


async def test_a_projection_that_has_caught_up_says_how_long_the_latest_took(sql, ground, runtime_url, author_url):
    heard = []
    async with airport(runtime_url, POSTGRES, sinks=[heard.append]):
        await depart(author_url, some_flights(5))
        await until(sql, "SELECT count(*) = 5 FROM flight_seen")
        await until(sql, "SELECT count(*) = 0 FROM work")
    found = await behind(ground)
    assert found.to_come == 0
    assert 0 <= found.median_seconds <= found.longest_seconds < 30
    await sql.execute("UPDATE inbox SET outcome = 'delayed', at = at + interval '1 hour'")
    assert (await behind(ground)).longest_seconds is None, "it took nothing yet that waits for another attempt"
    lags = [one for one in heard if isinstance(one, ProjectionLag)]
    assert {one.consumer for one in lags} == {"reconcile.seen"}
    assert min(one.seconds for one in lags) > 10 * 365 * 86_400, "these flights left in 2013"


def test_the_command_tells_it_and_an_app_without_consumers_is_refused(runtime_url):
    given = {"POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_BROKER_URL": "postgres:"}
    (row,) = json.loads(postroad("lag", "orders:app", "--json", **given).stdout)
    assert row.items() >= {"consumer": "orders.book", "to_come": 0, "outbox": 0, "queue": 0, "quarantined": 0}.items()
    assert postroad("lag", "orders:app", **given).stdout.startswith("1 consumer\n")
    done = postroad("lag", "ledgers:app", **given)
    assert done.returncode == 2
    assert "has no consumers" in done.stderr


@pytest.mark.parametrize("given", ["nobody:app", "orders"])
def test_what_names_no_app_is_one_line(runtime_url, given):
    done = postroad("lag", given, POSTROAD_DATABASE_URL=runtime_url, POSTROAD_BROKER_URL="postgres:")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
