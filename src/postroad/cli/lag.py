"""``postroad lag``: how far each consumer is behind."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from postroad.cli import show
from postroad.cli.load import HELP, load


def lag(
    reference: Annotated[str, typer.Argument(metavar="MODULE:APP", help=HELP)],
    *,
    json: show.AsJson = False,
) -> None:
    """Show how many events are still to come for each consumer, and how long the latest ones took (projection lag).

    Still to come is what waits in the outbox, in the consumer's queue, and in work for another attempt; `-` is what
    cannot be seen from here, as the outbox of another service.
    """
    from dataclasses import asdict

    from postroad.runtime import operations, reconcile_acts

    app = load(reference)
    settings = operations.bound_settings() if app.declarations.events else operations.database_settings()
    found = asyncio.run(reconcile_acts.lags(settings, app))
    if json:
        show.document([{**asdict(one), "to_come": one.to_come} for one in found])
        return
    columns = ("consumer", "to come", "outbox", "queue", "work", "quarantined", "oldest s", "median s", "longest s")
    rows = []
    for one in found:
        seconds = (one.oldest_seconds, one.median_seconds, one.longest_seconds)
        counts = (one.to_come, one.outbox, one.queue, one.work, one.quarantined)
        cells = (
            "-" if each is None else f"{each:.2f}" if isinstance(each, float) else each for each in counts + seconds
        )
        rows.append(((one.consumer, *cells), ""))
    show.listing(show.count(len(rows), "consumer"), columns, rows)
