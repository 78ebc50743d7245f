"""The envelope: an event as the CloudEvents 1.0 bytes that are stored once and travel unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic_core import SchemaValidator, core_schema

from postroad.errors import ContractError
from postroad.events import attributes as read
from postroad.events.parse import parse_object

if TYPE_CHECKING:
    from postroad.events.event_type import EventType

CONTENT_TYPE: Final = "application/cloudevents+json"
MAX_BODY_BYTES: Final = 1_048_576
"""The largest body that a consumer reads."""
MAX_PAYLOAD_BYTES: Final = MAX_BODY_BYTES - 16_384
"""The largest payload that may be declared: with its attributes, however they are quoted, it fits into a body."""
SHARDS: Final = 16
SEQUENCE_DIGITS: Final = 20

_OWN: Final = "urn:postroad:"
_PREFIXES: Final = ("cloudEvents_", "cloudEvents:", "ce-")
_MESSAGE_KEYS: Final = uuid5(NAMESPACE_URL, "urn:postroad:message-key")
_UUID_LENGTH: Final = 36
_uuid = SchemaValidator(core_schema.uuid_schema()).validate_python
"""Reads a UUID in a fifth of the time that its own class takes."""
_CONSTANTS: Final[dict[str, tuple[str, str]]] = {}  # As many as there are declared versions.
_SHARED: Final = ("specversion", "datacontenttype", "source", "type", "schemaversion")
_NATURES: Final = 512
_quoted = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(slots=True, kw_only=True)  # Not frozen: that would cost every delivery four times as much.
class Envelope:
    """An event as it arrived. Times are aware UTC; `data` is the payload, not yet fitted to a model.

    `time` is when it occurred (None only from foreign producers, who need not say), `recorded` when it was staged.
    """

    id: str
    source: str
    type: str
    version: int
    data: dict[str, Any] = field(repr=False)
    time: datetime | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    key: str | None = None
    sequence: int | None = None
    recorded: datetime | None = None
    traceparent: str | None = None

    @property
    def owner(self) -> str:
        """The producer that owns the type: its first part."""
        return self.type.partition(".")[0]

    @property
    def is_own(self) -> bool:
        """Whether the source is the owner of the type, in Postroad's way of naming it."""
        return self.source == _OWN + self.owner


def encode(
    event_type: EventType,
    payload: object,
    *,
    id: UUID,  # noqa: A002 - the attribute's name
    occurred: datetime,
    recorded: datetime,
    correlation: str,
    causation: str | None = None,
    key: str | None = None,
    sequence: int | None = None,
    traceparent: str | None = None,
) -> bytes:
    """Write an event as structured CloudEvents JSON; attributes in a fixed order, so that equal events are equal bytes.

    Times must be aware; texts are taken as they are (the author's door has checked them).

    Raises:
        UsageError: PR107 or PR106, see `EventType.encode_payload`.
    """
    data = event_type.encode_payload(payload)
    stamp = _stamp(recorded)
    time = stamp if occurred is recorded else _stamp(occurred)
    head, middle = _constants(event_type)
    parts = [
        f'{head}{id}","time":"{time}","recordedtime":"{stamp}',
        f'"{middle},"correlationid":{_quoted(correlation)}',
    ]
    if causation is not None:
        parts.append(f',"causationid":{_quoted(causation)}')
    if key is not None:
        parts.append(f',"partitionkey":{_quoted(key)}')
    if sequence is not None:
        parts.append(f',"sequence":"{sequence:0{SEQUENCE_DIGITS}d}"')
    if traceparent is not None:
        parts.append(f',"traceparent":{_quoted(traceparent)}')
    parts.append(',"data":')
    return b"".join(("".join(parts).encode(), data, b"}"))


def _constants(event_type: EventType) -> tuple[str, str]:
    """What is the same in every envelope of a type: before the id, and after the times."""
    known = _CONSTANTS.get(event_type.routing_key)
    if known is not None:
        return known
    middle = (
        f',"source":{_quoted(event_type.source)},"type":{_quoted(event_type.type)}'
        f',"schemaversion":{event_type.version},"datacontenttype":"application/json"'
    )
    return _CONSTANTS.setdefault(event_type.routing_key, ('{"specversion":"1.0","id":"', middle))


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def decode(
    body: bytes, *, content_type: str | None, headers: Mapping[str, Any], max_bytes: int = MAX_BODY_BYTES
) -> Envelope:
    """Read an event in structured JSON, or in binary mode (prefixes ``cloudEvents_``, ``cloudEvents:``, ``ce-``).

    A foreign source (not ``urn:postroad:``) may leave out ``schemaversion`` (then 1) and ``time``, and its
    ``sequence`` is ignored where it is not a number. Attributes that Postroad does not know are ignored.

    Raises:
        ContractError: PR501, with a reason that quotes nothing of the body. Nothing else is raised, whatever comes.
    """
    kind = content_type.partition(";")[0].strip().lower() if isinstance(content_type, str) else ""
    if kind == CONTENT_TYPE:
        fields = parse_object(body, max_bytes=max_bytes)
        data = fields.get("data")
    elif kind.startswith("application/cloudevents"):
        raise ContractError("PR501", "this CloudEvents format is not read here; send application/cloudevents+json")
    else:
        fields = read.from_headers(headers, _PREFIXES)
        if not fields:
            raise ContractError("PR501", "not a CloudEvent: neither the content type nor the headers say so")
        fields["datacontenttype"] = kind or None
        data = parse_object(body, max_bytes=max_bytes) if _is_json(kind) else None
    return _envelope(fields, data)


