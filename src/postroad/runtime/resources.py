"""The live objects that an App's ``lifespan`` yields, found by their type."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

from postroad.errors import UsageError

T = TypeVar("T")
Lifespan = Callable[[], AsyncGenerator[Any, None]]
Objects: TypeAlias = "Mapping[type[Any], object] | Iterable[object]"
"""Live objects as a test hands them in: by the type that they are asked for by, or each by its own."""


class Resources:
    """Live objects by type; `use` finds one by its own type or by a base of it, where that is not ambiguous."""

    def __init__(self, yielded: object = None) -> None:
        """Take what a lifespan yielded: nothing, one object, a list or tuple of them, or a mapping by type.

        Raises:
            UsageError: two objects have the same type and no mapping tells them apart.
        """
        self._found: dict[type[Any], Any] = {}
        if isinstance(yielded, Mapping) and yielded and all(isinstance(key, type) for key in yielded):
            self._found.update(yielded)
            return
        several = yielded if isinstance(yielded, list | tuple) else [] if yielded is None else [yielded]
        for thing in several:
            if type(thing) in self._found:
                name = type(thing).__qualname__
                message = f"the lifespan yields two objects of type {name}; yield a mapping by type instead"
                raise UsageError("PR101", message)
            self._found[type(thing)] = thing

    def __call__(self, kind: type[T]) -> T:
        """The object of type `kind`.

        Raises:
            LookupError: there is none, or several are of that type.
        """
        exact = self._found.get(kind)
        if exact is not None:
            found: T = exact
            return found
        fitting: Sequence[T] = [thing for thing in self._found.values() if isinstance(thing, kind)]
        if len(fitting) != 1:
            raise LookupError(kind)
        return fitting[0]


def as_yielded(resources: Objects) -> object:
    """What stands in for a lifespan's objects, as that would yield it: a mapping as it is, anything else a list."""
    return resources if isinstance(resources, Mapping) else list(resources)


@asynccontextmanager
async def living(lifespan: Lifespan | None) -> AsyncIterator[Resources]:
    """Run `lifespan` to its ``yield``, lend what it yields, and run its rest at the end; its errors come out."""
    if lifespan is None:
        yield Resources()
        return
    async with asynccontextmanager(lifespan)() as yielded:
        yield Resources(yielded)
