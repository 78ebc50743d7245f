"""``postroad quarantine``, also called ``dlq``."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from postroad.cli import show
from postroad.cli.moments import HELP, span
from postroad.errors import UsageError
from postroad.runtime.exits import Exit

if TYPE_CHECKING:
    from postroad.runtime.quarantine_acts import Done, Preview
    from postroad.work.kept import Chosen

By: TypeAlias = Annotated[
    str | None, typer.Option("--by", help="Who decides; the user of the operating system by default.")
]
Number: TypeAlias = Annotated[
    int | None, typer.Argument(metavar="[ID]", min=1, max=2**63 - 1, help="One row, from `quarantine list`.")
]
Queue: TypeAlias = Annotated[str | None, typer.Option("--queue", help="Only this consumer's (or this queue of jobs).")]
Fingerprint: TypeAlias = Annotated[
    str | None, typer.Option("--group", help="Only of this fault: a fingerprint from `quarantine groups`.")
]
Failure: TypeAlias = Annotated[str | None, typer.Option("--class", help="Only of this class of failure.")]
Code: TypeAlias = Annotated[str | None, typer.Option("--code", help="Only with this code: PR505.")]
Type: TypeAlias = Annotated[str | None, typer.Option("--type", help="Only events of this type, or jobs of this name.")]
Since: TypeAlias = Annotated[str | None, typer.Option("--since", help=f"Only what was quarantined since {HELP}.")]
Until: TypeAlias = Annotated[str | None, typer.Option("--until", help="Only what was quarantined before that.")]
Every: TypeAlias = Annotated[bool, typer.Option("--all", help="All that lies open.")]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Count it, change nothing.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]

app = typer.Typer(no_args_is_help=True, help="What is kept until a person decides: dead letters, poison messages.")

_RATE: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(?:/s)?")
_REFUSED: Final = 1
_COLUMNS: Final = ("group", "rows", "oldest (UTC)", "latest (UTC)", "class", "code", "error", "queues")


@app.command("groups")
def groups(
    *,
    queue: Queue = None,
    group: Fingerprint = None,
    failure: Failure = None,
    code: Code = None,
    event_type: Type = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, oldest first.")] = 100,
    json: show.AsJson = False,
) -> None:
    """List what lies in quarantine by fault (class, error, place in the code), oldest first, with the latest reason."""
    from dataclasses import asdict

    from postroad.runtime import operations, quarantine_acts

    chosen = _chosen(
        None, queue=queue, group=group, failure=failure, code=code, event_type=event_type, since=since, until=until
    )
    found = asyncio.run(quarantine_acts.groups(operations.database_settings(), chosen, limit=limit))
    if json:
        show.document([show.plain(asdict(one)) for one in found])
        return
    shown = [
        (
            (
                one.fingerprint, one.count, show.moment(one.oldest), show.moment(one.latest), one.failure, one.code,
                one.error_type, ", ".join(one.queues),
            ),
            one.reason,
        )
        for one in found
    ]  # fmt: skip
    show.listing(f"{show.count(len(found), 'group')}, {sum(one.count for one in found)} rows", _COLUMNS, shown)


@app.command("list")
def list_(
    *,
    queue: Queue = None,
    group: Fingerprint = None,
    failure: Failure = None,
    code: Code = None,
    event_type: Type = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, latest first.")] = 100,
    json: show.AsJson = False,
) -> None:
    """List what lies in quarantine (dead letters), latest first. Bodies are never printed."""
    from dataclasses import asdict

    from postroad.runtime import operations, quarantine_acts

    chosen = _chosen(
        None, queue=queue, group=group, failure=failure, code=code, event_type=event_type, since=since, until=until
    )
    rows = asyncio.run(quarantine_acts.rows(operations.database_settings(), chosen, limit=limit))
    if json:
        show.document([show.plain(asdict(row)) for row in rows])
        return
    shown = [
        ((row.id, show.moment(row.quarantined_at), row.kind, row.code, row.queue, row.event_type), row.reason)
        for row in rows
    ]
    show.listing(f"{len(rows)} in quarantine", ("id", "since (UTC)", "kind", "code", "queue", "type"), shown)


@app.command("show")
def show_(
    row: Annotated[int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="The row's id.")],
    *,
    payload: Annotated[bool, typer.Option("--payload", help="Also the message itself, and its headers.")] = False,
    json: show.AsJson = False,
) -> None:
    """Show one row with the history of its attempts, open or resolved. Its payload only with --payload."""
    from dataclasses import asdict

    from postroad.runtime import operations, quarantine_acts

    found = asyncio.run(quarantine_acts.row(operations.database_settings(), row, payload=payload))
    fields = {**show.plain(asdict(found)), **show.payload(found.body)}
    if not payload:
        del fields["headers"]
    if json:
        show.document(fields)
    else:
        show.fields(fields)


@app.command("retry")
def retry(
    row: Number = None,
    *,
    queue: Queue = None,
    group: Fingerprint = None,
    failure: Failure = None,
    code: Code = None,
    event_type: Type = None,
    since: Since = None,
    until: Until = None,
    every: Every = False,
    rate: Annotated[str | None, typer.Option(help="At most so many a second: 500/s.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Release (redrive) one row, a group or a choice, once what was wrong is put right (a consumer's upgrade).

    A delivery becomes a retry of its consumer and runs as a first delivery does, with a fresh budget, and a job a new
    row of its queue; an event that the broker refused goes back into the outbox. Identity and bytes stay; what was
    handled already is not handled again. More than one row are counted and asked about, and go in the order in which
    they were quarantined. Ctrl-C stops within a second (exit code 130); the same command goes on with the rest.
    """
    from dataclasses import asdict

    from postroad.runtime import operations

    chosen = _chosen(
        row, queue=queue, group=group, failure=failure, code=code, event_type=event_type, since=since, until=until
    )
    if row is None or dry_run or chosen.given.keys() != {"id"}:
        _retry_all(chosen, every=every, rate=per_second(rate), dry_run=dry_run, yes=yes, by=who(by), as_json=json)
        return
    done = asyncio.run(operations.retry(operations.database_settings(), row, by=who(by)))
    if json:
        show.document(asdict(done))
    else:
        show.line(f"row {done.id} of {done.queue}: released to the {done.to} as {done.number}, by {done.by}")


