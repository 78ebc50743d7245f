"""``postroad audit``."""

from __future__ import annotations

import asyncio
import json as jsons
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli import show
from postroad.cli.moments import HELP, moment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from postroad.audit import Entry


def audit(
    *,
    subject: Annotated[str | None, typer.Option(help="Only of this: a queue, a lease, a row's number.")] = None,
    act: Annotated[str | None, typer.Option(help="Only this act: queue.pause; or all that begin so: queue.")] = None,
    by: Annotated[str | None, typer.Option(help="Only by this person.")] = None,
    since: Annotated[str | None, typer.Option(help=f"Only since: {HELP}.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, latest first.")] = 100,
    json: show.AsJson = False,
) -> None:
    """List what operators did: who, what, to what, when and why; latest first. It is kept for ever."""
    from dataclasses import asdict

    from postroad.audit import Chosen
    from postroad.runtime import operations

    chosen = Chosen(subject=subject, act=act, by=by, since=moment("--since", since))
    found = asyncio.run(operations.recorded(operations.database_settings(), chosen, limit=limit))
    if json:
        show.document([show.plain(asdict(one)) for one in found])
        return
    rows = [((show.moment(one.at), one.by, one.act, one.items, one.subject), _told(one)) for one in found]
    show.listing(show.count(len(found), "act"), ("at (UTC)", "by", "act", "items", "subject"), rows)


def _told(entry: Entry) -> str:
    parts = [f"{name} {_plain(value)}" for name, value in (("was", entry.before), ("now", entry.after)) if value]
    return "; ".join([*([f"because: {entry.reason}"] if entry.reason else []), *parts])


def _plain(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={jsons.dumps(value, ensure_ascii=False)}" for name, value in fields.items())
