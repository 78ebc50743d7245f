"""How handlers and jobs find the App's live objects: by their type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from postroad.errors import UsageError

T = TypeVar("T")
Kind: TypeAlias = type[T]
Resources: TypeAlias = "Mapping[type[Any], Any] | Callable[[type[Any]], Any]"
"""The App's live objects, by their type: a mapping, or a function that finds one and raises `LookupError`."""


def used(resources: Resources, kind: Kind[T], *, by: str) -> T:
    """The live object of type `kind` among `resources`.

    Raises:
        UsageError: PR107, there is none; the text says who asked.
    """
    try:
        found: T = resources(kind) if callable(resources) else resources[kind]
    except LookupError:
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise UsageError("PR107", f"{by} uses {name}, which the App's lifespan does not yield") from None
    return found
