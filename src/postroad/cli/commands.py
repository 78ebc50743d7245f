"""Every command, found by its name; what a command raises becomes one line on standard error."""

from __future__ import annotations

import sys
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli import (
    adopt,
    audit,
    catalog,
    doctor,
    effects,
    events,
    grants,
    jobs,
    lag,
    lease,
    quarantine,
    queue,
    reconcile,
    replay,
    run,
    schedule_acts,
    schema,
    topology,
    work,
)
from postroad.errors import UsageError
from postroad.runtime.exits import Exit
from postroad.runtime.serve import tell

if TYPE_CHECKING:
    from collections.abc import Sequence


def execute(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; nothing is raised but what ends the interpreter."""
    app = build(arguments)
    try:
        _readable(arguments)
        code = app(args=list(arguments), standalone_mode=False, prog_name="postroad")
    except KeyboardInterrupt:
        return int(Exit.STOPPED)
    except Exception as error:  # noqa: BLE001 - the border of the process: told in one line
        return _told(error)
    return int(code) if isinstance(code, int) else int(Exit.OK)


def _readable(arguments: Sequence[str]) -> None:
    """Refuse bytes that are no text: no table holds them, so nothing can be found by them."""
    for one in arguments:
        try:
            one.encode()
        except UnicodeEncodeError:
            raise UsageError("PR107", f"{one[:60]!a} is not text in UTF-8; write it as it is published") from None


def build(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command tree. What brings servers along is imported only when `arguments` ask for it."""
    app = typer.Typer(
        name="postroad", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
        help="Reliable messaging on PostgreSQL and RabbitMQ: outbox (relay), inbox (idempotent consumer), retries and "
        "quarantine (dead letters).",
    )  # fmt: skip
    app.callback()(_root)
    app.command("run")(run.run)
    app.command("migrate")(schema.migrate)
    app.command("maintain")(schema.maintain)
    app.command("doctor")(doctor.doctor)
    app.command("adopt")(adopt.adopt)
    app.command("grants")(grants.grants)
    app.command("audit")(audit.audit)
    app.command("lag")(lag.lag)
    app.add_typer(events.app, name="events")
    app.add_typer(topology.app, name="topology")
    app.add_typer(catalog.app, name="catalog")
    app.add_typer(quarantine.app, name="quarantine")
    app.add_typer(lease.app, name="lease")
    app.add_typer(quarantine.app, name="dlq", help="The same as `quarantine`.")
    app.add_typer(replay.app, name="replay")
    app.add_typer(work.app, name="work")
    app.add_typer(queue.app, name="queue")
    app.add_typer(effects.app, name="effects")
    app.add_typer(reconcile.app, name="reconcile")
    app.add_typer(jobs.app, name="jobs")
    app.add_typer(schedule_acts.app, name="schedule")
    _add_demo(app, arguments)
    return app


def _add_demo(app: typer.Typer, arguments: Sequence[str]) -> None:
    asked = list(arguments[:1]) if find_spec("postroad.demo.command") is not None else []
    if asked == ["demo"]:
        from postroad.demo.command import demo

        app.command("demo")(demo)
    else:
        app.command("demo", help="Send real flights from one service to another, and count what was lost.")(_not_here)
    if asked == ["dev"]:
        from postroad.cli.dev import dev

        app.command("dev")(dev)
    else:
        app.command("dev", help="Keep a PostgreSQL of your own running, and print the settings to export.")(_not_here)


def _not_here() -> None:
    raise typer.Exit(int(Exit.USAGE))


def _version(value: bool) -> None:  # noqa: FBT001 - typer's callback
    if value:
        typer.echo(metadata.version("postroad"))
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the whole command line."""


def _told(error: Exception) -> int:
    shown = getattr(error, "format_message", None)
    if shown is None:
        return int(tell(error))
    # The parser's own complaint about arguments; it has a text of its own, and an exit code of 2.
    if type(error).__name__ == "NoArgsIsHelpError":  # It has no public name. The help is the answer.
        sys.stderr.write(str(shown()))
        return int(Exit.USAGE)
    text = " ".join(str(shown()).split()) or type(error).__name__
    context = getattr(error, "ctx", None)
    where = getattr(context, "command_path", "postroad")
    sys.stderr.write(f"postroad: {text.rstrip('.')}; see `{where} --help`\n")
    return int(Exit.USAGE)
