"""The bond between a database and its broker: proven before anything is sent, and again whenever it may be another."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from postroad.clock import seconds
from postroad.errors import AccessRefused, Unavailable
from postroad.outbox import installation
from postroad.retry import full_jitter
from postroad.signals.catalog import InstallationConfirmed, InstallationDoubted

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.clock import Clock
    from postroad.outbox.installation import Installation, Marks
    from postroad.owner import Owner, Readiness
    from postroad.signals import Signals
    from postroad.sql.manager import Manager

NOT_YET: Final = "the installation is being verified"
HELD: Final = (
    f"another running database of this installation is connected to the broker; if it is no more, wait, else"
    f" {installation.REMEDY}"
)
_LOOK: Final = seconds(2)
_SOON: Final = seconds(0.3)
_PATIENCE: Final = seconds(10)  # A restarted database waits this long for its own former self before it tells.
_FIRST_AWAY, _MOST_AWAY = seconds(0.05), seconds(2)  # The transport may only just be starting, too.
_READS: Final = 3


class Permit(Protocol):
    """Says whether this database may send to its broker."""

    @property
    def doubt(self) -> str:
        """Why not; empty while it may."""
        ...

    def look_again(self) -> None:
        """There is a doubt until it is proven anew: the database was reached anew, and may be another."""
        ...


class Bond:
    """A service that proves that this database is the one that its broker knows, and no copy of it.

    A database that was never bound binds itself. Any doubt keeps the process silent: events wait. It looks every two
    seconds, and at once when database or broker were lost; with one of them away there is a doubt, too.
    """

    name = "installation"

    def __init__(
        self,
        manager: Manager,
        marks: Marks,
        *,
        owner: Owner,
        signals: Signals,
        clock: Clock,
        chance: Callable[[], float],
    ) -> None:
        """`chance` draws a number from 0 to 1 for jitter."""
        self.cleared = asyncio.Event()
        self._manager = manager
        self._marks = marks
        self._owner = owner
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self._doubt = NOT_YET
        self._asked = 0
        self._wake = asyncio.Event()
        self._held: tuple[str, int] | None = None
        self._held_up_at: float | None = None
        self._told: str | None = None
        marks.on_lost(self.look_again)

    @property
    def doubt(self) -> str:
        """See `Permit.doubt`."""
        return self._doubt

    def look_again(self) -> None:
        """See `Permit.look_again`."""
        self._asked += 1
        self._set(NOT_YET)
        self._wake.set()

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`. Stopped, it lets go of the broker; what may be sent until then stays allowed."""
        stopping = self._owner.task(self._wake_at(stop), name="installation:stop")
        tries = 0
        try:
            while not stop.is_set():
                self._wake.clear()
                tries, pause = await self._look(ready, tries)
                await self._pause(pause)
        except BaseException:
            self._set(NOT_YET)
            raise
        finally:
            stopping.cancel()
            await self._let_go()

    async def _look(self, ready: Readiness, tries: int) -> tuple[int, timedelta]:
        """One look; how many have failed by now, and the pause until the next."""
        asked = self._asked
        try:
            row, doubt = await self._prove()
        except AccessRefused:
            raise
        except Unavailable as error:
            self._set(NOT_YET)
            ready.down(str(error))
            await self._let_go()
            return tries + 1, full_jitter(tries + 1, first=_FIRST_AWAY, most=_MOST_AWAY, chance=self._chance())
        if asked != self._asked:
            return 0, timedelta(0)
        self._set(doubt)
        ready.down(doubt) if doubt else ready.up()
        self._tell(row, doubt)
        return 0, _SOON if doubt == HELD else _LOOK

    def _set(self, doubt: str) -> None:
        self._doubt = doubt
        self.cleared.clear() if doubt else self.cleared.set()

    def _tell(self, row: Installation, doubt: str) -> None:
        """Say what changed; not that a restarted database waits for what is left of itself on the broker."""
        now = self._clock.monotonic()
        self._held_up_at = (self._held_up_at or now) if doubt == HELD else None
        waits = self._held_up_at is not None and now - self._held_up_at < _PATIENCE.total_seconds()
        if doubt == self._told or waits:
            return
        self._told = doubt
        if doubt:
            self._signals.emit(InstallationDoubted(row.id, doubt))
        else:
            self._signals.emit(InstallationConfirmed(row.id, self._marks.broker))

    # --- the proof ----------------------------------------------------------------------------------------------

    async def _prove(self) -> tuple[Installation, str]:
        """What was found, and why nothing may be sent; marks first, so that a stale copy never holds the name."""
        row = await self._read()
        if row.token is None:
            row = await self._bind(row)
        found = await installation.standing(row, self._marks)
        for _ in range(_READS):
            if not found.doubt:
                break
            again = await self._read()  # The tokens may have changed since we read them.
            if again.token == row.token:
                return row, found.doubt
            row = again
            found = await installation.standing(row, self._marks)
        if found.doubt:
            return row, found.doubt
        if self._held != (row.name, row.instance):
            await self._let_go()
        if not await self._marks.hold(row.name, row.instance):
            return row, HELD
        self._held = (row.name, row.instance)
        if row.due or found.half:
            await self._advance(row)
        return row, ""

    async def _read(self) -> Installation:
        rows = await self._manager.fetch(installation.look(self._manager.schema))
        return installation.read(rows[0])

    async def _bind(self, row: Installation) -> Installation:
        """Bind what was never bound, or was adopted. Crashed half way, it is done again."""
        schema = self._manager.schema
        await self._manager.fetch(installation.prepare(schema, row))
        row = await self._read()
        if row.token is None:
            await self._marks.put(row.mark(row.next))
            await self._manager.fetch(installation.bind(schema, row, self._marks.broker))
        return await self._read()

    async def _advance(self, row: Installation) -> None:
        """Mark the next token instead of this one. The next was in the database long before: a standby has it too."""
        await self._marks.put(row.mark(row.next))
        await self._marks.remove(row.mark(row.token))
        if await self._manager.fetch(installation.advance(self._manager.schema, row, self._marks.broker)):
            return
        now = await self._read()
        if row.next not in (now.token, now.next):  # We were stopped in between, and have marked a token of the past.
            await self._marks.remove(row.mark(row.next))

    # --- waiting ------------------------------------------------------------------------------------------------

    async def _let_go(self) -> None:
        self._held = None
        await self._marks.close()

    async def _pause(self, time: timedelta) -> None:
        try:
            async with asyncio.timeout(time.total_seconds()):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _wake_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()
