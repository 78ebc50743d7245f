"""``postroad catalog``."""

from __future__ import annotations

import json as documents
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from postroad.cli import show
from postroad.cli.load import HELP, load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroad.events import Catalog
    from postroad.events.exported import Exported

app = typer.Typer(no_args_is_help=True, help="The events of an App: what it publishes and what it reads.")
_STDOUT: Final = "-"
_MADE: Final = "Made by `postroad catalog import`"
Reference: TypeAlias = Annotated[str, typer.Argument(metavar="MODULE:APP", help=HELP)]


@app.command("show")
def show_(reference: Reference, *, json: show.AsJson = False) -> None:
    """Show every event type with its versions, fields and promises, and every subscription. Needs nothing running."""
    content = _catalog(reference).as_json()
    if json:
        show.document(content)
        return
    for event in content["events"]:
        kept = "for ever" if event["retention_days"] is None else f"{event['retention_days']} days"
        promises = f"kept {kept}, {event['compatibility']}, subscribers {event['subscribers']}"
        _fields(f"{event['type']} v{event['version']}: {event['description']} ({promises})", event)
    for reads in content["subscriptions"]:
        _fields(f"reads {reads['type']} v{reads['version']} as {reads['model']}", reads)


@app.command("export")
def export(
    reference: Reference,
    *,
    json: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write it there; without it, print it.")
    ] = _STDOUT,
    since: Annotated[
        str | None, typer.Option(metavar="FILE", help="The export before, whose removed names go on; by default FILE.")
    ] = None,
) -> None:
    """Write the file that others read events by (`catalog import`) and changes are checked against (`catalog check`).

    It remembers the names and versions that went since the export before. Keep it in the repository. Needs nothing
    running.
    """
    from postroad.events.exported import exported

    catalog = _catalog(reference)
    before = since or (json if json != _STDOUT and Path(json).exists() else None)
    content = exported(catalog, since=None if before is None else _exported(before))
    if json == _STDOUT:
        show.document(content)
        return
    _write(Path(json), documents.dumps(content, indent=1) + "\n")
    show.line(
        f"{json}: {show.count(len(catalog.events), 'event')}, {show.count(len(catalog.subscriptions), 'subscription')}"
    )


@app.command("import")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What another service exported.")],
    *,
    out: Annotated[str, typer.Option(metavar="MODULE.py", help="Write it there; without it, print it.")] = _STDOUT,
    only: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only this type; repeatable.")
    ] = None,
) -> None:
    """Write a Python module that reads the events of another service: a subscription and models for each type.

    The models ignore what they do not name. The latest version of each type is read.
    """
    from postroad.errors import UsageError
    from postroad.events.importing import module_of

    events = _exported(file).events
    unknown = sorted({*(only or ())} - {event.type for event in events})
    if unknown:
        raise UsageError("PR107", f'{file!r} holds no {", ".join(unknown)}; see its "events"')
    wanted = [event for event in events if not only or event.type in only]
    text = module_of(wanted)
    if out == _STDOUT:
        show.line(text.rstrip("\n"))
        return
    if Path(out).exists() and _MADE not in Path(out).read_text(errors="replace"):
        raise UsageError("PR107", f"{out!r} was not made by this command; give another --out")
    _write(Path(out), text)
    show.line(f"{out}: {show.count(len({event.type for event in wanted}), 'subscription')}")


@app.command("check")
def check_(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The catalog as it was exported.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="As it is to be: another file, or MODULE:APP.")],
    *,
    json: show.AsJson = False,
) -> None:
    """Say what a new catalog would break of an old one: whose data, and how to mend it. Exit code 1 where it breaks.

    Warnings do not fail it. Needs nothing running.
    """
    from postroad.events.contracts import Severity, check

    before = _exported(old)
    found = check(before, _exported(new, since=before))
    broken = [one for one in found if one.severity is Severity.BREAK]
    if json:
        show.document({"compatible": not broken, "findings": [one.as_json() for one in found]})
    else:
        for one in found:
            show.line(show.safe(one.line))
        show.line(f"{show.count(len(broken), 'break')}" if broken else "compatible")
    if broken:
        raise typer.Exit(1)


@app.command("golden")
def golden(
    reference: Reference,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Structured CloudEvents, a *.json file each.")],
    *,
    json: show.AsJson = False,
) -> None:
    """Read kept envelopes of every published version with the models and upcasts of today. Exit code 1 where one fails.

    Needs nothing running.
    """
    from postroad.errors import UsageError
    from postroad.events.golden import read_golden

    files = {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.json"))}
    if not files:
        raise UsageError("PR107", f"folder {folder!r} holds no *.json; keep an envelope of every version there")
    found = read_golden(files, _catalog(reference))
    wrong = [one for one in found if one.problem]
    if json:
        show.document({"read": len(found) - len(wrong), "problems": [asdict(one) for one in wrong]})
    else:
        for one in wrong:
            reader = f" by {one.reader}" if one.reader else ""
            show.line(show.safe(f"{one.name or folder}: {one.type} v{one.version}{reader}: {one.problem}"))
        show.line(f"{show.count(len(found) - len(wrong), 'reading')} well, {show.count(len(wrong), 'problem')}")
    if wrong:
        raise typer.Exit(1)


def _catalog(reference: str) -> Catalog:
    from postroad.events import Catalog

    declared = load(reference).declarations
    subscriptions = [item for consumer in declared.consumers for item in consumer.subscriptions]
    return Catalog.of(declared.producers, subscriptions)


def _exported(name: str, *, since: Exported | None = None) -> Exported:
    """A file, or, where `since` is given, an App."""
    from postroad.errors import UsageError
    from postroad.events.exported import exported, read_exported, read_values

    if since is not None and ":" in name and not Path(name).exists():
        return read_values(exported(_catalog(name), since=since), name)
    try:
        return read_exported(Path(name).read_text(encoding="utf-8"), name)
    except OSError as error:
        raise UsageError("PR107", f"{name!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError("PR107", f"{name!r} is not UTF-8, so no exported catalog") from None


def _write(path: Path, text: str) -> None:
    from postroad.errors import UsageError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError("PR107", f"{str(path)!r} cannot be written: {error.strerror}") from error


def _fields(title: str, content: Mapping[str, Any]) -> None:
    rows = [
        (field["name"], field["type"], "yes" if field["required"] else "no", field["description"])
        for field in content["fields"]
    ]
    show.table(title, ("field", "type", "required", "description"), rows)
