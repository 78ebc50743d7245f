"""Release from quarantine: by the same pipeline as a first delivery, once, and by one person."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from consume.bench import AT_ONCE, body
from postroad.consume import consumer, release
from postroad.errors import UsageError
from postroad.events import Subscription
from postroad.runtime.operations import database_settings, retry
from postroad.signals.catalog import DeliveryQuarantined, DeliveryResult, HandlerStarted


class OrderV2(BaseModel):
    number: str


def second(data: dict[str, Any]) -> dict[str, Any]:
    return {"number": data["order"]}


def reading(**given):
    """A consumer of version 2."""

    @consumer(
        Subscription("orders.order.placed", version=2, model=OrderV2, **given), name="billing.orders", retry=AT_ONCE
    )
    async def bill(event, delivery):
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.number, delivery.attempt)

    return bill


@pytest.fixture
def settings(runtime_url):
    return database_settings({"POSTROAD_DATABASE_URL": runtime_url})


async def effects(sql):
    return [row["attempt"] for row in await sql.fetch("SELECT attempt FROM public.effect")]


async def quarantined(here, queue, handler, message):
    async with here.consuming(handler, queue.intake()):
        queue.put(message)
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    (told,) = here.heard.all(DeliveryQuarantined)
    here.heard.forget()
    return told.code


async def test_an_older_version_is_lifted_and_handled(here, queue, sql):
    async with here.consuming(reading(upcasts={1: second}), queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
    assert await sql.fetchval("SELECT name FROM public.effect") == "A1"


async def test_an_upcast_that_fails_is_a_quarantine_that_quotes_nothing(here, queue, sql):
    async with here.consuming(reading(upcasts={1: lambda data: data["hush"]}), queue.intake()):
        queue.put(body("hush-hush"))
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    row = await sql.fetchrow("SELECT code, reason, attempt FROM quarantine")
    assert row["code"] == "PR505"
    assert "hush" not in row["reason"]
    assert "the upcast of orders.order.placed from v1 failed (KeyError)" in row["reason"]


async def test_an_event_of_a_version_that_was_not_read_is_released_after_the_upgrade(here, queue, sql, settings):
    twin = body("A1")
    assert await quarantined(here, queue, reading(), twin) == "PR503"
    row = await sql.fetchval("SELECT id FROM quarantine")
    done = await retry(settings, row, by="ada")
    assert (done.id, done.queue, done.to, done.by) == (row, "billing.orders", "work", "ada")
    async with here.consuming(reading(upcasts={1: second}), queue.intake(), retries=True):
        await here.settled(1, result=DeliveryResult.OK)
        queue.put(twin)
        await here.settled(1, result=DeliveryResult.DUPLICATE)
    assert await effects(sql) == [1]
    resolved = await sql.fetchrow("SELECT resolution, resolved_by, resolved_at FROM quarantine")
    assert (resolved["resolution"], resolved["resolved_by"]) == ("retried", "ada")
    assert resolved["resolved_at"] is not None
    assert await sql.fetchval("SELECT outcome FROM inbox") == "handled"
    history = json.loads(await sql.fetchval("SELECT history FROM finished"))
    assert [(entry["class"], entry.get("by")) for entry in history] == [("quarantine", None), ("released", "ada")]


async def test_until_the_retry_has_run_a_redelivery_is_a_duplicate(here, queue, sql, settings):
    twin = body("A1")
    await quarantined(here, queue, reading(), twin)
    await retry(settings, await sql.fetchval("SELECT id FROM quarantine"), by="ada")
    async with here.consuming(reading(upcasts={1: second}), queue.intake()):
        queue.put(twin)
        await here.settled(1, result=DeliveryResult.DUPLICATE)
    assert await effects(sql) == []
    assert await sql.fetchval("SELECT outcome FROM inbox") == "quarantined"
    assert await sql.fetchval("SELECT count(*) FROM work WHERE state = 'ready'") == 1


async def test_released_and_refused_again_it_is_a_new_row_with_the_whole_history(here, queue, sql, settings):
    await quarantined(here, queue, reading(), body("A1"))
    row = await sql.fetchval("SELECT id FROM quarantine")
    await retry(settings, row, by="ada")
    async with here.consuming(reading(), queue.intake(), retries=True):
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    rows = await sql.fetch("SELECT id, resolved_by, history FROM quarantine ORDER BY id")
    assert [one["resolved_by"] for one in rows] == ["ada", None]
    assert [entry["class"] for entry in json.loads(rows[1]["history"])] == ["quarantine", "released", "quarantine"]
    assert await sql.fetchval("SELECT outcome FROM inbox") == "quarantined"


async def test_a_spent_budget_begins_anew(here, queue, sql, settings):
    fail, attempts = {"now": True}, []

    @consumer(
        Subscription("orders.order.placed", version=2, model=OrderV2, upcasts={1: second}), name="billing.orders",
        retry=replace(AT_ONCE, attempts=2),
    )  # fmt: skip
    async def handle(event, delivery):
        attempts.append(delivery.attempt)
        if fail["now"]:
            message = "x"
            raise ValueError(message)

    async with here.consuming(handle, queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.QUARANTINE)
        fail["now"] = False
        await retry(settings, await sql.fetchval("SELECT id FROM quarantine"), by="ada")
        await here.settled(1, result=DeliveryResult.OK)
    assert attempts == [1, 2, 1]


async def test_a_copy_of_what_was_handled_meanwhile_is_not_run_again(here, queue, sql, settings):
    """Such as a copy from a dead-letter queue: its release ends as a duplicate."""
    twin = body("A1")
    async with here.consuming(reading(upcasts={1: second}), queue.intake(), retries=True):
        queue.put(twin)
        await here.settled(1, result=DeliveryResult.OK)
        await sql.execute(
            "INSERT INTO quarantine (kind, queue, key, digest, class, code, fingerprint, error_type, reason, body,"
            " content_type, exchange) SELECT 'delivery', consumer, message_key, '', 'quarantine', 'x', 'f', 'E', 'r',"
            " $1, 'application/cloudevents+json', 'orders.events' FROM inbox",
            twin,
        )
        await retry(settings, await sql.fetchval("SELECT id FROM quarantine"), by="ada")
        await here.settled(1, result=DeliveryResult.DUPLICATE)
    assert await effects(sql) == [1]
    assert len(here.heard.all(HandlerStarted)) == 1


async def test_a_row_without_a_mark_gets_one_so_that_redeliveries_stay_out(here, queue, sql, settings):
    twin = body("A1")
    await quarantined(here, queue, reading(), twin)
    await sql.execute("DELETE FROM inbox")
    await retry(settings, await sql.fetchval("SELECT id FROM quarantine"), by="ada")
    assert await sql.fetchval("SELECT outcome FROM inbox") == "quarantined"
    async with here.consuming(reading(upcasts={1: second}), queue.intake(), retries=True):
        queue.put(twin)
        await here.settled(1, result=DeliveryResult.OK)
        await here.settled(1, result=DeliveryResult.DUPLICATE)
    assert await effects(sql) == [1]


# --- what is refused ------------------------------------------------------------------------------------------------


async def test_an_envelope_that_nothing_vouches_for_is_not_released(here, queue, sql, settings):
    assert await quarantined(here, queue, reading(), b"no envelope") == "PR501"
    row = await sql.fetchval("SELECT id FROM quarantine")
    with pytest.raises(UsageError, match=rf"row {row} .*no message key \(PR501\).*publish it anew \[PR112\]"):
        await retry(settings, row, by="ada")
    assert await sql.fetchval("SELECT resolved_at FROM quarantine") is None


async def test_what_is_unknown_or_resolved_is_one_line(here, queue, sql, settings):
    with pytest.raises(UsageError, match=r"no row 4711 in quarantine.*PR112"):
        await retry(settings, 4711, by="ada")
    await quarantined(here, queue, reading(), body("A1"))
    row = await sql.fetchval("SELECT id FROM quarantine")
    await retry(settings, row, by="ada")
    with pytest.raises(UsageError, match=rf"row {row} of quarantine was resolved at .* UTC \[PR112\]"):
        await retry(settings, row, by="bob")
    assert await sql.fetchval("SELECT count(*) FROM work") == 1


async def test_what_is_being_retried_already_is_not_released_beside_it(here, queue, sql, settings):
    await quarantined(here, queue, reading(), body("A1"))
    await sql.execute(
        "INSERT INTO work (id, queue, kind, key, state, body, content_type)"
        " SELECT 1, queue, 'retry', key, 'ready', '', '' FROM quarantine"
    )
    with pytest.raises(UsageError, match=r"open in 'billing\.orders' already.*PR112"):
        await retry(settings, await sql.fetchval("SELECT id FROM quarantine"), by="ada")
    assert await sql.fetchval("SELECT resolved_at FROM quarantine") is None


async def test_a_crash_within_the_release_leaves_the_row_in_quarantine(here, queue, sql, settings, monkeypatch):
    await quarantined(here, queue, reading(), body("A1"))

    def crash(*_, **__):
        message = "crash"
        raise ZeroDivisionError(message)
        yield

    monkeypatch.setattr(release.inbox, "ensure", crash)
    with pytest.raises(ZeroDivisionError):
        await retry(settings, await sql.fetchval("SELECT id FROM quarantine"), by="ada")
    assert await sql.fetchval("SELECT count(*) FROM work") == 0
    assert await sql.fetchval("SELECT resolved_at FROM quarantine") is None
