"""The command ``postroad demo``."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from postroad.demo import flights, report
from postroad.demo.road import CONSUMER_APP, Outcome, Road
from postroad.demo.road import Progress as Travelled
from postroad.demo.servers import AUTO, EMBEDDED, Servers, refuse_what_cannot_run
from postroad.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator


def demo(  # noqa: PLR0917 - typer reads the options from the signature
    csv: Annotated[Path | None, typer.Option(help="Flights with nycflights13's columns; plain or gzip CSV.")] = None,
    broker: Annotated[
        str, typer.Option(help="embedded (PostgreSQL alone), auto (a private RabbitMQ) or the URL of a RabbitMQ.")
    ] = EMBEDDED,
    chaos: Annotated[bool, typer.Option("--chaos", help="Kill processes and restart what carries the events.")] = False,  # noqa: FBT002
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON at the end.")] = False,  # noqa: FBT002
    keep: Annotated[bool, typer.Option("--keep", help="Keep databases and logs, and say where they lie.")] = False,  # noqa: FBT002
) -> None:
    """Send real flights from one service to another, and count what was lost or doubled.

    One service writes flights and publishes their events in the same transaction (outbox), the other keeps a
    projection of them (inbox, idempotent consumer), has passengers of late flights told by a company that does not
    always answer (effects), and reports on each day (schedules). With a RabbitMQ each has a database of its own, else
    they share one. Exit code 0: nothing lost, nothing doubled; 1: something was, or a report or notice is not as the
    file says; 2: the file holds lines that are no flights (the rest went through).
    """
    outcome = run_demo(csv or flights.SAMPLE, broker=broker, chaos=chaos, keep=keep)
    if json:
        sys.stdout.write(report.as_json(outcome) + "\n")
    else:
        report.show(outcome, Console())
    if not report.sound(outcome):
        raise typer.Exit(1)
    if outcome.malformed or outcome.repeated:
        raise typer.Exit(2)


def run_demo(
    csv: Path, *, broker: str = EMBEDDED, chaos: bool = False, keep: bool = False, consumer_app: str = CONSUMER_APP
) -> Outcome:
    """Run the demo on servers of its own and return what came of it.

    Raises:
        UsageError: the file is no CSV of flights, or no broker can be had here.
        Unavailable: a server or process did not start.
    """
    refuse_what_cannot_run(broker)
    if chaos and broker not in {EMBEDDED, AUTO}:
        raise UsageError("PR107", "--chaos restarts servers of its own; use --broker embedded or auto")
    try:
        next(flights.read(csv), None)
    except flights.UnreadableFile as error:
        raise UsageError("PR107", str(error)) from error
    console = Console(stderr=True)
    with (
        _terminable(), _folder(console, keep=keep) as folder, _bar(console) as watch,
        Servers(folder, broker=broker) as servers,
    ):  # fmt: skip
        road = Road(servers, folder, csv=csv, chaos=chaos, consumer_app=consumer_app)
        return road.run(watch)


@contextmanager
def _terminable() -> Iterator[None]:
    """Have SIGTERM end the block as Ctrl-C does: what was started is stopped, and its folder removed."""

    def heard(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Clearing up is not to be interrupted again.
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _folder(console: Console, *, keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="postroad-demo-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        if keep:
            console.print(f"Databases and logs are kept in {folder}", highlight=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[Travelled], None]]:
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        start = progress.add_task("starting the servers", total=None, note="")
        staged = progress.add_task("staged", total=None, visible=False, note="")
        settled = progress.add_task("handled", total=None, visible=False, note="")

        def watch(travelled: Travelled) -> None:
            progress.update(start, visible=False)
            progress.update(staged, total=travelled.total, completed=travelled.staged, visible=True)
            progress.update(
                settled, total=travelled.total, completed=travelled.settled, visible=True, note=travelled.note
            )

        yield watch
