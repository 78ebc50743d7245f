"""``postroad catalog``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli import show
from postroad.cli.load import HELP, load

if TYPE_CHECKING:
    from collections.abc import Mapping

app = typer.Typer(no_args_is_help=True, help="The events of an App: what it publishes and what it reads.")


@app.callback()
def _group() -> None:
    """Keep the group a group."""


@app.command("show")
def show_(
    reference: Annotated[str, typer.Argument(metavar="MODULE:APP", help=HELP)], *, json: show.AsJson = False
) -> None:
    """Show every event type with its versions, fields and promises, and every subscription. Needs nothing running."""
    from postroad.events import Catalog

    declared = load(reference).declarations
    subscriptions = [item for consumer in declared.consumers for item in consumer.subscriptions]
    content = Catalog.of(declared.producers, subscriptions).as_json()
    if json:
        show.document(content)
        return
    for event in content["events"]:
        kept = "for ever" if event["retention_days"] is None else f"{event['retention_days']} days"
        promises = f"kept {kept}, {event['compatibility']}, subscribers {event['subscribers']}"
        _fields(f"{event['type']} v{event['version']}: {event['description']} ({promises})", event)
    for reads in content["subscriptions"]:
        _fields(f"reads {reads['type']} v{reads['version']} as {reads['model']}", reads)


def _fields(title: str, content: Mapping[str, Any]) -> None:
    rows = [
        (field["name"], field["type"], "yes" if field["required"] else "no", field["description"])
        for field in content["fields"]
    ]
    show.table(title, ("field", "type", "required", "description"), rows)
