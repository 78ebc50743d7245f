"""Finds tasks and threads that nobody owns, and says where they came from."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

from postroad.signals.catalog import Stray

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

MOST: Final = 100
"""More strays than this are counted in the last one's name, not told one by one."""

OWNERS: Final[dict[str, str]] = {
    "asyncio.unix_events": "waits for child processes; ends with them",
    "asyncpg": "closes connections in the background; ended by the loop",
    "concurrent.futures": "idle threads of a pool, also of the loop's default executor; ended by the interpreter",
    "logging.handlers": "a QueueListener; ended by whoever set up the log",
    "multiprocessing": "feeds a queue; ended by the interpreter",
    "opentelemetry": "exports in batches; ended by the interpreter",
    "psycopg_pool": "a pool's workers; ended by the pool",
    "sentry_sdk": "sends reports; ended by the interpreter",
}
"""Which modules' tasks and threads are no strays, and who ends them; a thread that runs an author's function is one."""

INSIDE: Final[ContextVar[Notes | None]] = ContextVar("postroad_inside", default=None)
"""The notes of the App inside whose services, handlers or background tasks the code runs."""

_ASYNCIO: Final = os.path.dirname(asyncio.__file__)  # noqa: PTH120 - compared with the names in code objects
_STARTERS: Final = frozenset({"threading", "concurrent.futures.thread"})


class Notes:
    """A task factory that notes where a task was created; `Tasks` passes it by, so that our own cost nothing.

    Measured at one microsecond a task, which only foreign ones pay. It keeps a code object and an offset, no frame.
    """

    def __init__(self, *, everything: bool) -> None:
        """Note everything on the loop (it is the App's own), or only what starts inside the App (a host's loop)."""
        self._everything = everything
        self._loop: asyncio.AbstractEventLoop | None = None

    def install(self) -> None:
        """Note what is created on the running loop from now on; a factory that is there already stays."""
        self._loop = asyncio.get_running_loop()
        if self._loop.get_task_factory() is None:
            self._loop.set_task_factory(self)

    def remove(self) -> None:
        """Note nothing any more; whoever has set another factory meanwhile keeps it. Safe to repeat."""
        if self._loop is not None and self._loop.get_task_factory() is self:
            self._loop.set_task_factory(None)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What starts in the block, and whatever that starts, is inside the App."""
        token = INSIDE.set(self)
        try:
            yield
        finally:
            INSIDE.reset(token)

    def __call__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **more: Any
    ) -> asyncio.Task[Any]:
        """Make a task; see `asyncio.loop.set_task_factory`."""
        if not self._everything and INSIDE.get() is not self:
            return asyncio.Task(work, loop=loop, **more)
        task = _Noted(work, loop=loop, **more)
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - a traceback would cost ten times as much
        while frame is not None and frame.f_code.co_filename.startswith(_ASYNCIO):
            frame = frame.f_back
        task.notes = self
        task.place = None if frame is None else (frame.f_code, frame.f_lasti, _module_of(frame))
        return task

    def strays(self, *, ours: Callable[[asyncio.Task[Any]], bool], prefix: str) -> list[Stray]:
        """What runs and has no owner: tasks of the loop that are not `ours`; threads not named with `prefix`.

        On a host's loop only what was started inside the App is told, and no threads: the others are the host's.
        Safe from any thread.
        """
        tasks = [] if self._loop is None else self._tasks(self._loop, ours)
        threads = [stray for _, stray in stray_threads(prefix)] if self._everything else []
        found = [*tasks, *threads]
        if len(found) > MOST:
            found[MOST - 1 :] = [Stray("more", f"{len(found) - MOST + 1} more", "")]
        return found

    def _tasks(self, loop: asyncio.AbstractEventLoop, ours: Callable[[asyncio.Task[Any]], bool]) -> list[Stray]:
        current = asyncio.current_task(loop)
        return [
            _stray_task(task)
            for task in sorted(asyncio.all_tasks(loop), key=asyncio.Task.get_name)
            if task is not current
            and not ours(task)
            and (self._everything or (isinstance(task, _Noted) and task.notes is self))
            and not _owned(_creator(task))
        ]


class _Noted(asyncio.Task[Any]):
    """A task that knows where it was created."""

    __slots__ = ("notes", "place")
    notes: Notes
    place: tuple[CodeType, int, str] | None


def place(code: CodeType, line: int | None = None) -> str:
    """A place in code as people read it; of a file's path only the name, as in other safe texts."""
    where = os.path.basename(code.co_filename)  # noqa: PTH119 - a name in a code object, not a file
    return f"{code.co_qualname} ({where}:{code.co_firstlineno if line is None else line})"


