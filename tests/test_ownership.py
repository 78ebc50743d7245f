"""Tasks and threads start in one room."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import postroad

SOURCE = Path(postroad.__file__).parent
# run_coroutine_threadsafe is not one of them: whoever calls it holds the future and waits for it.
STARTERS = {
    "create_task", "ensure_future", "Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor", "TaskGroup",
    "to_thread", "run_in_executor", "fork", "start_new_thread",
}  # fmt: skip
ALLOWED = {
    "runtime/executor.py",  # The room.
    "testing/proxy.py",  # A fault injector for tests: it runs beside the product, never in it.
}


def starters(text: str) -> list[str]:
    """The calls in a module's text that start something in the background."""
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    names = [
        call.attr if isinstance(call, ast.Attribute) else call.id if isinstance(call, ast.Name) else ""
        for call in calls
    ]
    return [name for name in names if name in STARTERS]


def test_tasks_and_threads_start_in_the_executor_only() -> None:
    found = {str(path.relative_to(SOURCE)): starters(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
    strangers = {name: calls for name, calls in found.items() if calls and name not in ALLOWED}
    assert strangers == {}
    assert found["runtime/executor.py"] != []


@pytest.mark.parametrize(
    "text",
    ["import asyncio\nasyncio.create_task(x())", "from threading import Thread\nThread(target=f).start()",
     "loop.run_in_executor(None, f)",
     "async def f():\n    async with asyncio.TaskGroup() as g:\n        g.create_task(x())"],
)  # fmt: skip
def test_the_scan_sees_each_way_to_start_something(text: str) -> None:
    assert starters(text)
