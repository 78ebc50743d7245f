"""Golden envelopes: one event of every version that was ever published, read by the models and upcasts of today."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroad.errors import ContractError
from postroad.events.envelope import CONTENT_TYPE, Envelope, decode
from postroad.events.subscription import Subscription, as_subscription

if TYPE_CHECKING:
    from postroad.events.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """One file as one reader sees it, or a version that has none (`name` is empty). No `problem`: it is read well."""

    name: str
    type: str = ""
    version: int = 0
    reader: str = ""
    problem: str = ""


def read_golden(files: Mapping[str, bytes], catalog: Catalog) -> list[Golden]:
    """Read structured envelopes, by their files' names, with every reader that `catalog` has of their types.

    Readers are the latest version of each event of its producers, and its subscriptions. A version that is published,
    or that upcasts lead on from, and of which there is no file, is a problem too.
    """
    readers: dict[str, list[Subscription[Any]]] = {}
    for item in (*_latest(catalog), *catalog.subscriptions):
        known = readers.setdefault(item.type, [])
        if all((item.model, item.version) != (one.model, one.version) for one in known):
            known.append(item)
    found = [seen for name, body in sorted(files.items()) for seen in _read(name, body, readers)]
    kept = {(seen.type, seen.version) for seen in found}
    missing = [
        Golden(name="", type=event.type, version=version, problem="has no golden envelope")
        for event in catalog.events
        for version in sorted({event.version, *event.upcasts})
        if (event.type, version) not in kept
    ]
    return [*found, *dict.fromkeys(missing)]


def _latest(catalog: Catalog) -> list[Subscription[Any]]:
    latest = {event.type: event for event in catalog.events}  # They are sorted by version.
    return [as_subscription(event) for event in latest.values()]


def _read(name: str, body: bytes, readers: Mapping[str, list[Subscription[Any]]]) -> Iterator[Golden]:
    try:
        envelope = decode(body, content_type=CONTENT_TYPE, headers={})
    except ContractError as error:
        yield Golden(name=name, problem=error.message)
        return
    if envelope.type not in readers:
        yield Golden(name=name, type=envelope.type, version=envelope.version, problem="nothing here reads its type")
    for reader in readers.get(envelope.type, ()):
        model = f"{reader.model.__module__}.{reader.model.__qualname__}"
        yield Golden(
            name=name, type=envelope.type, version=envelope.version, reader=model, problem=_problem(envelope, reader)
        )


def _problem(envelope: Envelope, reader: Subscription[Any]) -> str:
    try:
        reader.decode(envelope.data, version=envelope.version)
    except ContractError as error:
        return error.message
    except Exception as error:  # noqa: BLE001 - a validator of the author's; the text could quote the payload
        return f"a validator raised {type(error).__name__}"
    return ""
