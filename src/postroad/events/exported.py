"""The file that a service gives to others: its catalog, and what it must remember of names and versions that went."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from postroad.errors import UsageError
from postroad.events.event_type import Compatibility
from postroad.events.schemas import names

if TYPE_CHECKING:
    from postroad.events.catalog import Catalog

FORMAT: Final = 1
"""The number of the file's form; a later one is not read here."""
_REMEDY: Final = "write one with `postroad catalog export MODULE:APP --json FILE`"


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class RemovedName(_Kept):
    """A field that events of a type once had: its path, and the word for the type that it had."""

    path: str
    word: str


class ExportedEvent(_Kept):
    """One version of an event type, as far as others need it. `reads` is the schema by which its own class reads."""

    type: str = Field(pattern=r"^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*){2}$")
    version: int = Field(ge=1)
    owner: str
    description: str = ""
    retention_days: int | None = None
    compatibility: Compatibility = Compatibility.BACKWARD
    upcasts: tuple[int, ...] = ()
    written: dict[str, Any] = Field(alias="schema")
    reads: dict[str, Any] | None = None
    removed: tuple[RemovedName, ...] = ()

    @property
    def read(self) -> dict[str, Any]:
        """The schema by which the event's class reads; without one, the schema by which it is written."""
        return self.written if self.reads is None else self.reads

    def reaches(self, version: int) -> bool:
        """Whether events of `version` can be read as this one: it is that version, or upcasts lead on from it."""
        if version >= self.version:
            return version == self.version
        return len({step for step in self.upcasts if version <= step < self.version}) == self.version - version


class ExportedSubscription(_Kept):
    """What a consumer reads of a type."""

    type: str
    version: int
    model: str = ""
    reads: dict[str, Any] = Field(alias="schema")
    reads_versions: tuple[int, ...] = ()


class _File(_Kept):
    format: int = FORMAT
    events: tuple[ExportedEvent, ...] = ()
    subscriptions: tuple[ExportedSubscription, ...] = ()
    versions: dict[str, tuple[int, ...]] = {}


@dataclass(frozen=True, slots=True)
class Exported:
    """A catalog as a file holds it. `versions` are all that were ever exported, by type: events of them may be kept."""

    events: tuple[ExportedEvent, ...] = ()
    subscriptions: tuple[ExportedSubscription, ...] = ()
    versions: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def of(self, type_: str) -> list[ExportedEvent]:
        """The declared versions of a type, the latest last."""
        return sorted((one for one in self.events if one.type == type_), key=lambda one: one.version)

    def ever(self, type_: str) -> list[int]:
        """Every version of a type of which there may be events."""
        known = set(self.versions.get(type_, ()))
        for event in self.of(type_):
            known |= {event.version, *event.upcasts}
        return sorted(known)


def exported(catalog: Catalog, *, since: Exported | None = None) -> dict[str, Any]:
    """The catalog as values that `json.dumps` takes, with the ledger of names and versions that went since `since`.

    The ledger only grows: a name that a type once had is in it for good, so that it never comes back as something else.
    """
    content = catalog.as_json()
    before = since or Exported()
    now = read_values({"format": FORMAT, **content}, "the catalog")
    for event, values in zip(now.events, content["events"], strict=True):
        values["removed"] = [one.model_dump() for one in ledger(event, before.of(event.type))]
    types = sorted({*before.versions, *(one.type for one in (*before.events, *now.events))})
    versions = {name: sorted({*before.ever(name), *now.ever(name)}) for name in types}
    return {"format": FORMAT, **content, "versions": versions}


def ledger(event: ExportedEvent, before: Iterable[ExportedEvent]) -> list[RemovedName]:
    """The names that earlier exports of the type had, and that this one has no more; by path."""
    known = {(one.path, one.word) for one in event.removed}
    for earlier in before:
        known |= {(one.path, one.word) for one in earlier.removed}
        known |= {*names(earlier.written).items()}
    here = names(event.written)
    return [RemovedName(path=path, word=word) for path, word in sorted(known) if path not in here]


def read_exported(text: str, name: str) -> Exported:
    """Read what `postroad catalog export` wrote to the file `name`.

    Raises:
        UsageError: PR107, it is not that, or of a later form.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError("PR107", f"{name!r} is not JSON{place}; {_REMEDY}") from None
    return read_values(values, name)


def read_values(values: object, name: str) -> Exported:
    """The same of parsed JSON.

    Raises:
        UsageError: PR107, see `read_exported`.
    """
    try:
        file = _File.model_validate(values)
    except (ValidationError, RecursionError) as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) if isinstance(error, ValidationError) else ""
        place = f" ({where})" if where else ""
        raise UsageError("PR107", f"{name!r} is not an exported catalog{place}; {_REMEDY}") from None
    if file.format > FORMAT:
        message = f"{name!r} was exported by a later release (form {file.format}, here {FORMAT}); upgrade this one"
        raise UsageError("PR107", message)
    counts = Counter(f"{one.type} v{one.version}" for one in file.events)
    twice = [told for told, count in counts.items() if count > 1]
    if twice:
        raise UsageError("PR107", f"{name!r} holds {twice[0]} twice; {_REMEDY}")
    return Exported(file.events, file.subscriptions, dict(file.versions))
