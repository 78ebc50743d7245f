"""Messages that strangers send, as hypothesis draws them: whole, bent and broken, down to their headers' bytes."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from pika import spec

from postroad.events.envelope import CONTENT_TYPE
from postroad.transport.amqp.tables import read_header
from postroad.transport.amqp.wire import incoming
from postroad.transport.base import Incoming, Tag

MARKER = "MARKER-5F1C-of-the-payload"
"""In many texts and bytes of what is drawn; capitals, so that it is no name of a type, which may be repeated."""
CORPUS = Path(__file__).parent / "corpus"
WHOLE: dict[str, Any] = {
    "specversion": "1.0",
    "id": "01890a5d-ac96-774b-bcce-b302099a8057",
    "source": "urn:postroad:orders",
    "type": "orders.order.placed",
    "schemaversion": 1,
    "time": "2026-01-01T15:17:00Z",
    "recordedtime": "2026-01-01T15:17:00.5Z",
    "datacontenttype": "application/json",
    "correlationid": "story",
    "partitionkey": "A1",
    "sequence": "00000000000000000042",
    "data": {"order": "A1", "amount": 7},
}
PREFIXES = ("cloudEvents_", "cloudEvents:", "ce-")


@dataclass(frozen=True, slots=True)
class Strange:
    """One message: its body, the encoded properties of its content header, and the way that it came by."""

    body: bytes
    properties: bytes
    exchange: str = "orders.events"
    routing_key: str = "orders.order.placed.v1"
    redelivered: bool = False

    def arrives(self, number: int = 1) -> Incoming:
        """What the consuming connection makes of it."""
        content = struct.pack(">HHQ", 60, 0, len(self.body)) + self.properties
        frame = struct.pack(">BHL", spec.FRAME_HEADER, 1, len(content)) + content + bytes((spec.FRAME_END,))
        _, header = read_header(frame) or (0, None)
        assert header is not None
        method = SimpleNamespace(exchange=self.exchange, routing_key=self.routing_key, redelivered=self.redelivered)
        return incoming(Tag(1, number), method, header.properties, self.body)

    def named(self, number: int) -> Strange:
        """The same under an id of its own, where it has the common one: else it would be a duplicate of the others."""
        common, own = WHOLE["id"].encode(), str(UUID(int=UUID(WHOLE["id"]).int ^ number)).encode()
        return replace(self, body=self.body.replace(common, own), properties=self.properties.replace(common, own))

    def to_json(self) -> str:
        """A line for the corpus."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps({name: _written(value) for name, value in values.items()}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Strange:
        return cls(**{name: _read(value) for name, value in json.loads(text).items() if name != "why"})


def _written(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return base64.b64decode(value["base64"]) * value.get("times", 1)


def kept() -> dict[str, Strange]:
    """The corpus: what was found once, or would be bad to lose, by its file's name."""
    return {path.stem: Strange.from_json(path.read_text("utf-8")) for path in sorted(CORPUS.glob("*.json"))}


# --- texts and JSON -------------------------------------------------------------------------------------------------

TEXTS = st.one_of(
    st.just(MARKER),
    st.text(max_size=12),
    st.text(max_size=12).map(lambda text: text + MARKER),
    st.text(st.characters(categories=["Cs", "Cc", "Cf", "Lu", "Nd"]), max_size=6),
    st.sampled_from(["", "\x00", "\ud800", "\udfff\ud800", "\ufffe", "1.0", "9" * 400, "é" * 128, "x" * 300, "NaN"]),
)
NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -0.0])
)
PLAIN = st.none() | st.booleans() | NUMBERS | TEXTS
JSON = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=6,
)
# As they stand in a text: not all of them are JSON, or not for every reader.
LITERALS = st.sampled_from(
    ["NaN", "-Infinity", "1e999", "-1E-999", "9" * 5000, "0." + "3" * 5000, "01", "+1", "'x'", '"\\ud800"', '"\\x"',
     '"\\u0000"', "tru", "", "[" * 200 + "]" * 200, '{"a":' * 70 + "1" + "}" * 70, "[" * 70, "]", '"' + "\\" * 9 + '"']
)  # fmt: skip
VALUES = JSON.map(json.dumps) | LITERALS
TIMES = st.sampled_from(
    ["2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-02-30T00:00:00Z",
     "2026-01-01T00:00:60Z", "2026-01-01t00:00:00.123456789z", "2026-01-01 00:00:00+00:00", "1", "now"]
).map(json.dumps)  # fmt: skip

