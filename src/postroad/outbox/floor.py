"""How far each shard was read, and from where a late commit must still be looked for: pure bookkeeping."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

_MARKS: Final = 8


class Floors:
    """A cursor and a floor for each shard that is read.

    Places are given out in order and become visible out of order: a row below the cursor may commit after the
    cursor passed it. So every read looks from the *floor* on. The floor moves up to an earlier cursor only when the
    oldest transaction still running is younger than a transaction number taken *after* that cursor was reached (a
    *mark*): then nobody is left who could still commit a row below it. (The newest number given out is no such
    bound: rows were seen to be lost under ``pg_snapshot_xmax``.)
    """

    __slots__ = ("_marks", "cursor", "floor")

    def __init__(self) -> None:
        """No shard is read yet."""
        self.cursor: dict[int, int] = {}
        self.floor: dict[int, int] = {}
        self._marks: deque[tuple[int, dict[int, int]]] = deque()

    def add(self, shard: int) -> None:
        """Read `shard` from its beginning."""
        self.cursor[shard] = self.floor[shard] = 0

    def drop(self, shard: int) -> None:
        """Read `shard` no more; what was known of it is forgotten, its marks too."""
        self.cursor.pop(shard, None)
        self.floor.pop(shard, None)
        for _, reached in self._marks:
            reached.pop(shard, None)

    def advance(self, shard: int, place: int) -> None:
        """A read that is complete up to `place` reached it; of a shard that was dropped meanwhile nothing is kept."""
        if shard in self.cursor:
            self.cursor[shard] = max(self.cursor[shard], place)

    def rewind(self, shard: int, place: int) -> None:
        """`place` was passed over and must be looked at again: the floor goes back below it."""
        if shard in self.floor:
            self.floor[shard] = min(self.floor[shard], place - 1)

    def reached(self) -> dict[int, int]:
        """Where the cursors stand now: take it *before* the transaction number that will mark it."""
        return dict(self.cursor)

    def mark(self, xid: int, reached: Mapping[int, int]) -> None:
        """Remember that `xid` was taken after the cursors had `reached` these places.

        At most eight marks are kept: under a transaction that stays open for hours the newest one replaces its
        predecessor.
        """
        if len(self._marks) >= _MARKS:
            self._marks.pop()
        self._marks.append((xid, dict(reached)))

    @property
    def lagging(self) -> bool:
        """Whether a late commit could still appear below some cursor."""
        return any(self.floor[shard] < place for shard, place in self.cursor.items())

    @property
    def marked(self) -> bool:
        """Whether the newest mark covers every cursor that a floor lags behind, so that no other needs to be taken."""
        reached = self._marks[-1][1] if self._marks else {}
        late = (shard for shard, place in self.cursor.items() if self.floor[shard] < place)
        return all(reached.get(shard, 0) >= self.cursor[shard] for shard in late)

    def ranges(self, shards: Iterable[int]) -> tuple[list[int], list[int], list[int]]:
        """Of those `shards` where a late commit could appear: their numbers, floors and cursors."""
        late = [shard for shard in shards if self.floor.get(shard, 0) < self.cursor.get(shard, 0)]
        return late, [self.floor[shard] for shard in late], [self.cursor[shard] for shard in late]

    def passed(self, oldest: int, seen: Mapping[int, int]) -> None:
        """A look above the floors `seen` found all that is visible, while `oldest` was the oldest running xid.

        Floors rise to the newest mark below `oldest`. One that was rewound since it was `seen` stays: what it was
        rewound to has not been looked at.
        """
        passed: Mapping[int, int] = {}
        while self._marks and self._marks[0][0] < oldest:
            _, passed = self._marks.popleft()
        for shard, floor in seen.items():
            if self.floor.get(shard) == floor:
                self.floor[shard] = max(floor, passed.get(shard, 0))
