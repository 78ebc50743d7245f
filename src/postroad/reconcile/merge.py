"""Compares two ordered streams of keys, of which neither is ever held in memory."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from postroad.errors import UsageError

Items: TypeAlias = AsyncIterator[tuple[str, str]]
"""Keys with their fingerprints, in the order of the keys."""

PAGE: Final = 1000
_LONGEST_FINGERPRINT: Final = 200
_LONGEST_KEY: Final = 1000
_MOST_BYTES: Final = 2000  # An index holds 2704, the reconciliation's name included.


class Kind(StrEnum):
    """How two streams differ in a key."""

    MISSING = "missing"  # in the projection
    EXTRA = "extra"  # in the projection
    MISMATCHED = "mismatched"


@dataclass(frozen=True, slots=True)
class Difference:
    """A key in which the streams differ; `expected` is what the authority says of it, `found` what the projection."""

    key: str
    kind: Kind
    expected: str | None
    found: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """A stretch that was compared, up to the key `last`: how many keys, and those that differ."""

    last: str
    compared: int
    differences: Sequence[Difference] = ()


class _Side:
    """One stream, and its item at hand; `key` is None at the end."""

    def __init__(self, name: str, items: Items, after: str | None) -> None:
        self._name = name
        self._items = items
        self._after = after
        self.key: str | None = None
        self.fingerprint = ""

    async def step(self) -> None:
        """Go to the next item beyond `after`."""
        last = self.key
        async for item in self._items:
            key, fingerprint = self._checked(item)
            if last is not None and key <= last:
                raise self._disordered(key, last)
            last = key
            if self._after is None or key > self._after:
                self.key, self.fingerprint = key, fingerprint
                return
        self.key = None

    def _checked(self, item: object) -> tuple[str, str]:
        match item:
            case (str() as key, str() as fingerprint) if _fits(key):
                return key, fingerprint
        what = f"the {self._name} yields something that is no pair of texts (key, fingerprint)"
        raise UsageError("PR107", f"{what}; a key has 1 to {_LONGEST_KEY} characters ({_MOST_BYTES} bytes) and no NUL")

    def _disordered(self, key: str, last: str) -> UsageError:
        what = "twice" if key == last else "out of order"
        remedy = 'yield each key once, in the order of Python\'s texts: ORDER BY key COLLATE "C"'
        return UsageError("PR107", f"the {self._name} yields a key {what}; {remedy}")


def _fits(key: str) -> bool:
    """Whether a table can keep it as a key."""
    if not 0 < len(key) <= _LONGEST_KEY or "\0" in key:
        return False
    try:
        return key.isascii() or len(key.encode()) <= _MOST_BYTES
    except UnicodeEncodeError:
        return False


async def merged(authority: Items, projection: Items, *, after: str | None = None) -> AsyncGenerator[Page, None]:
    """Compare two streams from `after` on (exclusive), a page of keys at a time. Both are closed at the end.

    Raises:
        UsageError: PR107, a stream is out of order, or yields no pairs of texts. Its own errors come out as they are.
    """
    async with _closed(authority), _closed(projection):
        left, right = _Side("authority", authority, after), _Side("projection", projection, after)
        await left.step()
        await right.step()
        found: list[Difference] = []
        last, compared = "", 0
        while (difference := _next(left, right)) is not None:
            last = difference.key
            compared += 1
            if difference.expected != difference.found:
                found.append(_kept(difference))
            if compared == PAGE:
                yield Page(last, compared, found)
                found, compared = [], 0
            if difference.expected is not None:
                await left.step()
            if difference.found is not None:
                await right.step()
        if compared:
            yield Page(last, compared, found)


def _next(left: _Side, right: _Side) -> Difference | None:
    """The lower of the two keys at hand, with what each side says of it; None at the end of both."""
    if left.key is None and right.key is None:
        return None
    if right.key is None or (left.key is not None and left.key < right.key):
        assert left.key is not None
        return Difference(left.key, Kind.MISSING, left.fingerprint, None)
    if left.key is None or right.key < left.key:
        return Difference(right.key, Kind.EXTRA, None, right.fingerprint)
    return Difference(left.key, Kind.MISMATCHED, left.fingerprint, right.fingerprint)


def _kept(difference: Difference) -> Difference:
    return Difference(difference.key, difference.kind, _short(difference.expected), _short(difference.found))


def _short(fingerprint: str | None) -> str | None:
    """What is kept of a fingerprint: a long one, or one that no database can hold, becomes its hash."""
    if fingerprint is None or (len(fingerprint) <= _LONGEST_FINGERPRINT and fingerprint.isprintable()):
        return fingerprint
    return f"sha256:{hashlib.sha256(fingerprint.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _closed(items: Items) -> AbstractAsyncContextManager[object]:
    return aclosing(items) if isinstance(items, AsyncGenerator) else nullcontext()
