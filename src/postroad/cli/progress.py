"""What a long act shows and hears at a terminal: a question before it, a bar while it runs, and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import typer

from postroad.errors import UsageError


def agreed(question: str) -> bool:
    """Whether the person at the terminal says yes.

    Raises:
        UsageError: PR107, there is none.
    """
    if not sys.stdin.isatty():
        raise UsageError("PR107", "there is nobody to ask; say --yes once you have seen what --dry-run shows")
    return typer.confirm(question)


@contextmanager
def stopping() -> Iterator[asyncio.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets; the second one ends the command at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def heard(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)

    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread
                loop.add_signal_handler(number, heard, number)
                stack.callback(loop.remove_signal_handler, number)
        yield stop


@contextmanager
def progress(verb: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error: what is done, and how long it takes yet; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(verb, total=total)
        yield lambda done: bar.update(task, completed=done)
