"""The tombstone that stands where the bytes of an erased event were."""

from __future__ import annotations

import json
from typing import Final

PREFIX: Final = b'{"redacted":true,'
"""How every tombstone begins, and no event: those begin with ``specversion`` (`envelope.encode`), or are foreign."""

_KEPT: Final = ("specversion", "id", "source", "type", "time", "recordedtime", "schemaversion", "datacontenttype")


def is_redacted(body: bytes) -> bool:
    """Whether `body` is a tombstone."""
    return body.startswith(PREFIX)


def tombstone(fields: dict[str, object]) -> bytes:
    """A CloudEvent with the id, source, type, version and times of `fields`, without key, correlation and data.

    Whoever reads it has the same event, of which nothing is left; `redacted` (an extension attribute) says so.
    """
    told = {name: fields[name] for name in _KEPT if fields.get(name) is not None}
    return json.dumps({"redacted": True, **told, "data": {}}, separators=(",", ":")).encode()
