"""Who runs beside whom in a process: most beside each other, what may kill the process by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Alone:
    """A shared and exclusive lock of one event loop, for all consumers of a process.

    Whoever asks to be alone waits for those that run, and nobody else begins meanwhile; several take turns. Nothing
    that runs inside may ask again.
    """

    def __init__(self) -> None:
        """Nobody runs."""
        self._beside = 0
        self._asking = 0
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Run the block beside others, but not while somebody is alone, or waits to be."""
        while self._asking:
            await self._left.wait()
        self._beside += 1
        try:
            yield
        finally:
            self._beside -= 1
            self._tell()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Run the block with nothing beside it."""
        self._asking += 1
        try:
            async with self._turn:
                while self._beside:
                    await self._left.wait()
                yield
        finally:
            self._asking -= 1
            self._tell()

    def _tell(self) -> None:
        """Wake all that wait now; each looks for itself."""
        self._left.set()
        self._left.clear()
