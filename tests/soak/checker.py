"""The checker of a soak: it knows only the promises, and reads nothing but the two services' own tables and a tap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the tables and the tap hold at the end.

    `committed`: the numbers that authors committed; `seen`: number and attempt of each effect; `weighed`: key and
    sequence that authors committed; `weights`: key, sequence and attempt of each effect in the order in which they
    were committed; `wire`: key and sequence as they came to a queue that nobody consumes; `kept`: rows that retries,
    quarantine or the outbox still hold, and retries that were ever finished, by table.
    """

    committed: Sequence[int]
    seen: Sequence[tuple[int, int]]
    weighed: Sequence[tuple[str, int]]
    weights: Sequence[tuple[str, int, int]]
    wire: Sequence[tuple[str, int]]
    kept: Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How often each promise was broken; all zero is what is promised."""

    lost: int
    doubled: int
    invented: int
    went_back: int
    not_the_latest: int
    out_of_order: int
    charged: int

    @property
    def good(self) -> bool:
        """Whether every promise held."""
        return not any((
            self.lost, self.doubled, self.invented, self.went_back, self.not_the_latest, self.out_of_order, self.charged
        ))  # fmt: skip


def judged(found: Found) -> Verdict:
    """Compare what was committed with what took effect."""
    times = Counter(number for number, _ in found.seen)
    committed = set(found.committed)
    heard = Counter((key, sequence) for key, sequence, _ in found.weights)
    on_the_wire = set(found.wire)
    newest = _newest(found.weighed)
    attempts = [attempt for _, attempt in found.seen] + [attempt for *_, attempt in found.weights]
    return Verdict(
        lost=len(committed - times.keys()) + len(set(found.weighed) - on_the_wire),
        doubled=sum(count - 1 for count in (*times.values(), *heard.values())),
        invented=len(times.keys() - committed) + len(heard.keys() - set(found.weighed)),
        went_back=_backward((key, sequence) for key, sequence, _ in found.weights),
        not_the_latest=sum(_newest(heard).get(key) != sequence for key, sequence in newest.items()),
        out_of_order=_backward(dict.fromkeys(found.wire)),
        charged=sum(attempt > 1 for attempt in attempts) + found.kept.total(),
    )


def _newest(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for key, sequence in pairs:
        newest[key] = max(sequence, newest.get(key, sequence))
    return newest


def _backward(pairs: Iterable[tuple[str, int]]) -> int:
    """How often a key's sequence did not grow."""
    last: dict[str, int] = {}
    back = 0
    for key, sequence in pairs:
        back += sequence <= last.get(key, -1)
        last[key] = max(sequence, last.get(key, -1))
    return back
