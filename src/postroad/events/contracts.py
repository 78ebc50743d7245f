"""What a new catalog would break of an old one: whose data, and how to mend it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from postroad.events.changes import Change, compare
from postroad.events.compatibility import Direction, breaks, directions
from postroad.events.event_type import Compatibility
from postroad.events.schemas import Schema, names

if TYPE_CHECKING:
    from postroad.events.exported import Exported, ExportedEvent, ExportedSubscription


class Severity(StrEnum):
    """Whether a finding fails the check."""

    BREAK = "break"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that the new catalog does to those who read: the rule, where, what, whose data, and how to mend it."""

    severity: Severity
    rule: str
    type: str
    version: int
    path: str = ""
    what: str
    whose: str
    remedy: str

    @property
    def line(self) -> str:
        """All of it on one line."""
        place = f", field {self.path}" if self.path else ""
        return f"{self.severity}: {self.type} v{self.version}{place} {self.what}: {self.whose}; {self.remedy}"

    def as_json(self) -> dict[str, Any]:
        """Plain values, for `json.dumps`."""
        return asdict(self)


def check(old: Exported, new: Exported) -> list[Finding]:
    """What breaks, or is worth a look, when the service of `old` becomes that of `new`; breaks first.

    Each type is held to the promise (``compatibility``) that `old` made. To compare with the latest export is enough
    for all earlier ones too: what each step may not break adds up, and the ledger of names remembers what went.
    """
    found = [*_types(old, new), *_subscriptions(old, new)]
    return sorted(found, key=lambda one: (one.severity is Severity.WARNING, one.type, one.version, one.path, one.rule))


def _types(old: Exported, new: Exported) -> Iterator[Finding]:
    for name in sorted({event.type for event in old.events}):
        before, after = old.of(name), new.of(name)
        if not after:
            yield _gone(before[-1], new)
            continue
        yield from _promises(before[-1], after[-1])
        yield from _versions(name, old, new)
        yield from _reused(before, after[-1])
        yield from _forgotten(before[-1], after[-1])
        later = {event.version: event for event in after}
        for event in before:
            if event.version in later:
                yield from _schemas(event, later[event.version])


# --- types, owners, promises ------------------------------------------------------------------------------------------


def _gone(event: ExportedEvent, new: Exported) -> Finding:
    subject = event.type.split(".")[1:]
    heir = next((one for one in new.events if one.type.split(".")[1:] == subject), None)
    if heir is not None:
        return _finding(
            "owner-changed", event, what=f"is now {heir.type}: its owner was {event.owner} and is {heir.owner}",
            whose=f"consumers of {event.type} are bound to {event.owner}.events and wait for ever",
            remedy="publish under both names until every consumer has moved, then retire the old one",
        )  # fmt: skip
    return _finding(
        "type-removed", event, what="is published no more", whose="its consumers wait for ever, and nothing tells them",
        remedy="have its consumers retired first; then set compatibility='none' in a release before",
        severity=Severity.WARNING if event.compatibility is Compatibility.NONE else Severity.BREAK,
    )  # fmt: skip


def _promises(old: ExportedEvent, new: ExportedEvent) -> Iterator[Finding]:
    if old.owner != new.owner:
        yield _finding(
            "owner-changed", new, what=f"was {old.owner}'s and is {new.owner}'s",
            whose=f"consumers accept it from {old.owner}.events alone and would quarantine it (PR504)",
            remedy="leave it to its owner, or declare a type of your own",
        )  # fmt: skip
    before, after = old.retention_days, new.retention_days
    if before != after:
        shorter = after is not None and (before is None or after < before)
        yield _finding(
            "retention-shortened" if shorter else "retention-lengthened", new,
            what=f"was kept {_days(before)} and is kept {_days(after)}",
            whose="who replays finds less than was promised" if shorter else "events stay in the log for longer",
            remedy="keep it, or agree with its consumers first" if shorter else "see whether they may be kept so long",
            severity=Severity.BREAK if shorter else Severity.WARNING,
        )  # fmt: skip
    if not {*directions(old.compatibility)} <= {*directions(new.compatibility)}:
        yield _finding(
            "promise-weakened", new, what=f"promised {old.compatibility} and promises {new.compatibility}",
            whose="the next change may break those who relied on it", remedy="tell its consumers before that change",
            severity=Severity.WARNING,
        )  # fmt: skip


