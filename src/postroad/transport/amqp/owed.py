"""Which deliveries of one channel the broker still waits for, and the fewest acks that settle some of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Owed:
    """The delivery tags of a channel that are neither acked nor given back; tags only grow.

    An ack with `multiple` settles every owed tag up to its own, so it may go no further than the first owed tag that
    is not done.
    """

    __slots__ = ("_lowest", "_tags")

    def __init__(self) -> None:
        self._tags: set[int] = set()
        self._lowest = 1  # No owed tag is below.

    def __contains__(self, tag: int) -> bool:
        return tag in self._tags

    def __len__(self) -> int:
        return len(self._tags)

    def add(self, tag: int) -> None:
        """A delivery came."""
        self._tags.add(tag)

    def remove(self, tags: Iterable[int]) -> list[int]:
        """Those of `tags` that were owed, each once, in order; they no longer are."""
        found = [tag for tag in sorted(set(tags)) if tag in self._tags]
        self._tags.difference_update(found)
        return found

    def settle(self, tags: Iterable[int]) -> tuple[int | None, Sequence[int]]:
        """Take owed tags as done: how far one ack with `multiple` may go (or None), and the rest, one by one."""
        done = self.remove(tags)
        if not done:
            return None, ()
        lowest, highest = self._lowest, done[-1]
        while lowest <= highest and lowest not in self._tags:
            lowest += 1
        self._lowest = lowest
        prefix = sum(1 for tag in done if tag < lowest)
        if prefix <= 1:
            return None, done
        return done[prefix - 1], done[prefix:]
