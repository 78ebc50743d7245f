"""Tasks and threads that nobody owns, inside an App and on a host's loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from postroad.clock import seconds
from postroad.runtime import strays
from postroad.runtime.app import App
from postroad.runtime.executor import PREFIX, Tasks
from postroad.runtime.settings import Settings
from postroad.runtime.strays import MOST, Notes, in_words
from postroad.signals import Signals
from postroad.signals.catalog import ShutdownReceipt, Stray

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from postroad.owner import Readiness
    from postroad.signals import Signal

HERE = "test_strays.py"


def here() -> int:
    """The caller's line."""
    return sys._getframe(1).f_lineno


@pytest.fixture
async def notes() -> AsyncIterator[Notes]:
    notes = Notes(everything=True)
    notes.install()
    yield notes
    notes.remove()


async def endless() -> None:
    await asyncio.Event().wait()


def found(notes: Notes, tasks: Tasks | None = None) -> dict[str, Stray]:
    owner = tasks or Tasks(Signals())
    return {stray.name: stray for stray in notes.strays(ours=owner.owns, prefix=PREFIX)}


@pytest.mark.parametrize(
    "start",
    [
        lambda: asyncio.create_task(endless(), name="it"),
        lambda: asyncio.get_running_loop().create_task(endless(), name="it"),
        lambda: asyncio.ensure_future(endless()),
        lambda: asyncio.gather(endless()),
    ],
)
async def test_a_task_is_told_with_what_it_runs_and_where_it_was_created(
    notes: Notes, start: Callable[[], Any]
) -> None:
    task = start()
    [stray] = found(notes).values()
    assert stray.kind == "task"
    assert stray.runs == f"endless ({HERE}:{endless.__code__.co_firstlineno})"
    assert stray.started == f"<lambda> ({HERE}:{start.__code__.co_firstlineno})"
    task.cancel()


async def test_our_own_tasks_are_none_and_are_asyncios_own_kind(notes: Notes) -> None:
    tasks = Tasks(Signals())
    task = tasks.task(endless(), name="ours")
    assert found(notes, tasks) == {}
    assert type(task) is asyncio.Task
    await tasks.cancel()


async def test_what_has_ended_is_none(notes: Notes) -> None:
    await asyncio.create_task(asyncio.sleep(0))
    assert found(notes) == {}


async def test_a_factory_that_is_there_already_stays() -> None:
    loop = asyncio.get_running_loop()
    own = partial(asyncio.Task)
    factory: Any = lambda loop, work, **more: own(work, loop=loop, **more)  # noqa: E731
    loop.set_task_factory(factory)
    notes = Notes(everything=True)
    notes.install()
    task = asyncio.create_task(endless(), name="it")
    assert loop.get_task_factory() is factory
    assert (found(notes)["it"].runs, found(notes)["it"].started) == (
        f"endless ({HERE}:{endless.__code__.co_firstlineno})", "",
    )  # fmt: skip
    notes.remove()
    assert loop.get_task_factory() is factory
    loop.set_task_factory(None)
    task.cancel()


async def test_threads_are_told_with_what_they_run(notes: Notes) -> None:
    release = threading.Event()

    def work() -> None:
        release.wait(30)

    timer = threading.Timer(60, work)
    timer.name = "timer"
    pool = ThreadPoolExecutor(1, thread_name_prefix="busy")
    idle = ThreadPoolExecutor(1, thread_name_prefix="idle")
    idle.submit(int).result()
    pool.submit(time.sleep, 0.3)
    threads = [threading.Thread(target=work, name="mine", daemon=True), timer,
               threading.Thread(target=release.wait, name="plain")]  # fmt: skip
    for thread in threads:
        thread.start()
    named = {name: stray.runs for name, stray in found(notes).items() if name in {"mine", "timer", "plain", "busy_0"}}
    place = f"test_threads_are_told_with_what_they_run.<locals>.work ({HERE}:{work.__code__.co_firstlineno})"
    assert (named["mine"], named["timer"]) == (place, place)
    assert named["plain"].startswith("Event.wait (threading.py:")
    assert named["busy_0"] == "sleep"
    assert not any(name.startswith("idle") for name in found(notes))
    release.set()
    timer.cancel()
    pool.shutdown()
    idle.shutdown()
    for thread in threads:
        thread.join(5)


@pytest.mark.sabotage
async def test_with_a_longer_list_of_owners_a_thread_would_be_passed_over(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    thread = threading.Thread(target=lambda: release.wait(30), name="mine")
    thread.start()
    assert "mine" in found(notes)
    monkeypatch.setitem(strays.OWNERS, __name__, "this test")
    assert "mine" not in found(notes)
    release.set()
    thread.join(5)


async def test_too_many_are_counted(notes: Notes) -> None:
    tasks = [asyncio.create_task(endless()) for _ in range(MOST + 50)]
    told = notes.strays(ours=lambda _: False, prefix=PREFIX)
    assert len(told) == MOST
    assert in_words(told[-1]) == "51 more"
    for task in tasks:
        task.cancel()


# --- on a host's loop -----------------------------------------------------------------------------------------------


async def embedded(monkeypatch: pytest.MonkeyPatch | None = None) -> list[str]:
    """The strays of an App inside another server, by name, while the host has tasks of its own."""
    heard: list[Signal] = []
    kept: list[asyncio.Task[None]] = []
    ran = asyncio.Event()

    async def leaves(stop: asyncio.Event, ready: Readiness) -> None:
        kept.append(asyncio.create_task(endless(), name="in a service"))
        ready.up()
        ran.set()
        await stop.wait()

    async def request() -> None:
        kept.append(asyncio.create_task(endless(), name="in background work"))

    app = App("web", sinks=[heard.append], settings=Settings(roles=frozenset(), grace=seconds(3)))
    app.background("leaves", leaves)
    kept.append(asyncio.create_task(endless(), name="before"))
    async with app:
        await asyncio.wait_for(ran.wait(), 5)
        await app.executor.submit(request)
        kept.append(asyncio.create_task(endless(), name="the host's"))
    assert asyncio.get_running_loop().get_task_factory() is None
    for task in kept:
        task.cancel()
    receipt = heard[-1]
    assert isinstance(receipt, ShutdownReceipt)
    assert receipt.left == ()
    return sorted(stray.name for stray in heard if isinstance(stray, Stray))


async def test_of_a_hosts_tasks_only_those_started_inside_the_app_are_told() -> None:
    assert await embedded() == ["in a service", "in background work"]


@pytest.mark.sabotage
async def test_without_the_mark_of_what_is_inside_an_embedded_app_sees_no_stray(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Nothing:
        @staticmethod
        def get() -> None: ...

    monkeypatch.setattr(strays, "INSIDE", Nothing())
    monkeypatch.setattr(Notes, "inside", lambda _: __import__("contextlib").nullcontext())
    assert await embedded() == []
