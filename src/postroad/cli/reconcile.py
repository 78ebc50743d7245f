"""``postroad reconcile``: compare an authority with its projection, look at what has drifted, and repair it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from postroad.cli import show
from postroad.cli.load import HELP, load
from postroad.cli.quarantine import By, DryRun, Yes, who
from postroad.runtime.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.reconcile.checking import Checked
    from postroad.reconcile.repairing import Picked, Repaired
    from postroad.reconcile.store import Total
    from postroad.runtime.app import App

app = typer.Typer(
    no_args_is_help=True, help="Compare what should be the same, and repair what has drifted (reconciliation, audit)."
)

_DRIFT: Final = 1
_LONGEST_WAIT: Final = 31_536_000
Reference: TypeAlias = Annotated[str | None, typer.Argument(metavar="[MODULE:APP]", help=HELP)]
Reason: TypeAlias = Annotated[str | None, typer.Option(help="Why; kept in the audit.")]


class Kind(StrEnum):
    """How a key differs."""

    MISSING = "missing"
    EXTRA = "extra"
    MISMATCHED = "mismatched"


class State(StrEnum):
    """Where a difference stands."""

    OPEN = "open"
    SUSPECTED = "suspected"
    REPAIRED = "repaired"
    RESOLVED = "resolved"


OfKind: TypeAlias = Annotated[Kind | None, typer.Option("--kind", help="Only what differs so.")]


@app.command("list")
def list_(reference: Reference = None, *, json: show.AsJson = False) -> None:
    """List the App's reconciliations and the built-in ones: when each last ran, and what has drifted."""
    from dataclasses import asdict

    from postroad.runtime import operations, reconcile_acts

    found = asyncio.run(reconcile_acts.reconciliations(operations.database_settings(), _app(reference)))
    if json:
        rows = [{**asdict(one), "row": None if one.row is None else show.plain(asdict(one.row))} for one in found]
        show.document(rows)
        return
    columns = ("name", "completed (UTC)", "compared", "missing", "extra", "mismatched", "suspected", "repaired")
    shown: list[tuple[tuple[object, ...], str]] = []
    for one in found:
        row = one.row
        if row is None:
            shown.append(((one.name, "never", "", "", "", "", "", ""), ""))
            continue
        completed = "never" if row.completed_at is None else show.moment(row.completed_at)
        counts = (row.missing, row.extra, row.mismatched, row.suspected, row.repaired)
        note = "" if row.began_at is None else f"a look that began {show.moment(row.began_at)} is not at its end"
        shown.append(((one.name, completed, row.compared, *counts), note))
    show.listing(show.count(len(found), "reconciliation"), columns, shown)


