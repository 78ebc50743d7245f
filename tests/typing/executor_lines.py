"""Lines about background work that must type-check, and lines (marked with their error code) that must not."""

from __future__ import annotations

from typing import assert_type

from postroad import App, Executor, seconds
from postroad.runtime.submitted import Submitted


async def double(number: int) -> int:
    return number * 2


def block(text: str, *, loud: bool = False) -> str:
    return text.upper() if loud else text


async def allowed(executor: Executor) -> None:
    assert_type(executor.submit(double, 1), Submitted[int])
    assert_type(await executor.submit(double, 1, name="twice", time_limit=seconds(1)), int)
    assert_type(await executor.submit_blocking(block, "a"), str)
    assert_type(App("typed", executor=executor).executor, Executor)


async def refused(executor: Executor) -> None:
    executor.submit(double, "1")  # E: arg-type
    executor.submit(double)  # E: arg-type
    executor.submit(double(1))  # E: arg-type
    executor.submit(block, "a")  # E: arg-type
    executor.submit(double, 1, time_limit=5)  # E: arg-type
    executor.submit_blocking(block, 1)  # E: arg-type
    Executor(4)  # E: call-arg
    Executor(concurrency="4")  # E: arg-type