def _versions(name: str, old: Exported, new: Exported) -> Iterator[Finding]:
    """Versions of which there may be events, and from which no chain of upcasts leads on any more."""
    before, after = old.of(name)[-1], new.of(name)[-1]
    if before.compatibility is Compatibility.NONE:
        return
    for version in old.ever(name):
        if before.reaches(version) and not after.reaches(version):
            yield replace(
                _finding(
                    "upcast-lost", after, what=f"has no upcasts that lead on from v{version}",
                    whose=f"events of v{version}, {_kept(before)}, are refused by readers of v{after.version} (PR503)",
                    remedy=_mended(after, version),
                ),
                version=version,
            )  # fmt: skip
    standing = {event.version for event in new.of(name)}
    if Direction.FORWARD in directions(before.compatibility) and before.version not in standing:
        yield _finding(
            "version-removed", before, what="is published no more",
            whose=f"consumers that read v{before.version} refuse v{after.version} (PR503), against the promise",
            remedy=f"keep v{before.version} declared, and publish it, until they have moved",
        )  # fmt: skip


def _mended(event: ExportedEvent, version: int) -> str:
    if version > event.version:
        return f"keep v{version} declared"
    step = next(step for step in range(version, event.version) if step not in event.upcasts)
    return f"give the event upcasts={{{step}: ...}}"


def _reused(before: list[ExportedEvent], new: ExportedEvent) -> Iterator[Finding]:
    """Names that went once and are back as something else."""
    here = names(new.written)
    gone = {one.path: one.word for event in before for one in event.removed}
    for path in sorted(gone.keys() & here.keys()):
        if here[path] != gone[path]:
            yield _finding(
                "name-reused", new, path=path, what=f"was {gone[path]} before it was removed, and is {here[path]}",
                whose="events from then, and consumers that still know the name, have it as what it was",
                remedy="choose a name that was never used",
            )  # fmt: skip


def _forgotten(old: ExportedEvent, new: ExportedEvent) -> Iterator[Finding]:
    here = {*names(new.written), *(one.path for one in new.removed)}
    lost = sorted({one.path for one in old.removed} - here)
    if lost:
        yield _finding(
            "ledger-lost", new, what=f"no longer remembers that {', '.join(lost)} went",
            whose="the next check cannot see that a name comes back as something else",
            remedy="export with --since OLD", severity=Severity.WARNING,
        )  # fmt: skip


# --- schemas ----------------------------------------------------------------------------------------------------------


def _schemas(old: ExportedEvent, new: ExportedEvent) -> Iterator[Finding]:
    """One version before and after: what the promise forbids, enums that grow, and renames that nobody notices."""
    if old.compatibility is Compatibility.NONE:
        return
    written = compare(old.written, new.written)
    for direction in directions(old.compatibility):
        if direction is Direction.BACKWARD:
            broken = _fresh(direction, writer=old.written, own=old.read, reader=new.read)
            whose = f"events of v{old.version}, {_kept(old)}, would be refused by consumers on the new class"
        else:
            broken = _fresh(direction, writer=new.written, own=new.read, reader=old.read)
            whose = "new events would be refused by consumers that still have the old class"
        for change in broken:
            if change.rule != "enum-added":
                yield _broken(new, change, whose)
    for change in written:
        if change.rule == "enum-added" and not change.extensible:
            whose = "consumers whose model lists the values would refuse events with the new ones (PR505)"
            yield _broken(new, change, whose)
        elif change.rule.startswith("rename-"):
            whose = (
                "consumers that read the old name find it missing, and those of the new name find it in no old event"
            )
            yield replace(_broken(new, change, whose), severity=Severity.WARNING)


def _fresh(direction: Direction, *, writer: Schema, own: Schema, reader: Schema) -> list[Change]:
    """What stands between a writer and a reader, and does not stand between the writer and its own reader."""
    known = {(one.rule, one.path) for one in breaks(_seen(writer, own, direction), direction)}
    found = breaks(_seen(writer, reader, direction), direction)
    return [one for one in found if (one.rule, one.path) not in known]


