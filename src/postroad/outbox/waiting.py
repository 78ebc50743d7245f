"""Which keys wait for a refused row of theirs: later rows of them that are not yet sent are held back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

MOST: Final = 100_000


class Row(Protocol):
    """What is asked of a row here."""

    @property
    def shard(self) -> int:
        """Its shard."""
        ...

    @property
    def place(self) -> int:
        """Its place."""
        ...

    @property
    def key_hash(self) -> int | None:
        """The hash of its key, where it has one."""
        ...


class Waiting:
    """The refused rows of the shards that are held, in memory.

    Of each key only the first refused row may be tried again; what is held back behind it is remembered by its first
    place. At most 100,000 refused rows per shard are known by name: beyond that, order within a key is no longer
    kept while rows of it are refused, and all of them are still retried.
    """

    __slots__ = ("_held_back", "_keys", "_places", "_unknown")

    def __init__(self) -> None:
        """Nothing waits."""
        self._places: dict[int, set[int]] = {}
        self._keys: dict[int, dict[int, set[int]]] = {}
        self._held_back: dict[int, dict[int, int]] = {}
        self._unknown: set[int] = set()

    def load(self, shard: int, rows: Iterable[tuple[int, int | None]], *, complete: bool) -> None:
        """Take over `shard` with its refused rows (place and key hash); not `complete` when there were too many."""
        self.drop(shard)
        for place, key_hash in rows:
            self._add(shard, place, key_hash)
        if not complete:
            self._unknown.add(shard)

    def drop(self, shard: int) -> None:
        """Forget `shard`."""
        for book in (self._places, self._keys, self._held_back):
            book.pop(shard, None)
        self._unknown.discard(shard)

    def refuse(self, row: Row, *, holds: bool = True) -> None:
        """`row` was refused and waits; unless it is to be ignored for order, it `holds` back its key."""
        self._add(row.shard, row.place, row.key_hash if holds else None)

    def settle(self, row: Row) -> int | None:
        """`row` waits no longer; the place from which rows of its key, held back until now, are to be read again."""
        self._places.get(row.shard, set()).discard(row.place)
        keys = self._keys.get(row.shard, {})
        if row.key_hash is None or row.key_hash not in keys:
            return None
        keys[row.key_hash].discard(row.place)
        if keys[row.key_hash]:
            return None
        del keys[row.key_hash]
        return self._held_back.get(row.shard, {}).pop(row.key_hash, None)

    def holds_back(self, shard: int, place: int, key_hash: int | None) -> bool:
        """Whether a row must not be sent now, because an earlier row of its key was refused; remembers it if so."""
        if key_hash is None:
            return False
        refused = self._keys.get(shard, {}).get(key_hash)
        if not refused:
            return False
        if place in refused:
            return place != min(refused)
        if place < min(refused):
            return False
        back = self._held_back.setdefault(shard, {})
        back[key_hash] = min(place, back.get(key_hash, place))
        return True

    @property
    def any(self) -> bool:
        """Whether any refused row waits."""
        return bool(self._unknown) or any(self._places.values())

    def behind(self) -> list[int]:
        """The places of refused rows that wait for an earlier refused row of their key."""
        return [
            place
            for keys in self._keys.values()
            for places in keys.values()
            if len(places) > 1
            for place in places - {min(places)}
        ]

    def _add(self, shard: int, place: int, key_hash: int | None) -> None:
        places = self._places.setdefault(shard, set())
        if len(places) >= MOST:
            self._unknown.add(shard)
            return
        places.add(place)
        if key_hash is not None:
            self._keys.setdefault(shard, {}).setdefault(key_hash, set()).add(place)