# Valid attributes of events that are not for this consumer, or not in this way.
NEAR = st.sampled_from(
    [("type", "orders.order.lost"), ("type", MARKER), ("type", "payments.payment.taken"),
     ("schemaversion", 3), ("schemaversion", 9), ("schemaversion", "1"), ("schemaversion", 1.0),
     ("source", "urn:postroad:payments"), ("source", "/legacy"), ("sequence", "x"), ("sequence", None),
     ("time", None), ("id", MARKER), ("partitionkey", MARKER), ("data", {"order": MARKER, "amount": 1}),
     ("data", {"order": MARKER, "amount": MARKER}), ("data", {"order": "A", "amount": 1, "price": "1e9999999"}),
     ("data", {MARKER: [MARKER]})]
).map(lambda pair: (pair[0], json.dumps(pair[1])))  # fmt: skip


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    """A structured event with some members changed, left out, doubled or added."""
    members = [(name, json.dumps(value)) for name, value in WHOLE.items()]
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 1, 2, 3]))):
        at = draw(st.integers(0, len(members) - 1))
        match draw(st.sampled_from(["near"] * 6 + ["value", "time", "data", "double", "drop", "add"])):
            case "near":
                members[at] = draw(NEAR)
            case "value":
                members[at] = (members[at][0], draw(VALUES))
            case "time":
                members[at] = ("time", draw(TIMES))
            case "data":
                members[at] = ("data", draw(VALUES))
            case "double":
                members.append((members[at][0], draw(VALUES)))
            case "drop" if len(members) > 1:
                del members[at]
            case _:
                members.insert(at, (draw(TEXTS), draw(VALUES)))
    text = ",".join(f"{json.dumps(name)}:{value}" for name, value in members)
    return f"{{{text}}}".encode("utf-8", "surrogatepass")