def stray_threads(prefix: str) -> list[tuple[threading.Thread, Stray]]:
    """The threads that nobody owns, by name: not the main one, not the caller's, none named with `prefix`."""
    stacks = sys._current_frames()  # noqa: SLF001 - the only way to see where a thread is
    spared = (threading.main_thread(), threading.current_thread())
    threads = [each for each in threading.enumerate() if each not in spared and not each.name.startswith(prefix)]
    found = [(thread, _stray_thread(thread, stacks.get(thread.ident or 0))) for thread in threads]
    return sorted(((thread, stray) for thread, stray in found if stray is not None), key=lambda pair: pair[1].name)


def keeps_interpreter(thread: threading.Thread) -> bool:
    """Whether the interpreter's end waits for it: it is no daemon, or a pool's worker (daemon or not)."""
    return not thread.daemon or getattr(getattr(thread, "_target", None), "__module__", "") in _STARTERS


def in_words(stray: Stray) -> str:
    """A stray in one line, for the receipt."""
    started = f", started in {stray.started}" if stray.started else ""
    return f"{stray.kind} {stray.name}: {stray.runs}{started}" if stray.runs else stray.name


def _stray_task(task: asyncio.Task[Any]) -> Stray:
    code, started = _code(task), ""
    if isinstance(task, _Noted) and task.place is not None:
        started = place(task.place[0], _line(*task.place[:2]))
    return Stray("task", task.get_name(), "unknown" if code is None else place(code), started)


def _code(task: asyncio.Task[Any]) -> CodeType | None:
    work: Any = task.get_coro()
    code = getattr(work, "cr_code", None) or getattr(work, "gi_code", None)
    return code if isinstance(code, CodeType) else None


def _creator(task: asyncio.Task[Any]) -> str:
    """The module that created the task; where that is not known, the one whose coroutine it runs."""
    if isinstance(task, _Noted) and task.place is not None:
        return task.place[2]
    work: Any = task.get_coro()
    frame = getattr(work, "cr_frame", None) or getattr(work, "gi_frame", None)
    return _module_of(frame) if frame is not None else ""


def _line(code: CodeType, offset: int) -> int:
    lines = [line for begin, end, line in code.co_lines() if begin <= offset < end and line is not None]
    return lines[0] if lines else code.co_firstlineno


def _stray_thread(thread: threading.Thread, stack: FrameType | None) -> Stray | None:
    """What the thread runs: the outermost function that is not the machinery which starts threads."""
    entry: FrameType | None = None
    function = getattr(thread, "_target", None) or getattr(thread, "function", None)  # The second is a Timer's.
    while stack is not None:
        entry = stack if _module_of(stack) not in _STARTERS else entry
        if stack.f_code.co_qualname == "_WorkItem.run":  # A busy worker of a pool.
            function = getattr(stack.f_locals.get("self"), "fn", None)
        stack = stack.f_back
    module = _module_of(entry) if entry is not None else str(getattr(function, "__module__", None))
    if _owned(module):
        return None
    code = entry.f_code if entry is not None else getattr(function, "__code__", None)
    runs = place(code) if isinstance(code, CodeType) else str(getattr(function, "__qualname__", "unknown"))
    return Stray("thread", thread.name, runs)


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _owned(module: str) -> bool:
    return any(module == owner or module.startswith(f"{owner}.") for owner in OWNERS)
