"""The harness for ``def`` tests: the same road, each call on a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from postroad.errors import UsageError
from postroad.testing.road import Road
from postroad.testing.trial import WITHIN

if TYPE_CHECKING:
    from uuid import UUID

    import psycopg
    from psycopg.rows import TupleRow

    from postroad.consume import Delivery
    from postroad.runtime.app import App
    from postroad.runtime.resources import Objects
    from postroad.signals.catalog import DeliveryResult
    from postroad.testing.journal import Drained
    from postroad.testing.ledger import OpenJob, Published, Quarantined

E = TypeVar("E")
A = TypeVar("A")
T = TypeVar("T")


class BlockingRoad:
    """`Road` for ``def`` tests: every call blocks, and runs on an event loop of its own; see there for each."""

    def __init__(self, app: App, url: str, *, resources: Objects | None = None) -> None:
        """Test `app` on the migrated database `url`; the fixture ``blocking_road`` makes one.

        Raises:
            UsageError: `app` is not an App.
        """
        self._road = Road(app, url, resources=resources)
        self.app = app
        self.url = url

    @override
    def __repr__(self) -> str:
        return f"BlockingRoad({self.app!r})"

    def published(self, kind: type[E]) -> list[Published[E]]:
        """See `Road.published`."""
        return _run(lambda: self._road.published(kind))

    def enqueued(self, job: Callable[[A, Any], Any]) -> list[OpenJob[A]]:
        """See `Road.enqueued`."""
        return _run(lambda: self._road.enqueued(job))

    def quarantined(self, handler: Callable[[E, Any], Any]) -> list[Quarantined[E]]:
        """See `Road.quarantined`."""
        return _run(lambda: self._road.quarantined(handler))

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[TupleRow]]:
        """Open a transaction on a psycopg connection of its own; see `Road.transaction`.

        Raises:
            UsageError: PR108, psycopg is not installed.
        """
        try:
            import psycopg as driver
        except ModuleNotFoundError as error:
            message = "BlockingRoad.transaction needs psycopg; install the extra: pip install 'postroad[psycopg]'"
            raise UsageError("PR108", message) from error
        with driver.connect(self.url) as connection:
            yield connection

    def drain(self, *, raises: bool = True, within: timedelta = WITHIN) -> Drained:
        """See `Road.drain`."""
        return _run(lambda: self._road.drain(raises=raises, within=within))

    def deliver(
        self,
        event: E | bytes,
        *,
        to: Callable[[E, Delivery[Any]], Any],
        twice: bool = False,
        key: str | None = None,
        sequence: int | None = None,
        occurred_at: datetime | None = None,
        event_id: UUID | None = None,
        raises: bool = True,
        within: timedelta = WITHIN,
    ) -> list[DeliveryResult]:
        """See `Road.deliver`."""
        return _run(
            lambda: self._road.deliver(
                event, to=to, twice=twice, key=key, sequence=sequence, occurred_at=occurred_at, event_id=event_id,
                raises=raises, within=within,
            )
        )  # fmt: skip

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """See `Road.advance`."""
        _run(lambda: self._road.advance(days=days, hours=hours, minutes=minutes, seconds=seconds))

    def clear(self) -> None:
        """See `Road.clear`."""
        _run(self._road.clear)


def _run(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    raise UsageError("PR107", "blocking_road is for 'def' tests; in an 'async def' test await the fixture `road`")
