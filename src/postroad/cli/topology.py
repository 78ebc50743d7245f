"""``postroad topology``."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, TypeAlias

import typer

from postroad.cli import show
from postroad.cli.load import HELP, load

app = typer.Typer(no_args_is_help=True, help="The exchanges, queues and bindings of an App on RabbitMQ.")
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
    """Say what the broker lacks, as far as AMQP shows it; exit code 1 where it lacks something."""
    from postroad.runtime import operations
    from postroad.transport.amqp import NOT_CHECKED

    topology = load(reference).topology
    lacking = asyncio.run(operations.verify_topology(operations.topology_settings(), topology))
    if json:
        differences = [
            {"kind": one.kind, "name": one.name, "problem": one.problem, "remedy": one.remedy} for one in lacking
        ]
        show.document({"differences": differences, "note": NOT_CHECKED})
    else:
        for one in lacking:
            show.line(one.line)
        if not lacking:
            show.line("every exchange and queue exists")
        sys.stderr.write(f"{NOT_CHECKED}\n")
    if lacking:
        raise typer.Exit(1)
