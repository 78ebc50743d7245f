"""Tasks and threads start in one room."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import postroad

SOURCE = Path(postroad.__file__).parent
# run_coroutine_threadsafe is not one of them: whoever calls it holds the future and waits for it. Neither is a timer of
# the loop (call_later): it runs a plain function, and `starters` sees what that starts.
STARTERS = {
    # tasks
    "create_task", "ensure_future", "Task", "TaskGroup", "gather", "as_completed", "start_server", "start_unix_server",
    "create_server",
    # loops
    "run_until_complete", "run_forever", "new_event_loop", "Runner",
    # threads
    "Thread", "Timer", "ThreadPoolExecutor", "to_thread", "run_in_executor", "start_new_thread", "QueueListener",
    # processes
    "ProcessPoolExecutor", "Process", "Pool", "Popen", "fork", "forkpty", "posix_spawn", "system", "popen",
    "create_subprocess_exec", "create_subprocess_shell", "subprocess_exec", "subprocess_shell",
}  # fmt: skip
ALLOWED = {
    "runtime/executor.py": ({"Task", "create_task", "Thread", "Runner"}, "the room"),
    "runtime/strays.py": ({"Task"}, "makes the task that somebody else asked the loop for"),
    "runtime/health.py": ({"start_server"}, "a bounded number of connections; the loop of its thread ends them"),
    "consume/group.py": ({"gather"}, "waits for tasks that the owner started"),
    "outbox/dispatcher.py": ({"gather"}, "waits for tasks that the owner started"),
    "transport/postgres/transport.py": ({"gather"}, "waits for tasks that the owner started"),
    "transport/amqp/transport.py": ({"gather"}, "closes connections side by side, and waits for them"),
    "demo/author.py": ({"gather"}, "a process of its own, which does nothing else"),
    "demo/provider.py": ({"Popen", "start_server"}, "a process of its own, which does nothing else, and its start"),
    "demo/road.py": ({"Popen"}, "a command: it ends the processes that it started"),
    "demo/fleet.py": ({"Popen"}, "a command: it ends the processes that it started"),
    "testing/": ({"Popen", "Thread"}, "servers and fault injectors for tests: beside the product, never in it"),
}  # fmt: skip
"""Who may call what, and why that leaves nothing without an owner."""


def starters(text: str) -> set[str]:
    """What a module's text calls, or derives a class from, that starts something in the background."""
    nodes = [*ast.walk(ast.parse(text))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    real = {alias.asname or alias.name: alias.name for node in imports for alias in node.names}
    ours = {alias.name for node in imports if (node.module or "").startswith("postroad") for alias in node.names}
    ours |= {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    used = [node.func for node in nodes if isinstance(node, ast.Call)]
    used += [base for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    plain = {real.get(each.id, each.id) for each in used if isinstance(each, ast.Name) and each.id not in ours}
    return (plain | {each.attr for each in used if isinstance(each, ast.Attribute)}) & STARTERS


def found() -> dict[str, set[str]]:
    """The starters of every module that has any."""
    each = {str(path.relative_to(SOURCE)): starters(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
    return {module: calls for module, calls in each.items() if calls}


def allowed(module: str) -> set[str]:
    return set().union(*(calls for place, (calls, _) in ALLOWED.items() if module.startswith(place)))


def test_tasks_and_threads_start_in_the_executor_only() -> None:
    strangers = {module: calls - allowed(module) for module, calls in found().items()}
    assert {module: calls for module, calls in strangers.items() if calls} == {}


def test_nobody_is_allowed_what_he_does_not_use() -> None:
    used = found()
    for place, (calls, reason) in ALLOWED.items():
        assert reason
        assert calls == set().union(*(have for module, have in used.items() if module.startswith(place))), place


@pytest.mark.parametrize(
    "text",
    ["import asyncio\nasyncio.create_task(x())", "from threading import Thread\nThread(target=f).start()",
     "loop.run_in_executor(None, f)",
     "async def f():\n    async with asyncio.TaskGroup() as g:\n        g.create_task(x())",
     "from threading import Thread as T\nT(target=f).start()", "class Mine(threading.Thread): ...",
     "asyncio.ensure_future(x())", "asyncio.Task(x())", "await asyncio.gather(x(), y())", "threading.Timer(1, f)",
     "await asyncio.to_thread(f)", "concurrent.futures.ThreadPoolExecutor()", "multiprocessing.Process(target=f)",
     "from multiprocessing import Process\nProcess(target=f).start()", "subprocess.Popen(['sleep', '9'])",
     "await asyncio.create_subprocess_exec('sleep', '9')", "os.fork()", "asyncio.new_event_loop().run_forever()",
     "await asyncio.start_server(f, 'localhost', 1)", "_thread.start_new_thread(f, ())"],
)  # fmt: skip
def test_the_scan_sees_each_way_to_start_something(text: str) -> None:
    assert starters(text)


@pytest.mark.sabotage
def test_a_task_in_any_other_module_turns_the_scan_red(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "rooms.py").write_text("import asyncio\nasyncio.create_task(x())\n")
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    with pytest.raises(AssertionError, match="rooms"):
        test_tasks_and_threads_start_in_the_executor_only()
