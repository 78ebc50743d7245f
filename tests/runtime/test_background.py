"""The executor: background work within bounds, alone in an asyncio program."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from postroad import Executor
from postroad.clock import seconds
from postroad.errors import Overloaded, PostroadError, UsageError
from postroad.events.cause import Cause, cause, current_cause
from postroad.failures import FailureClass, Rules, classify
from postroad.runtime import background
from postroad.runtime.app import App
from postroad.runtime.settings import Settings
from postroad.signals.catalog import (
    ExecutorFull,
    ExecutorLoad,
    ExecutorRefused,
    ExecutorSettled,
    ShutdownReceipt,
    TaskFailed,
    ThreadsStuck,
)
from support import until

if TYPE_CHECKING:
    from postroad.signals import Signal


class Heard(list["Signal"]):
    def all(self, kind: type[Any]) -> list[Any]:
        return [signal for signal in self if isinstance(signal, kind)]


@pytest.fixture
def heard() -> Heard:
    return Heard()


def executor(heard: Heard, **options: Any) -> Executor:
    return Executor(**{"grace": seconds(3), "sinks": [heard.append], **options})


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return number * 2


async def fail(text: str) -> None:
    raise ValueError(text)


async def test_what_is_submitted_is_done_and_may_be_awaited(heard: Heard) -> None:
    async with executor(heard) as background_:
        work = background_.submit(double, 21)
        assert not work.done
        assert await work == 42
        assert work.done
    assert [(s.executor, s.task, s.result) for s in heard.all(ExecutorSettled)] == [("executor", "double", "ok")]
    assert heard.all(ExecutorLoad)[-1] == ExecutorLoad("executor", 0, 0)
    assert heard.all(TaskFailed) == []


async def test_no_more_run_at_once_than_may_and_all_run_in_turn(heard: Heard) -> None:
    order: list[int] = []
    most = 0

    async def work(number: int) -> None:
        nonlocal most
        order.append(number)
        most = max(most, len(order) - ended)
        await asyncio.sleep(0.001)
        count()

    ended = 0

    def count() -> None:
        nonlocal ended
        ended += 1

    async with executor(heard, concurrency=3, queue=100) as limited:
        for number in range(50):
            limited.submit(work, number)
    assert order == list(range(50))
    assert most == 3


async def flood(limited: Executor, count: int) -> tuple[int, list[weakref.ref[Any]]]:
    """Submit that many with a payload each while nothing ends; how many were refused, and the payloads."""
    release = asyncio.Event()

    class Payload: ...

    async def wait(payload: Payload) -> None:
        await release.wait()

    refused, payloads = 0, []
    for _ in range(count):
        payload = Payload()
        payloads.append(weakref.ref(payload))
        try:
            limited.submit(wait, payload)
        except Overloaded:
            refused += 1
    del payload
    gc.collect()
    alive = [each for each in payloads if each() is not None]
    release.set()
    return refused, alive


async def test_a_full_executor_refuses_and_keeps_nothing_of_what_it_refused(heard: Heard) -> None:
    async with executor(heard, concurrency=2, queue=3) as limited:
        refused, alive = await flood(limited, 1000)
        assert (refused, len(alive)) == (995, 5)
    assert len(heard.all(ExecutorRefused)) == 995
    assert heard.all(ExecutorRefused)[0] == ExecutorRefused("executor", "flood.<locals>.wait", "full")
    assert heard.all(ExecutorFull) == [ExecutorFull("executor", 3, 2)]  # Once, not a thousand times.
    assert heard.all(ShutdownReceipt)[0].unfinished == ()


@pytest.mark.sabotage
async def test_without_its_bound_the_executor_keeps_everything(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    async with executor(heard, concurrency=2, queue=3) as limited:
        monkeypatch.setattr(limited, "queue", 10**9)
        refused, alive = await flood(limited, 1000)
        assert (refused, len(alive)) == (0, 1000)


async def test_it_takes_again_once_there_is_room(heard: Heard) -> None:
    async with executor(heard, concurrency=1, queue=0) as limited:
        first = limited.submit(double, 1)
        with pytest.raises(
            Overloaded, match=r"executor 'executor' is full \(1 run, 0 wait\): double was not taken.*PR310"
        ):
            limited.submit(double, 2)
        await first
        assert await limited.submit(double, 3) == 6


async def test_a_task_is_cancelled_at_its_time_limit(heard: Heard) -> None:
    cancelled = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    async with executor(heard, time_limit=seconds(60)) as limited:
        work = limited.submit(slow, time_limit=seconds(0.05), name="slow")
        with pytest.raises(TimeoutError, match=r"slow exceeded its time limit of 0.05 s"):
            await work
        assert cancelled.is_set()
    assert [s.result for s in heard.all(ExecutorSettled)] == ["timed_out"]


@pytest.mark.sabotage
async def test_without_the_time_limit_it_runs_on(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background.asyncio, "timeout", lambda _: asyncio.timeout_at(None))
    async with executor(heard, grace=seconds(0.2)) as limited:
        work = limited.submit(asyncio.sleep, 60, time_limit=seconds(0.05))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(until_done(work)), 0.3)


async def until_done(work: Any) -> None:
    await until(lambda: work.done, within=5)


async def test_an_authors_own_timeout_is_a_failure_like_another(heard: Heard) -> None:
    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(5)

    async with executor(heard) as limited:
        limited.submit(impatient)
    assert [s.result for s in heard.all(ExecutorSettled)] == ["failed"]


async def test_one_that_ignores_its_cancellation_is_told_as_stuck(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_LET_GO_SECONDS", 0.05)
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with executor(heard) as limited:
        limited.submit(stubborn, name="stubborn", time_limit=seconds(0.05))
        await until(lambda: bool(heard.all(TaskFailed)))
        assert [(f.task, f.error_type) for f in heard.all(TaskFailed)] == [("executor:stubborn", "Stuck")]
        assert heard.all(ExecutorLoad)[-1].running == 1
        release.set()


async def test_an_error_is_told_with_its_place_and_never_its_text(heard: Heard) -> None:
    async with executor(heard) as limited:
        limited.submit(fail, "card 4111")
    [failed] = heard.all(TaskFailed)
    assert (failed.task, failed.error_type) == ("executor:fail", "ValueError")
    assert failed.reason.startswith("in fail (test_background.py:")
    assert "4111" not in str([*heard])
    assert [s.result for s in heard.all(ExecutorSettled)] == ["failed"]


async def test_an_error_comes_to_whoever_awaits_it_instead(heard: Heard) -> None:
    async with executor(heard) as limited:
        with pytest.raises(ValueError, match="mine"):
            await limited.submit(fail, "mine")
        failing = limited.submit(fail, "again")
        await until(lambda: failing.done)
        with pytest.raises(ValueError, match="again"):  # Told by then, and still there.
            await failing
    assert len(heard.all(TaskFailed)) == 1


async def test_whoever_awaits_may_leave_and_the_task_goes_on(heard: Heard) -> None:
    release = asyncio.Event()
    async with executor(heard) as limited:
        work = limited.submit(release.wait)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_wait(work), 0.02)
        release.set()
        assert await work is True


async def _wait(work: Any) -> None:
    await work


async def test_correlation_is_the_submitters_in_tasks_and_on_threads(heard: Heard) -> None:
    story = Cause("c-1", "e-1")

    async def look() -> Cause | None:
        return current_cause()

    async with executor(heard, concurrency=1) as limited:
        waits = limited.submit(asyncio.sleep, 0.01)
        with cause(story):
            seen = [limited.submit(look), limited.submit_blocking(current_cause)]
        other = limited.submit(look)
        await waits
        assert [await each for each in seen] == [story, story]
        assert await other is None


@pytest.mark.sabotage
async def test_without_the_copied_context_correlation_is_lost(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = background.contextvars.Context
    monkeypatch.setattr(background.contextvars, "copy_context", empty)

    async def look() -> Cause | None:
        return current_cause()

    async with executor(heard) as limited:
        with cause(Cause("c-1", "e-1")):
            work = limited.submit(look)
        assert await work is None


# --- threads --------------------------------------------------------------------------------------------------------


async def test_blocking_functions_run_on_threads_of_its_own(heard: Heard) -> None:
    async with executor(heard) as limited:
        name = await limited.submit_blocking(lambda: threading.current_thread().name)
    assert name == "postroad:threads:executor-0"
    assert all(not thread.name.startswith("postroad:threads:executor") for thread in threading.enumerate())


async def test_a_thread_cannot_be_stopped_and_is_told_as_stuck_until_it_returns(heard: Heard) -> None:
    release = threading.Event()
    async with executor(heard, concurrency=1) as limited:
        with pytest.raises(TimeoutError, match="time limit"):
            await limited.submit_blocking(release.wait, name="hangs", time_limit=seconds(0.05))
        assert heard.all(ThreadsStuck) == [ThreadsStuck("executor", 1)]
        release.set()
        assert await limited.submit_blocking(int, "7") == 7
    assert heard.all(ThreadsStuck)[-1] == ThreadsStuck("executor", 0)


async def test_it_can_be_submitted_to_from_a_thread(heard: Heard) -> None:
    done = asyncio.Event()

    async def note() -> None:
        done.set()

    async with executor(heard) as limited:
        await limited.submit_blocking(lambda: limited.submit(note) and None)
        await asyncio.wait_for(done.wait(), 5)


# --- the end --------------------------------------------------------------------------------------------------------


async def test_what_is_in_hand_at_the_end_is_finished_and_nothing_more_is_taken(heard: Heard) -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        await asyncio.sleep(0.05)
        ended.append(name)

    async def late(limited: Executor) -> None:
        await until(lambda: bool(ended))
        with pytest.raises(Overloaded, match=r"stops: .*PR310"):
            limited.submit(work, "too late")
        ended.append("refused")

    async with executor(heard, concurrency=2) as limited:
        for name in ("a", "b", "c"):
            limited.submit(work, name)
        limited.submit(late, limited)
    assert sorted(ended) == ["a", "b", "c", "refused"]
    [receipt] = heard.all(ShutdownReceipt)
    assert (receipt.finished, receipt.abandoned, receipt.unfinished, receipt.left) == (4, 0, (), ())


async def test_at_two_thirds_of_the_grace_period_the_rest_is_cancelled_and_named(heard: Heard) -> None:
    began = time.monotonic()
    async with executor(heard, concurrency=1, grace=seconds(0.6)) as limited:
        runs = limited.submit(asyncio.sleep, 60, name="runs")
        waits = [limited.submit(asyncio.sleep, 0, name="waits") for _ in range(2)]
    assert 0.35 < time.monotonic() - began < 0.6
    [receipt] = heard.all(ShutdownReceipt)
    assert (receipt.finished, receipt.abandoned, receipt.unfinished) == (0, 3, ("runs", "waits (2)"))
    for work in (runs, *waits):
        with pytest.raises(PostroadError, match="PR311"):
            await work


async def test_what_does_not_even_heed_cancellation_is_left_and_named(heard: Heard) -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with executor(heard, grace=seconds(0.3)) as limited:
        limited.submit(stubborn, name="stubborn")
    [receipt] = heard.all(ShutdownReceipt)
    assert (receipt.unfinished, receipt.left) == (("stubborn",), ("postroad:executor:stubborn",))
    release.set()


async def test_one_may_be_cancelled_before_and_after_it_began(heard: Heard) -> None:
    async with executor(heard, concurrency=1) as limited:
        runs, waits = (limited.submit(asyncio.sleep, 60, name=name) for name in ("runs", "waits"))
        await asyncio.sleep(0)
        for work in (waits, runs, runs):
            work.cancel()
            with pytest.raises(PostroadError, match="PR311"):
                await work
    assert [(s.task, s.result) for s in heard.all(ExecutorSettled)] == [("waits", "cancelled"), ("runs", "cancelled")]
    assert heard.all(ShutdownReceipt)[0].unfinished == ()


async def test_it_may_run_again_and_only_once_at_a_time(heard: Heard) -> None:
    limited = executor(heard)
    for _ in range(2):
        async with limited:
            assert await limited.submit(double, 1) == 2
            with pytest.raises(UsageError, match="runs already"):
                await limited.__aenter__()
    with pytest.raises(UsageError, match=r"does not run.*PR101"):
        limited.submit(double, 1)


# --- bad input ------------------------------------------------------------------------------------------------------


async def test_each_misuse_of_submit_is_one_line(heard: Heard) -> None:
    async with executor(heard) as limited:
        for misuse, text in (
            (lambda: limited.submit(double(1)), "given a coroutine; give the function and its arguments, uncalled"),
            (lambda: limited.submit(print), "print is not 'async def'; use submit_blocking"),
            (lambda: limited.submit(3), "int is not 'async def'"),
            (lambda: limited.submit_blocking(double, 1), "double is 'async def'; use submit"),
            (lambda: limited.submit_blocking(3), "was given int, which cannot be called"),
            (lambda: limited.submit(double, 1, time_limit=5), "time_limit is 5; it must be a timedelta above 0"),
            (lambda: limited.submit(double, 1, time_limit=seconds(0)), "it must be a timedelta above 0"),
        ):
            with pytest.raises(UsageError) as caught:
                misuse()
            assert caught.value.code == "PR107"
            assert text in str(caught.value)
        with pytest.raises(UsageError, match="returned a coroutine; give submit the async function"):
            await limited.submit_blocking(lambda: double(1))
        assert await limited.submit(partial(double, number=4)) == 8


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency is 0; it must be a whole number, at least 1"),
        ({"concurrency": True}, "concurrency is True"),
        ({"queue": -1}, "queue is -1; it must be a whole number, at least 0"),
        ({"time_limit": 30}, "time_limit is 30; it must be a timedelta above 0, such as seconds(30)"),
        ({"grace": seconds(-1)}, "grace is -1 day"),
    ],
)
def test_a_bound_that_is_none_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Executor(**options)
    assert caught.value.code == "PR107"
    assert text in str(caught.value)


def test_an_app_takes_an_executor_and_nothing_else() -> None:
    own = Executor(concurrency=2)
    assert App("mine", executor=own).executor is own
    with pytest.raises(UsageError, match=r"executor is int, not a postroad.Executor \[PR101\]"):
        App("mine", executor=4)  # type: ignore[arg-type]


async def test_an_app_that_is_refused_a_running_executor_leaves_it_running(heard: Heard) -> None:
    async with executor(heard) as limited:
        with pytest.raises(
            UsageError, match=r"executor 'executor' runs already; each App needs one of its own \[PR101\]"
        ):
            async with App("second", executor=limited, settings=Settings(roles=frozenset())):
                pass
        assert await limited.submit(double, 1) == 2


async def test_a_full_executor_is_no_dependency_that_is_down(heard: Heard) -> None:
    async with executor(heard, concurrency=1, queue=0) as limited:
        limited.submit(double, 1)
        with pytest.raises(Overloaded) as refused:
            limited.submit(double, 2)
    verdict = classify(refused.value, rules=Rules(), attempt=1)
    assert verdict.failure is FailureClass.TRANSIENT
    assert not verdict.connection_lost