def _envelope(fields: Mapping[str, Any], data: Any, *, foreign: bool = False) -> Envelope:
    nature = _nature_of(fields)
    if not isinstance(data, dict):
        raise ContractError("PR501", "the data are missing, or not a JSON object")
    foreign = foreign or not nature.source.startswith(_OWN)
    version = nature.version
    time = read.moment(fields, "time")
    if not foreign and (version is None or time is None):
        raise ContractError("PR501", f"attribute {'schemaversion' if version is None else 'time'} is missing")
    return Envelope(
        id=read.required_text(fields, "id"),
        source=nature.source,
        type=nature.type,
        version=1 if version is None else version,
        data=data,
        time=time,
        correlation_id=read.text(fields, "correlationid"),
        causation_id=read.text(fields, "causationid"),
        key=read.text(fields, "partitionkey"),
        sequence=_sequence(fields, foreign=foreign),
        recorded=read.moment(fields, "recordedtime"),
        traceparent=read.text(fields, "traceparent"),
    )


class _Nature(NamedTuple):
    """What all events of a version of a type have in common."""

    source: str
    type: str
    version: int | None


def _nature_of(fields: Mapping[str, Any]) -> _Nature:
    values = [fields.get(name) for name in _SHARED]
    try:
        return _nature(*values)
    except TypeError:  # An object or a list, where a text belongs, has no hash.
        return _nature.__wrapped__(*values)


@lru_cache(maxsize=_NATURES, typed=True)  # Typed: true is no version 1. A refusal is not remembered.
def _nature(*values: object) -> _Nature:
    """Check the `_SHARED` attributes: once for all events that have the same."""
    fields = dict(zip(_SHARED, values, strict=True))
    if read.required_text(fields, "specversion") != "1.0":
        raise ContractError("PR501", "attribute specversion is not 1.0")
    if not _is_json(read.text(fields, "datacontenttype") or ""):
        raise ContractError("PR501", "the data are not JSON")
    return _Nature(
        source=read.required_text(fields, "source", most=read.MAX_SOURCE),
        type=read.required_text(fields, "type"),
        version=read.integer(fields, "schemaversion", least=1),
    )


def checked(envelope: Envelope) -> Envelope:
    """An envelope that an author's function has made, held to what `decode` holds all others to.

    Raises:
        ContractError: PR501, as of `decode`.
    """
    fields: dict[str, Any] = {
        "specversion": "1.0", "id": envelope.id, "source": envelope.source, "type": envelope.type,
        "schemaversion": envelope.version, "time": _told(envelope.time), "recordedtime": _told(envelope.recorded),
        "correlationid": envelope.correlation_id, "causationid": envelope.causation_id,
        "partitionkey": envelope.key, "sequence": envelope.sequence, "traceparent": envelope.traceparent,
    }  # fmt: skip
    return _envelope(fields, envelope.data, foreign=True)


def _told(moment: object) -> object:
    return moment.isoformat() if isinstance(moment, datetime) else moment


def _sequence(fields: Mapping[str, Any], *, foreign: bool) -> int | None:
    try:
        return read.integer(fields, "sequence", least=0, most=read.MAX_SEQUENCE)
    except ContractError:
        if foreign:
            return None
        raise


def _is_json(kind: str) -> bool:
    media = kind.partition(";")[0].strip().lower()
    return media in {"", "application/json", "text/json"} or media.endswith("+json")


def message_key(envelope: Envelope) -> UUID:
    """What an inbox knows the event by: its own id where its owner is a Postroad producer, else a UUIDv5.

    A CloudEvent is named by source **and** id together: two foreign sources may use the same id.
    """
    if envelope.is_own and len(envelope.id) == _UUID_LENGTH:
        try:
            known: UUID = _uuid(envelope.id)
        except ValueError:
            pass
        else:
            return known
    return uuid5(_MESSAGE_KEYS, f"{envelope.source}\n{envelope.id}")


def key_hash(key: str) -> int:
    """A stable signed 64-bit hash of a key (BLAKE2b), the same in every process and release."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big", signed=True)


def shard_of(number: int) -> int:
    """The shard, 0 to 15, of a key's hash, or of the ``seq`` of an event without a key."""
    return number % SHARDS
