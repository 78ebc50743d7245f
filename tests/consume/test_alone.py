from __future__ import annotations

import asyncio
from contextlib import suppress

from postroad.consume.alone import Alone
from support import until


class Runner:
    """Runs blocks on one lock, and notes what ran at once."""

    def __init__(self) -> None:
        self.lock = Alone()
        self.inside: list[str] = []
        self.seen: dict[str, list[str]] = {}
        self.go: dict[str, asyncio.Event] = {}

    def start(self, name: str, *, alone: bool = False) -> asyncio.Task[None]:
        self.go[name] = asyncio.Event()
        return asyncio.create_task(self._run(name, alone=alone))

    async def _run(self, name: str, *, alone: bool) -> None:
        async with self.lock.alone() if alone else self.lock.beside():
            self.inside.append(name)
            self.seen[name] = sorted(self.inside)
            try:
                await self.go[name].wait()
            finally:
                self.inside.remove(name)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_many_run_beside_each_other():
    runner = Runner()
    tasks = [runner.start(name) for name in "abc"]
    await settle()
    assert runner.inside == ["a", "b", "c"]
    for event in runner.go.values():
        event.set()
    await asyncio.gather(*tasks)


async def test_whoever_is_alone_waits_for_those_that_run_and_others_wait_for_it():
    runner = Runner()
    tasks = [runner.start("a"), runner.start("x", alone=True), runner.start("b"), runner.start("y", alone=True)]
    await settle()
    assert runner.inside == ["a"]
    for name in "axy":
        runner.go[name].set()
        await settle()
    assert runner.inside == ["b"]
    assert (runner.seen["x"], runner.seen["y"]) == (["x"], ["y"])
    runner.go["b"].set()
    await asyncio.gather(*tasks)


async def test_one_that_gives_up_waiting_to_be_alone_holds_nobody_up():
    runner = Runner()
    running, waiting = runner.start("a"), runner.start("x", alone=True)
    other = runner.start("b")
    await settle()
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    await until(lambda: runner.inside == ["a", "b"])
    for name in "ab":
        runner.go[name].set()
    await asyncio.gather(running, other)


async def test_one_that_is_cancelled_while_alone_lets_the_others_in():
    runner = Runner()
    alone, other = runner.start("x", alone=True), runner.start("b")
    await settle()
    assert runner.inside == ["x"]
    alone.cancel()
    await until(lambda: runner.inside == ["b"])
    runner.go["b"].set()
    await other
