"""What a change of a schema means for those who read: a table of rules, in both directions and both content models.

The rules are those of the JSON Schema comparison of Confluent's schema registry (``SchemaDiff``), restated. A *closed*
schema refuses names that it does not know (``additionalProperties: false``), an *open* one takes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from postroad.events.changes import Change, compare
from postroad.events.event_type import Compatibility

if TYPE_CHECKING:
    from postroad.events.schemas import Schema


class Direction(StrEnum):
    """Who reads whose data."""

    BACKWARD = "backward"  # the new reader, old data
    FORWARD = "forward"  # the old reader, new data


class Verdict(StrEnum):
    """What a change means."""

    OK = "ok"
    STRICT = "strict"  # breaks only if open data may hold any name, and closed readers none; see `breaks`
    BREAK = "break"


class Row(NamedTuple):
    """One line of the table."""

    backward_closed: Verdict
    forward_closed: Verdict
    backward_open: Verdict
    forward_open: Verdict


_OK, _S, _NO = Verdict.OK, Verdict.STRICT, Verdict.BREAK
_GIVES_MORE: Final = Row(_OK, _NO, _OK, _NO)  # The new one takes all that the old one took.
_TAKES_LESS: Final = Row(_NO, _OK, _NO, _OK)
_EITHER: Final = Row(_NO, _NO, _NO, _NO)
_NEITHER: Final = Row(_OK, _OK, _OK, _OK)

RULES: Final[Mapping[str, Row]] = MappingProxyType({
    "add-optional": Row(_OK, _S, _S, _OK),
    "add-optional-anything": Row(_OK, _S, _OK, _OK),
    "add-required": Row(_NO, _S, _NO, _OK),
    "add-required-with-default": Row(_OK, _S, _S, _OK),  # Readers fill it in: pydantic does.
    "remove-optional": Row(_S, _OK, _OK, _S),
    "remove-required": Row(_S, _NO, _OK, _NO),
    "remove-required-with-default": Row(_S, _OK, _OK, _S),
    "rename-optional": Row(_NO, _NO, _S, _S),  # Open: the worse of remove and add.
    "rename-required": _EITHER,
    "optional-to-required": _TAKES_LESS,
    "optional-to-required-with-default": _NEITHER,
    "required-to-optional": _GIVES_MORE,
    "required-to-optional-with-default": _NEITHER,
    "type-widened": _GIVES_MORE,
    "type-narrowed": _TAKES_LESS,
    "type-changed": _EITHER,
    "enum-added": _GIVES_MORE,
    "enum-removed": _TAKES_LESS,
    "bound-relaxed": _GIVES_MORE,
    "bound-tightened": _TAKES_LESS,
    "pattern-changed": _EITHER,
    "const-changed": _EITHER,
    "branch-added": _GIVES_MORE,
    "branch-removed": _TAKES_LESS,
    "all-of-added": _TAKES_LESS,
    "all-of-removed": _GIVES_MORE,
    "closed-to-open": Row(_OK, _S, _OK, _S),
    "open-to-closed": Row(_S, _OK, _S, _OK),
})  # fmt: skip
"""Every change that `compare` finds, and what it means."""


def verdict(change: Change, direction: Direction) -> Verdict:
    """What the table says of a change for who reads: the new schema backward, the old one forward."""
    row = RULES[change.rule]
    if direction is Direction.BACKWARD:
        return row.backward_closed if _is_closed(change, direction) else row.backward_open
    return row.forward_closed if _is_closed(change, direction) else row.forward_open


def worst(old: Schema, new: Schema, direction: Direction) -> Verdict:
    """The worst that the table says of all changes between two schemas."""
    found = {verdict(change, direction) for change in compare(old, new)}
    return next((one for one in (Verdict.BREAK, Verdict.STRICT) if one in found), Verdict.OK)


def breaks(changes: Iterable[Change], direction: Direction) -> list[Change]:
    """The changes after which the reader refuses what was written.

    Producers write what they declare and no other name, so an open reader is judged leniently: a name that it begins to
    know cannot have meant something else before (the ledger of removed names sees to that). A closed one is judged
    strictly: it refuses each name that it does not know.
    """
    return [change for change in changes if _is_broken(change, direction)]


def directions(compatibility: Compatibility) -> tuple[Direction, ...]:
    """What a type's promise asks for."""
    return _PROMISED[compatibility]


_PROMISED: Final = {
    Compatibility.BACKWARD: (Direction.BACKWARD,),
    Compatibility.FORWARD: (Direction.FORWARD,),
    Compatibility.FULL: (Direction.BACKWARD, Direction.FORWARD),
    Compatibility.NONE: (),
}


def _is_broken(change: Change, direction: Direction) -> bool:
    found = verdict(change, direction)
    return found is Verdict.BREAK or (found is Verdict.STRICT and _is_closed(change, direction))


def _is_closed(change: Change, direction: Direction) -> bool:
    return change.closed_after if direction is Direction.BACKWARD else change.closed_before
