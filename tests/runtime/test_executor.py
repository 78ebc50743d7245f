"""The executor: names, errors and joins of whatever runs in the background."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from postroad.clock import seconds
from postroad.errors import UsageError
from postroad.runtime import executor
from postroad.runtime.executor import Tasks
from postroad.signals import Signal, Signals
from postroad.signals.catalog import TaskFailed

if TYPE_CHECKING:
    from postroad.owner import Owner

SOON = seconds(5)


class Heard:
    """A sink that can be waited on."""

    def __init__(self) -> None:
        self.records: list[Signal] = []
        self.came = threading.Event()

    def __call__(self, signal: Signal) -> None:
        self.records.append(signal)
        self.came.set()

    async def wait(self) -> Signal:
        await asyncio.to_thread(self.came.wait, 5)
        return self.records[0]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def tasks(heard: Heard) -> Tasks:
    return Tasks(Signals(heard))


async def fails() -> None:
    raise ValueError("secret payload")


async def test_the_executor_is_an_owner(tasks: Tasks) -> None:
    owner: Owner = tasks
    task = owner.task(asyncio.sleep(0, "done"), name="x")
    assert task.get_name() == "postroad:x"
    assert await task == "done"


async def test_an_error_that_nobody_awaits_is_reported_without_its_text(tasks: Tasks, heard: Heard) -> None:
    kept = tasks.task(fails(), name="stray")
    failed = await heard.wait()
    assert isinstance(failed, TaskFailed)
    assert (failed.task, failed.error_type) == ("stray", "ValueError")
    assert "secret" not in failed.reason
    assert "test_executor.py" in failed.reason
    assert kept.done()


async def test_an_error_that_is_awaited_is_not_reported(tasks: Tasks, heard: Heard) -> None:
    with pytest.raises(ValueError, match="secret"):
        await tasks.task(fails(), name="awaited")
    await asyncio.sleep(0.3)
    assert heard.records == []


async def test_a_cancelled_task_is_not_an_error(tasks: Tasks, heard: Heard) -> None:
    task = tasks.task(asyncio.sleep(60), name="x")
    task.cancel()
    assert await tasks.join(within=SOON) == ()
    await asyncio.sleep(0.3)
    assert heard.records == []


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_error_that_ends_a_thread_is_reported(tasks: Tasks, heard: Heard, kind: str) -> None:
    def broken() -> None:
        raise KeyError("secret")

    thread = tasks.thread(broken if kind == "sync" else fails, name="worker")
    failed = await heard.wait()
    assert isinstance(failed, TaskFailed)
    assert failed.task == "worker"
    assert "secret" not in failed.reason
    assert thread.join(5)


async def test_a_callback_that_fails_in_a_threads_loop_is_reported(tasks: Tasks, heard: Heard) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)

    tasks.thread(main, name="io")
    failed = await heard.wait()
    assert isinstance(failed, TaskFailed)
    assert (failed.task, failed.error_type) == ("io", "ZeroDivisionError")


async def test_threads_are_named_and_an_async_main_gets_its_own_loop(tasks: Tasks) -> None:
    seen: list[object] = []

    async def main() -> None:
        seen.extend([threading.current_thread().name, asyncio.get_running_loop()])

    tasks.thread(main, name="io")
    assert await tasks.join(within=SOON) == ()
    assert seen[0] == "postroad:io"
    assert seen[1] is not asyncio.get_running_loop()


async def test_join_waits_for_all_and_names_what_is_left_over(tasks: Tasks) -> None:
    release = threading.Event()
    tasks.thread(release.wait, name="stubborn")  # type: ignore[arg-type]
    slow = tasks.task(asyncio.sleep(60), name="slow")
    assert await tasks.join(within=timedelta(milliseconds=50)) == ("postroad:slow", "postroad:stubborn")
    release.set()
    slow.cancel()
    assert await tasks.join(within=SOON) == ()


async def test_cancel_ends_every_task_but_the_callers(tasks: Tasks) -> None:
    slow = tasks.task(asyncio.sleep(60), name="slow")

    async def caller() -> tuple[str, ...]:
        return await tasks.cancel(within=SOON)

    assert await tasks.task(caller(), name="caller") == ()
    assert slow.cancelled()


async def test_nothing_starts_in_a_process_that_was_forked_after_the_start(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tasks.task(asyncio.sleep(0), name="first")
    monkeypatch.setattr(executor, "_forks", executor._forks + 1)
    with pytest.raises(UsageError, match="forked"):
        tasks.task(asyncio.sleep(0), name="second")
    with pytest.raises(UsageError, match="PR110"):
        tasks.thread(lambda: None, name="third")
