"""``postroad topology``."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Final, TypeAlias

import typer

from postroad.cli import show
from postroad.cli.load import HELP, load
from postroad.cli.quarantine import who

app = typer.Typer(
    no_args_is_help=True, help="What an App needs of its transport: exchanges, queues and bindings, or subscriptions."
)
_POLICIES: Final = "not checked: policies, time-outs and rights; see `postroad doctor`"
_NO_BROKER: Final = "compared with the subscriptions in the database; there is no broker"
Reference: TypeAlias = Annotated[str, typer.Argument(metavar="MODULE:APP", help=HELP)]


@app.command("show")
def show_(
    reference: Reference,
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables, for a repository.")] = False,
    json: show.AsJson = False,
) -> None:
    """Show what the App declares. Needs neither broker nor settings.

    With POSTROAD_BROKER_URL=postgres: the text shows the consumers' subscriptions: there are no exchanges.
    """
    import os

    from postroad.runtime.settings import is_postgres

    topology = load(reference).topology
    if json:
        show.document(topology.as_json())
    elif markdown:
        show.line(topology.to_markdown())
    elif is_postgres(os.environ.get("POSTROAD_BROKER_URL", "").strip()):
        from postroad.transport.postgres.transport import subscriptions_in

        show.table("subscriptions", ("consumer", "event type"), sorted(subscriptions_in(topology)))
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
    """Declare it all, as a deploy does. Safe to repeat; what stands otherwise on a broker is refused, not changed.

    With POSTROAD_BROKER_URL=postgres: the consumers subscribe to what the App declares, and to nothing else. With
    POSTROAD_DATABASE_URL set the act is in the audit of that database.
    """
    from postroad.runtime import operations
    from postroad.runtime.settings import is_postgres
    from postroad.transport.postgres.transport import subscriptions_in

    topology, settings = load(reference).topology, operations.topology_settings()
    unrecorded = asyncio.run(operations.apply_topology(settings, topology, by=who(None)))
    counts = {
        "exchanges": len(topology.exchanges), "queues": sum(one.owned for one in topology.queues),
        "bindings": len(topology.bindings),
    }  # fmt: skip
    if is_postgres(settings.broker_url):
        counts = {"subscriptions": len(subscriptions_in(topology))}
    if json:
        show.document({"applied": counts})
    else:
        show.line(f"applied {', '.join(f'{count} {kind}' for kind, count in counts.items())}")
    if unrecorded is not None:
        sys.stderr.write(f"not in the audit: {unrecorded}\n")


@app.command("verify")
def verify(reference: Reference, *, json: show.AsJson = False) -> None:
    """Say what the transport lacks or has otherwise; exit code 1 where there is something.

    AMQP shows what exists; with POSTROAD_MANAGEMENT_URL bindings, arguments and exchanges are compared too.
    """
    from postroad.runtime import operations
    from postroad.runtime.settings import is_postgres
    from postroad.transport.amqp import NOT_CHECKED

    topology, settings = load(reference).topology, operations.topology_settings()
    found = list(asyncio.run(operations.verify_topology(settings, topology)))
    without_broker = is_postgres(settings.broker_url)
    if settings.management_url is not None and not without_broker:
        found += operations.compare_topology(settings, topology)
    note = _NO_BROKER if without_broker else NOT_CHECKED if settings.management_url is None else _POLICIES
    if json:
        differences = [
            {"kind": one.kind, "name": one.name, "problem": one.problem, "remedy": one.remedy} for one in found
        ]
        show.document({"differences": differences, "note": note})
    else:
        for one in found:
            show.line(one.line)
        if not found:
            show.line("every subscription stands" if without_broker else "every exchange and queue exists")
        sys.stderr.write(f"{note}\n")
    if found:
        raise typer.Exit(1)


@app.command("retire")
def retire(
    consumer: Annotated[str, typer.Argument(metavar="CONSUMER", help="The name of a consumer that is gone for good.")],
    *,
    json: show.AsJson = False,
) -> None:
    """End the subscriptions of a consumer that is gone, and drop what waits for it. Over PostgreSQL alone.

    Else events would be kept for it for ever. The log keeps them all the same, for as long as their retention says.
    """
    from postroad.runtime import operations

    ended, dropped = asyncio.run(operations.retire_consumer(operations.topology_settings(), consumer, by=who(None)))
    if json:
        show.document({"consumer": consumer, "subscriptions": ended, "deliveries": dropped})
    else:
        show.line(f"{consumer}: {ended} subscriptions ended, {dropped} waiting deliveries dropped")