@app.command("discard")
def discard(
    row: Number = None,
    *,
    reason: Annotated[str, typer.Option(help="Why it is not needed; it is kept.")],
    queue: Queue = None,
    group: Fingerprint = None,
    failure: Failure = None,
    code: Code = None,
    event_type: Type = None,
    since: Since = None,
    until: Until = None,
    every: Every = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Give rows up: one, a group, or a choice. They are never tried again, and shown for 90 days more."""
    from postroad.runtime import operations, quarantine_acts

    quarantine_acts.check_reason(reason)
    chosen = _chosen(
        row, queue=queue, group=group, failure=failure, code=code, event_type=event_type, since=since, until=until
    )
    quarantine_acts.refuse_effects(chosen, quarantine_acts.NOT_GIVEN_UP)
    found = _previewed(chosen, every=every)
    if not _agreed("discard", found, dry_run=dry_run, yes=yes or row is not None, as_json=json):
        return
    done = asyncio.run(
        quarantine_acts.discard(
            operations.database_settings(), chosen, last=found.last, by=who(by), reason=reason
        )
    )  # fmt: skip
    _tell("discarded", found, done, as_json=json)


def _retry_all(
    chosen: Chosen, *, every: bool, rate: float | None, dry_run: bool, yes: bool, by: str, as_json: bool
) -> None:  # fmt: skip
    found = _previewed(chosen, every=every)
    if not _agreed("release", found, dry_run=dry_run, yes=yes, as_json=as_json):
        return
    done = asyncio.run(_watched(chosen, found, rate=rate, by=by))
    _tell("released", found, done, as_json=as_json)
    if done.stopped:
        raise typer.Exit(Exit.STOPPED)


async def _watched(chosen: Chosen, found: Preview, *, rate: float | None, by: str) -> Done:
    from postroad.cli.progress import progress, stopping
    from postroad.runtime import operations, quarantine_acts

    settings = operations.database_settings()
    with stopping() as stop, progress("released", found.count) as told:
        return await quarantine_acts.retry(
            settings, chosen, last=found.last, by=by, rate=rate, stop=stop,
            told=lambda done: told(done.done + done.left),
        )  # fmt: skip


def _previewed(chosen: Chosen, *, every: bool) -> Preview:
    from postroad.runtime import operations, quarantine_acts

    if not chosen.given and not every:
        raise UsageError("PR107", "say which rows: an ID, --group, another option that chooses, or --all")
    found = asyncio.run(quarantine_acts.preview(operations.database_settings(), chosen))
    if not found.count and chosen.id is not None:
        raise UsageError("PR112", f"there is no open row {chosen.id} in quarantine; see `postroad quarantine list`")
    return found


def _agreed(verb: str, found: Preview, *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Show what would be done; whether to do it. Without anybody to ask, --yes must be said."""
    from dataclasses import asdict

    from postroad.cli.progress import agreed

    if dry_run and as_json:
        show.document({"dry_run": True, **asdict(found)})
    elif not as_json:
        stay = f"; {found.unreleasable} have no key and cannot be released" if found.unreleasable else ""
        oldest = f", the oldest for {found.oldest_seconds:.0f} s" if found.count else ""
        show.line(f"{verb}: {found.count} rows{oldest}{stay}")
        for each in found.queues:
            show.line(f"  {show.safe(each.queue)}: {each.count}, the oldest for {each.oldest_seconds:.0f} s")
    if dry_run:
        return False
    if found.count and not yes and not agreed(f"{verb.capitalize()} {found.count} rows?"):
        raise typer.Exit(_REFUSED)
    return True


def _tell(verb: str, found: Preview, done: Done, *, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        show.document({"chosen": found.count, **asdict(done)})
        return
    left = f"; {done.left} stay: no key, a row of work is open for their key, or the log holds them no more"
    stopped = "; stopped: the same command goes on with the rest" if done.stopped else ""
    show.line(f"{verb} {done.done} of {found.count} rows{left if done.left else ''}{stopped}")


def _chosen(
    row: int | None, *, queue: str | None, group: str | None, failure: str | None, code: str | None,
    event_type: str | None, since: str | None, until: str | None,
) -> Chosen:  # fmt: skip
    from postroad.failures import FailureClass
    from postroad.work.kept import Chosen

    if failure is not None and failure not in (known := [str(one) for one in FailureClass]):
        raise UsageError("PR107", f"--class {failure!r} is no class of failure; it is one of {', '.join(known)}")
    begin, end = span(("--since", "--until"), since, until)
    return Chosen(
        id=row, queue=queue, fingerprint=group, failure=failure, code=code, event_type=event_type,
        since=begin, until=end,
    )  # fmt: skip


def per_second(text: str | None) -> float | None:
    """The rate that `text` means, as `--rate` takes it; None where there is none.

    Raises:
        UsageError: PR107, it is no rate.
    """
    if text is None:
        return None
    found = _RATE.fullmatch(text)
    if found is None or float(found[1]) <= 0:
        raise UsageError("PR107", f"--rate {text!r} is not a rate; write 500/s")
    return float(found[1])


def who(by: str | None) -> str:
    """Whom an act is recorded under: on one line, and without what cannot be written."""
    return " ".join((by or user()).split()).encode("utf-8", "replace").decode()


def user() -> str:
    """Who runs this command, as the operating system says."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"