def _seen(writer: Schema, reader: Schema, direction: Direction) -> list[Change]:
    return compare(writer, reader) if direction is Direction.BACKWARD else compare(reader, writer)


def _broken(event: ExportedEvent, change: Change, whose: str) -> Finding:
    what, remedy = _WORDS.get(change.rule, _OTHERWISE)
    following = f"publish v{event.version + 1} with upcasts={{{event.version}: ...}}"
    detail = f" ({change.detail})" if change.detail else ""
    return _finding(
        change.rule, event, path=change.path, what=what + detail, whose=whose, remedy=f"{remedy}, or {following}"
    )


def _subscriptions(old: Exported, new: Exported) -> Iterator[Finding]:
    """Consumers that are in either catalog, where the events that they read are too."""
    for catalog, whose in (
        (new, "the events that the new catalog publishes"),
        (old, "new events, until it is upgraded"),
    ):
        for reader in catalog.subscriptions:
            if catalog is old and reader in new.subscriptions:
                continue
            for event in new.of(reader.type):
                if event.version == reader.version:
                    yield from _read(reader, event, old, whose)


def _read(reader: ExportedSubscription, event: ExportedEvent, old: Exported, whose: str) -> Iterator[Finding]:
    found = breaks(compare(event.written, reader.reads), Direction.BACKWARD)
    before = next((one for one in old.of(event.type) if one.version == event.version), None)
    same = next((one for one in old.subscriptions if one == reader), None)
    if before is not None and same is not None:  # What did not fit before is not what this change breaks.
        known = {(one.rule, one.path) for one in breaks(compare(before.written, reader.reads), Direction.BACKWARD)}
        found = [one for one in found if (one.rule, one.path) not in known]
    for change in found:
        model = reader.model or "a consumer's model"
        yield _finding(
            f"reader-{change.rule}", event, path=change.path, what=f"does not fit {model}",
            whose=f"{model} would refuse {whose} (PR505)", remedy="make the model read less, or the event say more",
        )  # fmt: skip


# --- words ------------------------------------------------------------------------------------------------------------

_OTHERWISE: Final = ("changed", "keep it as it was")
_WORDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType({
    "add-required": ("was added as required", "give it a default"),
    "add-optional": ("was added where readers refuse names that they do not know", "let readers ignore such names"),
    "remove-required": ("was removed although readers need it", "keep it, or give readers a default first"),
    "remove-optional": ("was removed, and readers refuse names that they do not know", "let readers ignore such names"),
    "rename-required": ("was renamed", "keep the old name beside the new one for a time"),
    "rename-optional": ("was renamed", "keep the old name beside the new one for a time"),
    "optional-to-required": ("became required", "keep its default"),
    "required-to-optional": ("became optional although readers need it", "keep on sending it"),
    "type-widened": ("takes more types", "keep its type"),
    "type-narrowed": ("takes fewer types", "keep its types"),
    "type-changed": ("changed its type", "add a field of another name"),
    "enum-added": (
        "grew by values",
        "mark the field in a release before (json_schema_extra={'x-extensible': True}) and let readers take others",
    ),
    "enum-removed": ("lost values", "keep them"),
    "bound-relaxed": ("has a looser bound", "keep the bound"),
    "bound-tightened": ("has a tighter bound", "keep the bound as it was"),
    "open-to-closed": ("refuses names that it does not know", "leave extra='forbid' out"),
})  # fmt: skip


def _finding(
    rule: str, event: ExportedEvent, *, what: str, whose: str, remedy: str, path: str = "",
    severity: Severity = Severity.BREAK,
) -> Finding:  # fmt: skip
    return Finding(
        severity=severity, rule=rule, type=event.type, version=event.version, path=path, what=what, whose=whose,
        remedy=remedy,
    )  # fmt: skip


def _days(days: int | None) -> str:
    return "for ever" if not days else f"{days} days"


def _kept(event: ExportedEvent) -> str:
    return f"kept {_days(event.retention_days)}"
