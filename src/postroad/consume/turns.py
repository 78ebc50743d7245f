"""Whose handlers run, of the groups that one consumer has open: those of all, or of one at a time."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Turns:
    """Lets groups that would get into each other's way take turns with their handlers.

    They overlap all the same where they meet nobody's rows: while one runs its handlers the next one begins and
    claims its messages, and while one commits the next one's handlers have begun; should these meet, the commit is
    under way and lets them pass.
    """

    def __init__(self, patience: float) -> None:
        """Nobody runs. Whoever has waited for `patience` seconds waits no more: a turn is a courtesy, not a lock."""
        self._patience = patience
        self._lock = asyncio.Lock()
        self._abreast = 0
        self._none_abreast = asyncio.Event()
        self._none_abreast.set()
        self.leaving = 0
        """How many have let others have their turn, and end their transactions."""

    def join(self, *, single: bool) -> Turn:
        """A turn of one's own: `single` waits for everybody before it, and holds back those after it."""
        return Turn(self, single=single)

    async def take(self) -> bool:
        """Wait until nobody else runs; whether it is so now."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await self._lock.acquire()
                try:
                    await self._none_abreast.wait()
                except BaseException:
                    self._lock.release()
                    raise
                return True
        return False

    def give(self) -> None:
        """Let the next one run."""
        self._lock.release()

    def count(self, more: int) -> None:
        """So many more run beside each other."""
        self._abreast += more
        if self._abreast:
            self._none_abreast.clear()
        else:
            self._none_abreast.set()


class Turn:
    """One group's turn: `wait` before its handlers, `end` right before its transaction ends, and `over` after that."""

    def __init__(self, turns: Turns, *, single: bool) -> None:
        """Counted from now on, unless `single`."""
        self._turns = turns
        self._single = single
        self._held = not single
        self._leaving = False
        self.behind = False
        """Whether it came while another one's transaction was ending, whose rows it may have to wait for."""
        if not single:
            turns.count(+1)

    async def wait(self) -> None:
        """Wait for one's turn."""
        if self._single:
            self._held = await self._turns.take()
            self.behind = self._turns.leaving > 0

    def end(self) -> None:
        """Let others have theirs."""
        if not self._leaving:
            self._leaving = True
            self._turns.leaving += 1
        if not self._held:
            return
        self._held = False
        if self._single:
            self._turns.give()
        else:
            self._turns.count(-1)

    def over(self) -> None:
        """Its transaction has ended; called once."""
        self.end()
        self._turns.leaving -= 1
