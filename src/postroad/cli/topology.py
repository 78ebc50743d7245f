"""``postroad topology``."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Final, TypeAlias

import typer

from postroad.cli import show
from postroad.cli.load import HELP, load

app = typer.Typer(no_args_is_help=True, help="The exchanges, queues and bindings of an App on RabbitMQ.")
_POLICIES: Final = "not checked: policies, time-outs and rights; see `postroad doctor`"
Reference: TypeAlias = Annotated[str, typer.Argument(metavar="MODULE:APP", help=HELP)]


@app.command("show")
def show_(
    reference: Reference,
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables, for a repository.")] = False,
    json: show.AsJson = False,
) -> None:
    """Show what the App declares. Needs neither broker nor settings."""
    topology = load(reference).topology
    if json:
        show.document(topology.as_json())
    elif markdown:
        show.line(topology.to_markdown())
    else:
        show.table("exchanges", ("name", "type"), [(one.name, one.kind) for one in topology.exchanges])
        arguments = [
            (one.name, ", ".join(f"{key}={value}" for key, value in one.arguments.items())) for one in topology.queues
        ]
        show.table("queues", ("name", "arguments"), arguments)
        show.table(
            "bindings", ("exchange", "routing key", "queue"),
            [(one.exchange, one.routing_key, one.queue) for one in topology.bindings],
        )  # fmt: skip


@app.command("apply")
def apply_(reference: Reference, *, json: show.AsJson = False) -> None:
    """Declare it all on the broker, as a deploy does. Safe to repeat; what stands otherwise is refused, not changed."""
    from postroad.runtime import operations

    topology = load(reference).topology
    asyncio.run(operations.apply_topology(operations.topology_settings(), topology))
    counts = {
        "exchanges": len(topology.exchanges), "queues": len(topology.queues), "bindings": len(topology.bindings),
    }  # fmt: skip
    if json:
        show.document({"applied": counts})
    else:
        show.line(f"applied {', '.join(f'{count} {kind}' for kind, count in counts.items())}")


@app.command("verify")
def verify(reference: Reference, *, json: show.AsJson = False) -> None:
    """Say what the broker lacks or has otherwise; exit code 1 where there is something.

    AMQP shows what exists; with POSTROAD_MANAGEMENT_URL bindings, arguments and exchanges are compared too.
    """
    from postroad.runtime import operations
    from postroad.transport.amqp import NOT_CHECKED

    topology, settings = load(reference).topology, operations.topology_settings()
    found = list(asyncio.run(operations.verify_topology(settings, topology)))
    if settings.management_url is not None:
        found += operations.compare_topology(settings, topology)
    note = NOT_CHECKED if settings.management_url is None else _POLICIES
    if json:
        differences = [
            {"kind": one.kind, "name": one.name, "problem": one.problem, "remedy": one.remedy} for one in found
        ]
        show.document({"differences": differences, "note": note})
    else:
        for one in found:
            show.line(one.line)
        if not found:
            show.line("every exchange and queue exists")
        sys.stderr.write(f"{note}\n")
    if found:
        raise typer.Exit(1)