@st.composite
def bent(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes with a piece cut out, put in twice, or replaced by others."""
    given = draw(whole)
    start, size = draw(st.integers(0, len(given))), draw(st.integers(0, 12))
    piece = draw(st.sampled_from([b"", given[start : start + size] * 2, MARKER.encode()]) | st.binary(max_size=6))
    return given[:start] + piece + given[start + size :]


PAYLOADS = st.one_of(
    st.just(json.dumps(WHOLE["data"]).encode()),
    VALUES.map(lambda text: text.encode("utf-8", "surrogatepass")),
    VALUES.map(lambda text: f'{{"order": {text}, "amount": 1}}'.encode("utf-8", "surrogatepass")),
    VALUES.map(lambda text: f'{{"order": "A", "amount": {text}}}'.encode("utf-8", "surrogatepass")),
    VALUES.map(lambda text: f'{{"order": "A", "amount": 1, "price": {text}}}'.encode("utf-8", "surrogatepass")),
    VALUES.map(lambda text: f'{{"order": "A", "amount": 1, "more": {text}}}'.encode("utf-8", "surrogatepass")),
)
BODIES = st.one_of(
    objects(), objects(), bent(objects()), PAYLOADS, bent(PAYLOADS), st.binary(max_size=60),
    st.sampled_from([b"", b"{}", b"null", b"[]", b"\xef\xbb\xbf{}", json.dumps(WHOLE).encode("utf-16"), b"9" * 5000]),
)  # fmt: skip

# --- AMQP tables and properties, as bytes ---------------------------------------------------------------------------


def _sized(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content)) + content


def _text(text: str) -> bytes:
    return _sized(b"S", text.encode("utf-8", "surrogatepass"))


def _short(text: bytes) -> bytes:
    return bytes((len(text[:255]),)) + text[:255]


def _nested(depth: int) -> bytes:
    piece = b"V"
    for level in range(depth):
        piece = _sized(b"A", piece) if level % 2 else _sized(b"F", b"\x01n" + piece)
    return piece


NAMES = st.one_of(
    st.sampled_from([f"{prefix}{name}" for prefix in PREFIXES for name in WHOLE if name != "data"]),
    st.sampled_from(["x-death", "x-delivery-count", "postroad-publish", "ce-", "ce-data", "CE-id", "$bytes", "$table"]),
    TEXTS,
).map(lambda name: name.encode("utf-8", "surrogatepass"))
FIELDS: st.SearchStrategy[bytes] = st.recursive(
    st.one_of(
        TEXTS.map(_text),
        TEXTS.map(lambda text: _sized(b"x", text.encode("utf-8", "surrogatepass"))),
        st.integers(-(2**63), 2**63 - 1).map(lambda number: b"l" + struct.pack(">q", number)),
        st.integers(0, 2**64 - 1).map(lambda number: b"T" + struct.pack(">Q", number)),
        st.floats(width=32).map(lambda number: b"f" + struct.pack(">f", number)),
        st.floats().map(lambda number: b"d" + struct.pack(">d", number)),
        st.tuples(st.integers(0, 255), st.integers(-(2**31), 2**31 - 1)).map(
            lambda pair: b"D" + struct.pack(">Bi", *pair)
        ),
        st.sampled_from(
            [b"V", b"t\x00", b"t\x01", b"t\x07", b"b\xff", b"s\x80\x00", b"Q", b"", _nested(20), _nested(40)]
        ),
        st.binary(max_size=9),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda pieces: _sized(b"A", b"".join(pieces))),
        st.lists(st.tuples(NAMES, inner), max_size=3).map(
            lambda pairs: _sized(b"F", b"".join(_short(name) + piece for name, piece in pairs))
        ),
    ),
    max_leaves=4,
)


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """Headers: those of a binary event, changed, doubled and mixed with others; or any."""
    pairs: list[tuple[bytes, bytes]] = []
    if draw(st.booleans()):
        prefix = draw(st.sampled_from(PREFIXES))
        left_out = draw(st.none() | st.sampled_from(list(WHOLE)))
        names = [name for name in WHOLE if name not in {"data", "datacontenttype", left_out}]
        pairs = [(f"{prefix}{name}".encode(), _text(str(WHOLE[name]))) for name in names]
        if draw(st.booleans()):
            name, value = draw(NEAR)
            pairs = [pair for pair in pairs if not pair[0].endswith(name.encode())]
            pairs.append((f"{prefix}{name}".encode(), _text(str(json.loads(value)))))
    pairs += draw(st.lists(st.tuples(NAMES, FIELDS), max_size=3))
    return b"".join(_short(name) + piece for name, piece in pairs)


KINDS = st.one_of(
    st.sampled_from([CONTENT_TYPE, f"{CONTENT_TYPE}; charset=utf-8"]),
    st.sampled_from(["application/json", "text/json", "application/x+json", "", "application/cloudevents-batch+json"]),
    st.sampled_from(["APPLICATION/JSON ; a=b", "text/plain", ";", "application/cloudevents", "\x00"]),
    TEXTS,
).map(lambda kind: kind.encode("utf-8", "surrogatepass"))
SHORTS = (TEXTS | st.just("orders.order.placed")).map(lambda text: _short(text.encode("utf-8", "surrogatepass")))


@st.composite
def properties(draw: st.DrawFn) -> bytes:
    """What a content header holds behind the size of the body."""
    flags = spec.BasicProperties.FLAG_CONTENT_TYPE | spec.BasicProperties.FLAG_HEADERS
    pieces = [_short(draw(KINDS)), _sized(b"", draw(tables()))]
    # The rest in the order of their flags; a delivery mode and a priority are a byte each, a timestamp is eight.
    others: list[tuple[int, st.SearchStrategy[bytes]]] = [
        (spec.BasicProperties.FLAG_DELIVERY_MODE, st.binary(min_size=1, max_size=1)),
        (spec.BasicProperties.FLAG_CORRELATION_ID, SHORTS),
        (spec.BasicProperties.FLAG_MESSAGE_ID, SHORTS),
        (spec.BasicProperties.FLAG_TIMESTAMP, st.binary(min_size=8, max_size=8)),
        (spec.BasicProperties.FLAG_TYPE, SHORTS),
        (spec.BasicProperties.FLAG_USER_ID, SHORTS),
        (spec.BasicProperties.FLAG_APP_ID, SHORTS),
    ]
    for flag, values in others:
        if draw(st.integers(0, 3)) == 0:
            flags |= flag
            pieces.append(draw(values))
    return struct.pack(">H", flags) + b"".join(pieces)


EXCHANGES = st.sampled_from(["orders.events"] * 6 + ["orders.replay", "payments.events", "", "\x00", MARKER])
ROUTING_KEYS = st.sampled_from(["orders.order.placed.v1", "orders.order.placed.\x00", MARKER, ""])


def _properties(kind: str, table: bytes = b"") -> bytes:
    flags = spec.BasicProperties.FLAG_CONTENT_TYPE | spec.BasicProperties.FLAG_HEADERS
    return struct.pack(">H", flags) + _short(kind.encode()) + _sized(b"", table)


ANY = st.builds(
    Strange,
    body=BODIES,
    properties=st.one_of(properties(), properties(), properties(), bent(properties()), st.binary(max_size=60)),
    exchange=EXCHANGES,
    routing_key=ROUTING_KEYS,
    redelivered=st.booleans(),
)
STRUCTURED = st.builds(Strange, body=objects(), properties=st.just(_properties(CONTENT_TYPE)), exchange=EXCHANGES)
BINARY = st.builds(
    Strange, body=PAYLOADS, properties=tables().map(lambda table: _properties("application/json", table))
)
STRANGE = st.one_of(ANY, STRUCTURED, STRUCTURED, BINARY)
