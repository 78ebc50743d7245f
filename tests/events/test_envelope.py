"""An event is written once, as CloudEvents bytes that never change."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from uuid import UUID

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from postroad.errors import UsageError
from postroad.events import Producer, event_type_of
from postroad.events.envelope import CONTENT_TYPE, MAX_PAYLOAD_BYTES, decode, encode, key_hash, message_key, shard_of

GOLDEN = Path(__file__).parent / "golden"
ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
envelopes = Producer("envelopes")

# CloudEvents 1.0, formats/cloudevents.json, and the rules of its extensions that Postroad uses.
CLOUD_EVENT = {
    "type": "object",
    "required": ["id", "source", "specversion", "type"],
    "propertyNames": {"pattern": "^[a-z0-9]{1,20}$"},
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "format": "uri-reference", "minLength": 1},
        "specversion": {"const": "1.0"},
        "type": {"type": "string", "minLength": 1},
        "datacontenttype": {"const": "application/json"},
        "time": {"type": "string", "pattern": "^[0-9-]{10}T[0-9:]{8}\\.[0-9]{6}Z$"},
        "recordedtime": {"type": "string", "pattern": "^[0-9-]{10}T[0-9:]{8}\\.[0-9]{6}Z$"},
        "schemaversion": {"type": "integer", "minimum": 1, "maximum": 2147483647},
        "correlationid": {"type": "string", "minLength": 1},
        "causationid": {"type": "string", "minLength": 1},
        "partitionkey": {"type": "string", "minLength": 1},
        "sequence": {"type": "string", "pattern": "^[0-9]{20}$"},
        "traceparent": {"type": "string"},
        "data": {"type": "object"},
    },
    "additionalProperties": False,
}


@envelopes.event("flight.departed", version=2)
class Departed(BaseModel):
    """A flight left the gate."""

    flight: str = Field(description="Its number.")
    delay: float | None = Field(default=None, description="Minutes late.", serialization_alias="delayMinutes")


def an_envelope(**changes):
    facts = {
        "id": ID,
        "occurred": datetime(2013, 1, 1, 10, 17, tzinfo=timezone(timedelta(hours=-5))),
        "recorded": datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC),
        "correlation": "story-1",
        "causation": "cause-1",
        "key": "UA-1545",
        "sequence": 42,
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }
    payload = changes.pop("payload", Departed(flight='UA "1545" é', delay=2.5))
    return encode(event_type_of(Departed), payload, **{**facts, **changes})


def test_the_bytes_of_an_event_are_those_of_the_golden_file():
    assert an_envelope() == (GOLDEN / "departed.v2.json").read_bytes().rstrip(b"\n")


@pytest.mark.parametrize(
    "changes", [{}, {"causation": None, "key": None, "sequence": None, "traceparent": None}, {"key": 'a"b\\c d€'}]
)
def test_an_event_is_a_valid_cloud_event(changes):
    jsonschema.validate(json.loads(an_envelope(**changes)), CLOUD_EVENT)


def test_absent_attributes_are_left_out():
    written = json.loads(an_envelope(causation=None, key=None, sequence=None, traceparent=None))
    assert not {"causationid", "partitionkey", "sequence", "traceparent"} & set(written)


def test_sequences_sort_as_text():
    texts = [json.loads(an_envelope(sequence=number))["sequence"] for number in (0, 9, 10, 2**63 - 1)]
    assert texts == sorted(texts)


TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn")), min_size=1, max_size=60)
FIRST, LAST = (datetime(year, 6, 1, tzinfo=UTC).replace(tzinfo=None) for year in (1000, 9999))
TIMES = st.datetimes(min_value=FIRST, max_value=LAST, timezones=st.just(UTC) | st.timezones())


@given(
    occurred=TIMES,
    recorded=TIMES,
    correlation=TEXTS,
    causation=st.none() | TEXTS,
    key=st.none() | TEXTS,
    sequence=st.none() | st.integers(0, 2**63 - 1),
    flight=st.text(st.characters(exclude_categories=("Cs",))),
)
def test_what_is_written_is_read_back(occurred, recorded, correlation, causation, key, sequence, flight):
    body = an_envelope(
        occurred=occurred, recorded=recorded, correlation=correlation, causation=causation, key=key, sequence=sequence,
        payload=Departed(flight=flight),
    )  # fmt: skip
    read = decode(body, content_type=CONTENT_TYPE, headers={})
    assert (read.id, read.source, read.type, read.version) == (
        str(ID), "urn:postroad:envelopes", "envelopes.flight.departed", 2,
    )  # fmt: skip
    assert (read.time, read.recorded) == (occurred.astimezone(UTC), recorded.astimezone(UTC))
    assert (read.correlation_id, read.causation_id) == (correlation, causation)
    assert (read.key, read.sequence) == (key, sequence)
    assert read.data == {"flight": flight, "delayMinutes": None}
    assert message_key(read) == ID


def test_hashes_and_shards_never_change():
    assert key_hash("UA-1545") == 4264022375109332159
    assert shard_of(-1) == 15
    assert {shard_of(key_hash(str(number))) for number in range(500)} == set(range(16))


def test_what_may_be_declared_is_read_by_every_consumer_and_no_more_may_be():
    @envelopes.event("flight.logged", version=1, max_bytes=MAX_PAYLOAD_BYTES)
    class Logged(BaseModel):
        """A flight's log was written."""

        text: str = Field(description="The log.")

    longest = '"' * 255  # Two bytes each in JSON.
    text = "x" * (MAX_PAYLOAD_BYTES - len('{"text":""}'))
    now = datetime(2026, 2, 3, tzinfo=UTC)
    body = encode(
        event_type_of(Logged), Logged(text=text), id=ID, occurred=now, recorded=now, correlation=longest,
        causation=longest, key=longest, sequence=7, traceparent=longest,
    )  # fmt: skip
    assert len(json.loads(body)["data"]["text"]) == len(text)
    assert decode(body, content_type=CONTENT_TYPE, headers={}).data["text"] == text
    with pytest.raises(UsageError, match=f"from 1 to {MAX_PAYLOAD_BYTES}"):
        envelopes.event("flight.recorded", version=1, max_bytes=MAX_PAYLOAD_BYTES + 1)(Logged)
