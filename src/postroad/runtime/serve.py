"""The main thread of a process: it hears the signals, and sees to it that the process is gone in time."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Final

from postroad.errors import PostroadError
from postroad.runtime.executor import PREFIX, LoopFactory, safe_reason
from postroad.runtime.exits import Exit, exit_of
from postroad.runtime.shutdown import GIVE_UP
from postroad.runtime.strays import keeps_interpreter, stray_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroad.runtime.process import Process
    from postroad.runtime.shutdown import Told

LATE_SECONDS: Final = 0.2
"""How long after the grace period the process is ended by force; what it leaves is taken over when leases expire."""
_LOOK_SECONDS: Final = 0.05
_ALARM_SECONDS: Final = 0.7
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_YOUNG: Final = 10_000


def serve(process: Process) -> Exit:
    """Run `process` until SIGTERM or SIGINT and return how it ended.

    The App's loop runs on a thread of its own: a handler that blocks it, in C code too, cannot keep the signal from
    being heard here, nor this thread from ending the process within the grace period plus one second. A second
    signal skips to the last step. Call it on the main thread.
    """
    errors: list[BaseException] = []
    spare_collections()

    async def main() -> None:
        try:
            await process.run()
        except BaseException as error:  # noqa: BLE001 - told below, in one line
            errors.append(error)

    with _heard(process.told):
        thread = process.tasks.thread(main, name="main")
        while not thread.join(_LOOK_SECONDS):
            if overdue(process.told):
                _force(process)
    return tell(errors[0]) if errors else Exit.OK


def tell(error: BaseException) -> Exit:
    """Say on standard error, in one line, what ended the process; the traceback only under POSTROAD_DEBUG=1."""
    code = exit_of(error)
    said = str(error) if isinstance(error, PostroadError) else f"{type(error).__name__} {safe_reason(error)}"
    if code is Exit.INTERNAL:
        said = f"internal error: {said}; POSTROAD_DEBUG=1 shows the traceback"
    if os.environ.get("POSTROAD_DEBUG") == "1":
        traceback.print_exception(error)
    sys.stderr.write(f"postroad: {' '.join(said.split())}\n")
    sys.stderr.flush()
    return code


def overdue(told: Told) -> bool:
    """Whether the process should be gone by now."""
    return told.begun and told.left(1) <= 0 and told.late >= LATE_SECONDS


def fast_loop() -> LoopFactory | None:
    """The factory of uvloop's loops where it is installed, else None."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    factory: Callable[[], object] = uvloop.new_event_loop
    return factory  # type: ignore[return-value]


def spare_collections() -> None:
    """Have the garbage collector pass over what stands now, and look at the young less often: after 10,000 objects.

    Every delivery makes dozens of objects that nothing cyclic holds, and what was imported is never garbage. Consuming
    was measured to be a tenth faster so. A collector that the author has switched off, or set to look even less often,
    stays as it is.
    """
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < _YOUNG:
        gc.set_threshold(_YOUNG, *older)


@contextlib.contextmanager
def _heard(told: Told) -> Iterator[None]:
    def note(number: int, _frame: FrameType | None) -> None:
        told.tell(signal.Signals(number).name)
        _arm(told)

    before = threading.enumerate()
    previous = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        # A thread that an author's function left may keep the interpreter from ending: the alarm stays for it.
        left = [thread for thread, _ in stray_threads(PREFIX) if thread not in before]
        kept = any(keeps_interpreter(thread) for thread in left)
        if told.begun and not kept and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _arm(told: Told) -> None:
    # The kernel's own alarm is the last net: it holds even when this thread cannot run (a log that blocks).
    if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
        part = 1 - GIVE_UP if told.hurried else 1.0
        signal.setitimer(signal.ITIMER_REAL, told.grace.total_seconds() * part + _ALARM_SECONDS)


def _force(process: Process) -> None:
    try:
        process.emit_receipt()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    finally:  # Whatever happens: the process must be gone.
        os._exit(Exit.FORCED)
