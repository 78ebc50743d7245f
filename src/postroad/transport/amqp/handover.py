"""Handing things between the caller's event loop and the transport's, one wake-up per batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def post(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> bool:
    """Run `act` soon on `loop`, from any thread; False where that loop has ended and nobody will hear."""
    try:
        loop.call_soon_threadsafe(act)
    except RuntimeError:
        return False
    return True


class Bell:
    """Wakes another loop once for all that was put down since it last looked.

    `ring` and the call of `act` may race: `act` clears the bell before it looks, so that nothing is left lying.
    """

    __slots__ = ("_act", "_rung")

    def __init__(self, act: Callable[[], None]) -> None:
        """`act` looks at everything that lies there."""
        self._act = act
        self._rung = False

    def ring(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make `act` run on `loop`, unless it is about to anyway."""
        if not self._rung:
            self._rung = True
            if not post(loop, self._answer):
                self._rung = False

    def reset(self) -> None:
        """Forget a wake-up that went to a loop that has ended."""
        self._rung = False

    def _answer(self) -> None:
        self._rung = False
        self._act()
