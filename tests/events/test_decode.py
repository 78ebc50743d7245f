"""Whatever arrives is read within limits, or refused with a reason that quotes nothing."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroad.errors import ContractError
from postroad.events.envelope import CONTENT_TYPE, Envelope, decode, message_key

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
WHOLE: dict[str, Any] = {
    "specversion": "1.0",
    "id": ID,
    "source": "urn:postroad:flights",
    "type": "flights.flight.departed",
    "schemaversion": 2,
    "time": "2013-01-01T15:17:00Z",
    "recordedtime": "2026-01-01T00:00:00.5+01:00",
    "correlationid": "story",
    "partitionkey": "UA",
    "sequence": "00000000000000000042",
    "data": {"carrier": "UA"},
}


def structured(without: str = "", **changes: Any) -> bytes:
    return json.dumps({name: value for name, value in {**WHOLE, **changes}.items() if name != without}).encode()


def read(body: bytes, content_type: str | None = CONTENT_TYPE, **headers: Any) -> Envelope:
    return decode(body, content_type=content_type, headers=headers)


def refusal(body: bytes, content_type: Any = CONTENT_TYPE, headers: Any = None) -> str:
    with pytest.raises(ContractError) as caught:
        decode(body, content_type=content_type, headers=headers or {})
    assert caught.value.code == "PR501"
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_a_structured_event_is_read():
    envelope = read(structured(), "application/cloudevents+json; charset=utf-8")
    assert envelope.time == datetime(2013, 1, 1, 15, 17, tzinfo=UTC)
    assert envelope.recorded == datetime(2025, 12, 31, 23, 0, 0, 500_000, tzinfo=UTC)
    assert (envelope.version, envelope.sequence, envelope.data) == (2, 42, {"carrier": "UA"})
    assert (envelope.owner, envelope.is_own) == ("flights", True)


@pytest.mark.parametrize("prefix", ["cloudEvents_", "cloudEvents:", "ce-"])
def test_a_binary_event_is_read_under_each_prefix(prefix):
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "id": 17,
        "source": b"/bookings",
        "type": "bookings.booking.made",
        "schemaversion": "3",
        "time": datetime(2026, 1, 1, 12),  # noqa: DTZ001 - as AMQP drivers give it
        "sequence": 7,
        "partitionkey": None,
    }
    headers = {f"{prefix}{name}": value for name, value in attributes.items()}
    envelope = decode(b'{"seat": "1A"}', content_type="application/json", headers={**headers, "x-other": object()})
    assert (envelope.id, envelope.source, envelope.version, envelope.sequence) == ("17", "/bookings", 3, 7)
    assert envelope.time == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert (envelope.key, envelope.data) == (None, {"seat": "1A"})


def test_a_foreign_event_may_leave_out_what_cloud_events_leave_open():
    foreign = structured(without="schemaversion", source="https://example.org/x", time=None, sequence="0x1f")
    envelope = read(foreign)
    assert (envelope.version, envelope.time, envelope.sequence, envelope.is_own) == (1, None, None, False)


@pytest.mark.parametrize("name", ["specversion", "id", "source", "type", "schemaversion", "time", "data"])
def test_a_missing_attribute_is_named(name):
    assert name in refusal(structured(without=name))
    assert name in refusal(structured(**{name: None}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("specversion", "0.3"), ("specversion", 1.0), ("id", 17), ("id", ""), ("id", "x" * 256), ("id", "é" * 128),
        ("id", "a\nb"), ("id", ["x"]), ("source", 1), ("source", "x" * 1025), ("type", {}), ("type", "x" * 256),
        ("schemaversion", 0), ("schemaversion", True), ("schemaversion", 1.5), ("schemaversion", "two"),
        ("schemaversion", 2**31), ("schemaversion", "9" * 40), ("schemaversion", "٣"), ("time", "yesterday"),
        ("time", "2026-01-01T00:00:00"), ("time", "2026-13-01T00:00:00Z"), ("time", "0001-01-01T00:00:00+14:00"),
        ("time", "2026-01-01T00:00:60Z"), ("time", 5), ("correlationid", 5), ("causationid", False),
        ("partitionkey", "a\x00b"), ("partitionkey", "x" * 256), ("sequence", "-1"), ("sequence", 2**63),
        ("sequence", []), ("recordedtime", "2026"), ("traceparent", 0), ("datacontenttype", "text/plain"),
        ("data", []), ("data", "text"), ("data", 1),
    ],
)  # fmt: skip
def test_a_wrong_attribute_is_refused(name, value):
    refusal(structured(**{name: value}))


def test_what_was_read_before_excuses_nothing():
    assert read(structured(schemaversion=1)).version == 1
    assert "schemaversion" in refusal(structured(schemaversion=True))
    assert "schemaversion" in refusal(structured(schemaversion=1.0))
    for _ in range(2):
        assert "source" in refusal(structured(source=["urn:postroad:flights"]))
        assert "type" in refusal(structured(type={"a": 1}))
        assert "source" in refusal(structured(source=""))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"hush", b'{"hush": NaN}', b'{"hush": Infinity}', b"\xff\xfe{}", b'{"a": "\xff"}',
        b'{"a": "\\ud800"}', b"[" * 100_000, b'{"a":' * 100_000, b'{"a":[' + b"[" * 70 + b"]" * 70 + b"]}",
        b'{"a": ' + b"9" * 100_000 + b"}", b"x" * 1_048_577,
        b'"' + b'\\"' * 400_000, b"{" * 65 + b'"' + b'\\"' * 400_000,
    ],
    ids=range(17),
)  # fmt: skip
def test_a_broken_body_is_refused_quickly_and_not_quoted(body):
    started = time.perf_counter()
    assert "hush" not in refusal(body)
    assert time.perf_counter() - started < 2


def test_depth_is_counted_outside_of_text_and_up_to_the_limit():
    nested: Any = "[" * 500
    for _ in range(62):
        nested = [nested]
    assert read(structured(data={"deep": nested, "wide": [[], [], {}] * 50})).version == 2
    assert "deeper than 64" in refusal(structured(data={"deep": [nested], "wide": []}))


def test_what_is_no_cloud_event_is_refused():
    assert "not a CloudEvent" in refusal(structured(), "application/json")
    assert "not a CloudEvent" in refusal(structured(), None)
    assert "not a CloudEvent" in refusal(structured(), 5, {"ce_id": "x"})
    assert "not read here" in refusal(b"[]", "application/cloudevents-batch+json")
    assert "not read here" in refusal(b"x", "application/cloudevents+avro")
    assert "not JSON" in refusal(b"x", "text/plain", {"ce-specversion": "1.0"})


@pytest.mark.parametrize("value", [1.5, True, b"\xff", [], {}, 2**70, object()])
def test_a_header_of_the_wrong_type_is_refused(value):
    assert "attribute id" in refusal(b"{}", "application/json", {"ce-specversion": "1.0", "ce-id": value})


def test_an_attribute_under_two_prefixes_must_agree():
    headers = {"ce-id": "1", "cloudEvents_id": "2", "ce-specversion": "1.0"}
    assert "comes twice" in refusal(b"{}", "application/json", headers)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
HEADERS = st.dictionaries(
    st.sampled_from([f"{prefix}{name}" for prefix in ("cloudEvents_", "cloudEvents:", "ce-") for name in WHOLE])
    | st.text()
    | st.integers(),
    st.none()
    | st.text()
    | st.integers()
    | st.binary()
    | st.datetimes()
    | st.floats()
    | st.lists(st.text())
    | st.just("1.0"),
)
BODIES = (
    st.binary()
    | JSON.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"))
    | st.builds(
        lambda changes: json.dumps({**WHOLE, **changes}).encode(), st.dictionaries(st.sampled_from(list(WHOLE)), JSON)
    )
)
KINDS = (
    st.sampled_from([CONTENT_TYPE, "application/json", "text/plain", "", ";", "application/cloudevents"])
    | st.none()
    | st.text()
)


@given(body=BODIES, content_type=KINDS, headers=HEADERS)
@example(body=structured(), content_type=CONTENT_TYPE, headers={})
def test_nothing_but_a_contract_error_ever_comes_out(body, content_type, headers):
    with suppress(ContractError):
        envelope = decode(body, content_type=content_type, headers=headers)
        assert isinstance(message_key(envelope), UUID)


def test_only_an_owners_own_event_is_known_by_its_id_alone():
    own = read(structured())
    assert message_key(own) == UUID(ID)
    keys = {
        message_key(own),
        message_key(read(structured(source="https://example.org/a"))),
        message_key(read(structured(source="https://example.org/b"))),
        message_key(read(structured(source="urn:postroad:bookings"))),
        message_key(read(structured(id="17"))),
    }
    assert len(keys) == 5
    assert message_key(read(structured(id="17"))) == message_key(read(structured(id="17")))


@pytest.mark.parametrize("id_", [ID.upper(), ID.replace("-", "") + "----", "1" * 36, "{" + ID[:34] + "}"])
def test_an_own_id_is_a_key_only_in_the_form_that_we_write(id_):
    key = message_key(read(structured(id=id_)))
    assert (key == UUID(ID)) is (id_ == ID.upper())
    assert type(key) is UUID


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (1_767_323_045_000, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (1_767_323_045_250, datetime(2026, 1, 2, 3, 4, 5, 250_000, tzinfo=UTC)),
        (100_000_000_000, datetime(1973, 3, 3, 9, 46, 40, tzinfo=UTC)),
        (253_402_300_799_999, datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
    ],
)
def test_a_number_for_a_time_is_an_amqp_timestamp_in_milliseconds(value, read):
    headers = {f"cloudEvents_{name}": text for name, text in WHOLE.items() if name not in {"data", "time"}}
    assert decode(b"{}", content_type="", headers={**headers, "cloudEvents_time": value}).time == read


@pytest.mark.parametrize("value", [1_767_323_045, 0, -1, True, 253_402_300_800_000, 2**62])
def test_a_number_that_cannot_be_milliseconds_is_no_time(value):
    headers = {f"ce-{name}": text for name, text in WHOLE.items() if name not in {"data", "time"}}
    assert "attribute time" in refusal(b"{}", "", {**headers, "ce-time": value}).replace("header of ", "")
