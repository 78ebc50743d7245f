"""Whatever a stranger sends is handled, or quarantined with a code; nothing raises, and nothing quotes it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import Counter
from datetime import datetime
from decimal import Decimal
from typing import Any

import pika
import pytest
from hypothesis import HealthCheck, Phase, event, example, given, settings
from pydantic import BaseModel, field_validator

from consume.kinds import BOTH
from consume.strange import MARKER, STRANGE, Strange, kept
from consume.test_amqp import road
from postroad.consume import consumer, consumer_of
from postroad.consume.arrival import Arrival, identified, received, resumed
from postroad.errors import ContractError
from postroad.events import Subscription
from postroad.failures import FailureClass, Rules, classify
from postroad.signals.catalog import ConnectionDown
from postroad.work import wire as wires
from postroad.work.store import ClaimedRow
from postroad.work.wire import Wire, digest, headers_from_json, headers_to_json

COUNT = int(os.environ.get("POSTROAD_TEST_FUZZ", "2000"))
STORED = 400
CODES = {"PR501", "PR502", "PR503", "PR504", "PR505"}


class Order(BaseModel):
    """Of each kind of field, something that a payload can get wrong."""

    order: str
    amount: int
    price: Decimal | None = None
    at: datetime | None = None
    more: dict[str, Any] | list[Any] | None = None

    @field_validator("order")
    @classmethod
    def in_capitals(cls, order: str) -> str:
        return order if len(order) < 100 else order[1000]  # An author's own mistake.


def lift(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "order": payload["order"].strip()}


Placed = Subscription("orders.order.placed", version=2, model=Order, upcasts={1: lift})
WIDE = settings(max_examples=COUNT, database=None, suppress_health_check=[*HealthCheck])


@consumer(Placed, name="billing.orders")
async def bill(event, delivery):
    await delivery.tx.execute("INSERT INTO public.effect VALUES ('one', 1, 1)")


CONSUMER = consumer_of(bill)


def kept_and_read_again(wire: Wire) -> Wire:
    """What a row of `work` or `quarantine` makes of it, by the way of a column of JSON."""
    stored = headers_to_json(wire.headers)
    # What PostgreSQL's jsonb refuses (8.14.1 of its manual).
    assert "\\u0000" not in stored.replace("\\\\", "")
    assert not any(0xD800 <= ord(letter) <= 0xDFFF for text in _texts(json.loads(stored)) for letter in text)
    return Wire(
        body=wire.body, content_type=wires.kept(wire.content_type) or "", headers=headers_from_json(stored),
        exchange=wires.kept(wire.exchange), routing_key=wires.kept(wire.routing_key), event_type=wire.event_type,
    )  # fmt: skip


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for name, inner in value.items() for text in [name, *_texts(inner)]]
    if isinstance(value, list):
        return [text for inner in value for text in _texts(inner)]
    return [value] if isinstance(value, str) else []


def fate(arrival: Arrival) -> str:
    """Its code; empty where its handler would run."""
    return "" if arrival.refusal is None else arrival.refusal.code


def comes_to_an_end(strange: Strange) -> str:
    """The pure steps from the bytes on the wire to a row of quarantine, and to the next attempt from there."""
    first = identified(CONSUMER, received(strange.arrives()))
    if first.refusal is None:
        assert isinstance(first.event, Order)
        assert first.message_key is not None
    else:
        assert fate(first) in CODES
        assert MARKER not in f"{first.refusal!s}{first.refusal!r}"
        assert first.refusal.__cause__ is None
        verdict = classify(first.refusal, rules=Rules(), attempt=1)
        assert verdict.failure is FailureClass.QUARANTINE
        assert MARKER not in repr(verdict)
    assert MARKER not in (first.wire.event_type or "") + first.event_type
    assert len(digest(first.wire)) == 32
    again = identified(CONSUMER, resumed(row(kept_and_read_again(first.wire))))
    assert (fate(again), again.message_key) == (fate(first), first.message_key)
    assert repr(again.event) == repr(first.event)
    return fate(first) or "handled"


def row(wire: Wire) -> ClaimedRow:
    return ClaimedRow(id=1, token=1, queue="billing.orders", kind="retry", key=None, wire=wire,
                      created_at=None, run_at=None)  # type: ignore[arg-type]  # fmt: skip


def with_the_corpus(test: Any) -> Any:
    for strange in kept().values():
        test = example(strange)(test)
    return test


@pytest.mark.timeout(60 + COUNT // 20)
@with_the_corpus
@given(STRANGE)
@WIDE
def test_whatever_comes_is_handled_or_refused_with_a_code_and_can_be_kept(strange: Strange) -> None:
    event(comes_to_an_end(strange))


def test_what_is_drawn_reaches_every_code_and_the_handler() -> None:
    reached: Counter[str] = Counter()

    @given(STRANGE)
    @settings(WIDE, max_examples=2000, phases=[Phase.generate], derandomize=True)
    def draw(strange: Strange) -> None:
        reached[fate(identified(CONSUMER, received(strange.arrives())))] += 1

    draw()
    assert reached.keys() == {"", *CODES}
    assert min(reached.values()) >= 3


def drawn(count: int) -> list[Strange]:
    found: list[Strange] = [*kept().values()]

    @given(STRANGE)
    @settings(WIDE, max_examples=count, phases=[Phase.generate])
    def draw(strange: Strange) -> None:
        found.append(strange)

    draw()
    return [strange.named(number) for number, strange in enumerate(found, 1)]


def put(queue: Any, strange: Strange) -> None:
    came = strange.arrives()
    names = ("content_type", "headers", "exchange", "routing_key", "redelivered", "message_id", "type", "app_id")
    queue.put(came.body, **{name: getattr(came, name) for name in (*names, "user_id")})


def wire_of(row: Any) -> Wire:
    names = ("body", "content_type", "exchange", "routing_key")
    return Wire(headers=headers_from_json(row["headers"]), **{name: row[name] for name in names})


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", BOTH, indirect=True)
async def test_each_comes_to_rest_in_a_real_database_and_nothing_quotes_it(here, queue, sql, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    heard: list[Any] = []
    here.signals.subscribe(heard.append)
    strangers = drawn(STORED)
    async with here.consuming(bill, queue.intake()):
        for strange in strangers:
            put(queue, strange)
        await here.settled(len(strangers))
    assert len(queue.acked) == len(strangers)
    assert queue.given_back == 0
    rows = await sql.fetch("SELECT class, code, fingerprint, error_type, reason, history, event_type, key, queue"
                           " FROM quarantine")  # fmt: skip
    assert {row["class"] for row in rows} == {"quarantine"}
    assert {row["code"] for row in rows} <= CODES
    sent = {digest(kept_and_read_again(received(strange.arrives()).wire)) for strange in strangers}
    stored = await sql.fetch("SELECT body, content_type, headers, exchange, routing_key FROM quarantine")
    assert [row for row in stored if digest(wire_of(row)) not in sent] == []
    assert await sql.fetchval("SELECT count(*) FROM work") == 0
    assert await sql.fetchval("SELECT count(*) FROM public.effect") > 0
    for told in ([tuple(row) for row in rows], [tuple(row) for row in await sql.fetch("SELECT * FROM inbox")], heard):
        assert MARKER not in repr(told)
    assert MARKER not in caplog.text


class AsTheyAre(pika.BasicProperties):  # type: ignore[misc]
    """Properties that pika writes without a look at them."""

    def __init__(self, encoded: bytes) -> None:
        super().__init__()
        self._encoded = encoded

    def encode(self) -> list[bytes]:
        return [self._encoded]


def send(url: str, strange: Strange) -> bool:
    """Publish it, on a connection of its own; whether RabbitMQ took it: it ends the connections of the worst itself."""
    try:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            properties = AsTheyAre(strange.properties)
            channel.basic_publish("orders.events", "orders.order.placed.v1", strange.body, properties)
    except pika.exceptions.AMQPConnectionError:
        return False
    return True


def send_all(url: str) -> set[str]:
    return {name for number, (name, strange) in enumerate(kept().items(), 1) if send(url, strange.named(number))}


@pytest.mark.timeout(60)
async def test_what_rabbitmq_lets_through_comes_to_rest_and_costs_no_connection(here, vhost, sql) -> None:
    async with road(here, vhost) as (_, intake), here.consuming(bill, intake):
        taken = await asyncio.to_thread(send_all, vhost)
        await here.settled(len(taken))
    assert taken >= {"whole", "bomb", "milliseconds", "nul-in-header", "half-a-character"}
    assert here.heard.all(ConnectionDown) == []
    assert {row["code"] for row in await sql.fetch("SELECT code FROM quarantine")} == {"PR501", "PR504", "PR505"}
    assert await sql.fetchval("SELECT count(*) FROM public.effect") > 0


# --- each of these steps switched off -------------------------------------------------------------------------------


def drawn_until_it_fails() -> None:
    @with_the_corpus
    @given(STRANGE)
    @settings(WIDE, max_examples=2000, phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False)
    def look(strange: Strange) -> None:
        comes_to_an_end(strange)

    look()


@pytest.mark.sabotage
def test_without_the_forms_for_what_json_lacks_a_row_could_not_be_stored(monkeypatch) -> None:
    monkeypatch.setattr(wires, "_plain", lambda value: value)
    with pytest.raises((AssertionError, TypeError, ValueError, BaseExceptionGroup)):
        drawn_until_it_fails()


@pytest.mark.sabotage
def test_without_the_narrow_words_a_reason_quotes_what_came(monkeypatch) -> None:
    def quoting(body: bytes, **_: Any) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise ContractError("PR501", f"the body is {body!r}") from None

    monkeypatch.setattr("postroad.events.envelope.parse_object", quoting)
    with pytest.raises((AssertionError, AttributeError, BaseExceptionGroup)):
        drawn_until_it_fails()