@app.command("run")
def run(
    reference: Reference = None,
    *,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only this one; repeat it.")] = None,
    settle: Annotated[
        float | None,
        typer.Option(min=0, max=_LONGEST_WAIT, metavar="SECONDS", help="Wait so long for events on their way."),
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Begin at the first key, not where the last run stopped.")
    ] = False,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Compare, wait for events on their way, and compare again. Nothing but the note of what differs is written.

    Exit code 1 where something has drifted. Ctrl-C stops it (130); the same command goes on from there.
    """
    from dataclasses import asdict

    found = asyncio.run(_run(_app(reference), only or (), settle, anew=anew, by=who(by)))
    if json:
        show.document([show.plain(asdict(one)) for one in found])
    else:
        for one in found:
            show.line(_told(one))
    if any(one.end == "stopped" for one in found):
        raise typer.Exit(int(Exit.STOPPED))
    if any(one.drift for one in found):
        raise typer.Exit(_DRIFT)


async def _run(app: App | None, only: Sequence[str], settle: float | None, *, anew: bool, by: str) -> list[Checked]:
    from postroad.cli.progress import stopping
    from postroad.runtime import operations, reconcile_acts

    wait = None if settle is None else timedelta(seconds=settle)
    with stopping() as stop, _counting() as told:
        return await reconcile_acts.run(
            operations.database_settings(), app, by=by, only=only, anew=anew, settle=wait, stop=stop, told=told
        )


def _told(one: Checked) -> str:
    end = "" if one.end == "complete" else f" ({one.end}: not at its end)"
    since = "" if one.oldest is None else f", the oldest since {show.moment(one.oldest)} UTC"
    drift = f"{one.missing} missing, {one.extra} extra, {one.mismatched} mismatched{since}" if one.drift else "no drift"
    pending = f"; {one.pending} differ and may be events on their way: run it again" if one.pending else ""
    return f"{one.name}: {one.compared} keys compared, {drift}{pending}{end}"


@app.command("drift")
def drift(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only of this reconciliation.")] = None,
    *,
    kind: OfKind = None,
    state: Annotated[State, typer.Option(help="Where they stand.")] = State.OPEN,
    fingerprints: Annotated[
        bool, typer.Option("--fingerprints", help="Show what either side says of the key.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many, oldest first.")] = 100,
    json: show.AsJson = False,
) -> None:
    """List the keys that have drifted, oldest first. It needs the database alone."""
    from dataclasses import asdict

    from postroad.runtime import operations, reconcile_acts

    rows = asyncio.run(
        reconcile_acts.drift(operations.database_settings(), name=name, kind=kind, state=state, limit=limit)
    )
    if json:
        hidden = () if fingerprints else ("expected", "found")
        show.document([{k: v for k, v in show.plain(asdict(row)).items() if k not in hidden} for row in rows])
        return
    shown = []
    for row in rows:
        told = f"expected {row.expected}, found {row.found}" if fingerprints else ""
        failed = f"repair failed: {row.failure}" if row.failure else ""
        cells = (row.id, row.reconciliation, row.kind, show.moment(row.since), row.repairs, row.key)
        shown.append((cells, "; ".join(filter(None, (told, failed)))))
    columns = ("id", "reconciliation", "kind", "since (UTC)", "repairs", "key")
    show.listing(f"{show.count(len(rows), 'key')} {state}", columns, shown)


@app.command("repair")
def repair(
    reference: Annotated[str, typer.Argument(metavar="MODULE:APP", help=HELP)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which reconciliation, from `reconcile list`.")],
    *,
    kind: OfKind = None,
    key: Annotated[str | None, typer.Option(help="Only this key.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000_000, help="At most so many keys.")] = 1000,
    reason: Reason = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Repair what has drifted, as the reconciliation declares it; counts first, and asks.

    Ctrl-C stops it after the batch at hand (130); the same command goes on with the rest. Run it again, to see that
    it helped: `postroad reconcile run`.
    """
    from dataclasses import asdict

    from postroad.cli.progress import agreed
    from postroad.reconcile.repairing import Picked
    from postroad.runtime import operations, reconcile_acts

    settings, declared = operations.database_settings(), load(reference)
    asyncio.run(reconcile_acts.check_repair(settings, declared, name))
    found = asyncio.run(reconcile_acts.preview(settings, name, kind=kind, key=key))
    count = sum(each.count for each in found)
    if dry_run and json:
        show.document({"dry_run": True, "limit": limit, "kinds": [asdict(each) for each in found]})
    elif not json:
        show.line(_previewed(found, count, limit))
    if dry_run:
        return
    if count and not yes and not agreed(f"Repair {min(count, limit)} keys?"):
        raise typer.Exit(_DRIFT)
    picked = Picked(kind=kind, key=key, limit=limit, last=max((each.last for each in found), default=0))
    done = asyncio.run(_repair(declared, name, picked, count, by=who(by), reason=reason))
    if json:
        show.document({"chosen": count, **asdict(done)})
    else:
        show.line(_done(name, done, count))
    if done.stopped:
        raise typer.Exit(int(Exit.STOPPED))
    if done.failed:
        raise typer.Exit(_DRIFT)


def _done(name: str, done: Repaired, count: int) -> str:
    left = f", {done.left} are extra and stay" if done.left else ""
    failed = f", {done.failed} failed: see `postroad reconcile drift {name}`" if done.failed else ""
    stopped = "; stopped: the same command goes on with the rest" if done.stopped else ""
    return f"repaired {done.done} of {count} keys{failed}{left}{stopped}; the next run says whether it helped"


async def _repair(app: App, name: str, picked: Picked, count: int, *, by: str, reason: str | None) -> Repaired:
    from postroad.cli.progress import progress, stopping
    from postroad.runtime import operations, reconcile_acts

    with stopping() as stop, progress("repaired", min(count, picked.limit)) as told:
        return await reconcile_acts.repair(
            operations.database_settings(), app, name, picked, by=by, reason=reason, stop=stop,
            told=lambda done: told(done.done + done.failed + done.left),
        )  # fmt: skip


def _previewed(found: Sequence[Total], count: int, limit: int) -> str:
    kinds = ", ".join(f"{each.count} {each.kind} (the oldest for {each.oldest_seconds:.0f} s)" for each in found)
    bound = f"; this run repairs {limit}" if count > limit else ""
    return f"repair: {count} keys{f': {kinds}' if kinds else ''}{bound}"


def _app(reference: str | None) -> App | None:
    return None if reference is None else load(reference)


@contextmanager
def _counting() -> Iterator[Callable[[str, int], None]]:
    """A line on standard error that counts the keys; nothing where that is no terminal."""
    import sys

    if not sys.stderr.isatty():
        yield lambda _name, _compared: None
        return
    from rich.console import Console

    with Console(stderr=True).status("comparing") as status:
        yield lambda name, compared: status.update(f"{name}: {compared} keys compared")
