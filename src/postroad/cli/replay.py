"""``postroad replay``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias
from uuid import UUID

import typer

from postroad.cli import show
from postroad.cli.moments import HELP, span
from postroad.cli.quarantine import By, DryRun, Yes, per_second, who
from postroad.errors import UsageError
from postroad.runtime.exits import Exit

if TYPE_CHECKING:
    from typing import Any

    from postroad.outbox.replay import Chosen, Replay
    from postroad.runtime.replay_acts import Inbox, Preview
    from postroad.runtime.settings import Settings

Ids: TypeAlias = Annotated[list[str] | None, typer.Option("--id", help="Only this event; may be repeated.")]
Types: TypeAlias = Annotated[list[str] | None, typer.Option("--type", help="Only this type; may be repeated.")]
Versions: TypeAlias = Annotated[
    list[int] | None, typer.Option("--version", min=1, max=2**31 - 1, help="Only this version of it.")
]
Keys: TypeAlias = Annotated[list[str] | None, typer.Option("--key", help="Only events of this key; may be repeated.")]
Story: TypeAlias = Annotated[str | None, typer.Option("--correlation", help="Only events of this correlation.")]
Since: TypeAlias = Annotated[str | None, typer.Option("--since", help=f"Only what was staged since {HELP}.")]
Until: TypeAlias = Annotated[str | None, typer.Option("--until", help="Only what was staged before that.")]
OccurredSince: TypeAlias = Annotated[str | None, typer.Option(help="Only what occurred since then.")]
OccurredUntil: TypeAlias = Annotated[str | None, typer.Option(help="Only what occurred before that.")]
Every: TypeAlias = Annotated[bool, typer.Option("--all", help="All that the log holds.")]
To: TypeAlias = Annotated[str | None, typer.Option("--to", help="To this consumer alone.")]
ToAll: TypeAlias = Annotated[bool, typer.Option("--to-all", help="To everyone who is bound, as at first.")]
Rate: TypeAlias = Annotated[str | None, typer.Option(help="At most so many a second: 500/s.")]
Reason: TypeAlias = Annotated[str | None, typer.Option(help="Why; it is kept.")]
Follow: TypeAlias = Annotated[bool, typer.Option("--follow", help="Wait until it has ended, and show how far it is.")]
Number: TypeAlias = Annotated[int, typer.Argument(metavar="NUMBER", min=1, max=2**63 - 1, help="From `replay list`.")]

app = typer.Typer(no_args_is_help=True, help="Send events of the log again (redrive, resend), as the same events.")

_REFUSED: Final = 1
_LOOK: Final = 0.5
_COLUMNS: Final = ("number", "state", "sent", "of", "to", "started (UTC)", "by")


@app.command("start")
def start(
    *,
    id: Ids = None,  # noqa: A002 - the option's name
    event_type: Types = None,
    version: Versions = None,
    key: Keys = None,
    correlation: Story = None,
    since: Since = None,
    until: Until = None,
    occurred_since: OccurredSince = None,
    occurred_until: OccurredUntil = None,
    every: Every = False,
    to: To = None,
    to_all: ToAll = False,
    rate: Rate = None,
    reason: Reason = None,
    hold: Annotated[bool, typer.Option("--hold", help="Do not send yet: `replay resume` does.")] = False,
    follow: Follow = False,
    consumer_database: Annotated[
        str | None, typer.Option(help="Where the consumer's inbox is, to count there.")
    ] = None,
    consumer_schema: Annotated[str, typer.Option(help="The schema of Postroad's tables there.")] = "postroad",
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Send events of the log again, with the ids and bytes that they had, to one consumer or to all.

    They are counted first, and asked about. A process of the role dispatch sends them, beside live traffic and in the
    order in which they were staged. What a consumer has handled it ignores; see `replay rehandle`.
    """
    chosen = _chosen(
        id, types=event_type, versions=version, keys=key, correlation=correlation, times=(since, until),
        occurred=(occurred_since, occurred_until),
    )  # fmt: skip
    if not chosen.given and not every:
        raise UsageError("PR107", "say which events: --since, --type, --id, another option that chooses, or --all")
    if (to is None) == (not to_all):
        raise UsageError("PR107", "say who gets them: --to CONSUMER, or --to-all")
    _start(
        chosen, to, rate=per_second(rate), reason=reason, hold=hold, follow=follow, dry_run=dry_run, yes=yes,
        by=who(by), as_json=json, inbox=(consumer_database, consumer_schema),
    )  # fmt: skip


@app.command("list")
def list_(
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, latest first.")] = 100,
    json: show.AsJson = False,
) -> None:
    """List the replays of this database, latest first: how far they are, and what they wait for."""
    from postroad.runtime import operations, replay_acts

    found = asyncio.run(replay_acts.replays(operations.database_settings(), limit=limit))
    if json:
        show.document([_plain(one) for one in found])
        return
    rows = [
        (
            (one.number, one.state, one.sent - one.waiting, one.total - one.redacted, one.target or "everyone",
             show.moment(one.started_at), one.by),
            f"waits: {one.trouble}" if one.trouble else one.reason,
        )
        for one in found
    ]  # fmt: skip
    show.listing(show.count(len(found), "replay"), _COLUMNS, rows)


@app.command("show")
def show_(number: Number, *, follow: Follow = False, json: show.AsJson = False) -> None:
    """Show one replay: what was chosen, how far it is, and what it waits for."""
    from postroad.runtime import operations, replay_acts

    settings = operations.database_settings()
    if follow:
        _follow(settings, number, as_json=json)
        return
    _tell(asyncio.run(replay_acts.show(settings, number)), as_json=json)


@app.command("stop")
def stop(
    number: Number, *, reason: Reason = None, by: By = None, json: show.AsJson = False
) -> None:  # fmt: skip
    """Stop a replay, within a second. `replay resume` lets it go on; for a week the log keeps what it needs."""
    from postroad.runtime import operations, replay_acts

    done = replay_acts.stop(operations.database_settings(), number, by=who(by), reason=reason)
    _tell(asyncio.run(done), as_json=json)


@app.command("resume")
def resume(
    number: Number, *, rate: Rate = None, reason: Reason = None, by: By = None, json: show.AsJson = False
) -> None:  # fmt: skip
    """Let a replay go on that was stopped, or started with --hold."""
    from postroad.runtime import operations, replay_acts

    done = replay_acts.resume(
        operations.database_settings(), number, by=who(by), rate=per_second(rate), reason=reason
    )  # fmt: skip
    _tell(asyncio.run(done), as_json=json)


@app.command("rehandle")
def rehandle(
    replay: Annotated[str, typer.Argument(metavar="REPLAY", help="Its id; its number where it is of this database.")],
    *,
    consumer: Annotated[str, typer.Option(help="The consumer that runs its events again.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Let a consumer run the events of a replay again although it has handled them: a projection that is rebuilt.

    Run it on the consumer's database, before the replay is sent (`replay start --hold`). With each event its mark in
    the inbox goes, and the guard of its key is set back.
    """
    from dataclasses import asdict

    from postroad.cli.progress import agreed
    from postroad.runtime import operations, replay_acts

    settings, by_whom = operations.database_settings(), who(by)
    if dry_run or not yes:
        found = asyncio.run(
            replay_acts.rehandle(settings, replay, consumer=consumer, by=by_whom, reason=reason, dry_run=True)
        )
        count = "an unknown number" if found.handled is None else str(found.handled)
        if json and dry_run:
            show.document({"dry_run": True, **asdict(found)})
        elif not json:
            show.line(f"{show.safe(consumer)} runs replay {found.replay} again: {count} of its events have a mark now")
        if dry_run:
            return
        if not agreed("Let it?"):
            raise typer.Exit(_REFUSED)
    done = asyncio.run(replay_acts.rehandle(settings, replay, consumer=consumer, by=by_whom, reason=reason))
    if json:
        show.document({"dry_run": False, **asdict(done)})
    else:
        show.line(f"{show.safe(consumer)} {'runs' if done.new else 'already runs'} replay {done.replay} again")


# --- within -------------------------------------------------------------------------------------------------------


def _start(
    chosen: Chosen, to: str | None, *, rate: float | None, reason: str | None, hold: bool, follow: bool, dry_run: bool,
    yes: bool, by: str, as_json: bool, inbox: tuple[str | None, str],
) -> None:  # fmt: skip
    from postroad.runtime import operations, replay_acts

    if reason is None and not dry_run:
        raise UsageError("PR107", "say why, with --reason")
    settings = operations.bound_settings()
    where = None if inbox[0] is None else replay_acts.Inbox(inbox[0], inbox[1])
    chosen, found = asyncio.run(_previewed(settings, chosen, to, where))
    if found.count or dry_run:
        _preview(found, to, dry_run=dry_run, as_json=as_json)
    if dry_run:
        return
    if found.count and not yes:
        from postroad.cli.progress import agreed

        if not agreed(f"Send {found.count} events to {to or 'everyone'}?"):
            raise typer.Exit(_REFUSED)
    made = asyncio.run(
        replay_acts.start(
            settings, chosen, target=to, by=by, reason=reason or "", rate=rate or replay_acts.RATE, held=hold
        )
    )
    if follow and not hold:
        if not as_json:
            show.line(f"replay {made.number} runs; Ctrl-C stops following it, not the replay")
        _follow(settings, made.number, as_json=as_json)
    else:
        _tell(made, as_json=as_json)


async def _previewed(
    settings: Settings, chosen: Chosen, to: str | None, inbox: Inbox | None
) -> tuple[Chosen, Preview]:  # fmt: skip
    from postroad.runtime import replay_acts

    chosen = await replay_acts.narrowed(settings, chosen, to)
    return chosen, await replay_acts.preview(settings, chosen, target=to, inbox=inbox)


def _preview(found: Preview, to: str | None, *, dry_run: bool, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        if dry_run:
            types = [show.plain(asdict(one)) for one in found.types]
            dropped = [show.plain(asdict(one)) for one in found.dropped]
            show.document({"dry_run": True, **show.plain(asdict(found)), "types": types, "dropped": dropped})
        return
    since = "" if found.oldest is None else f", staged from {show.moment(found.oldest)} on (UTC)"
    erased = f"; {found.redacted} are erased and passed over" if found.redacted else ""
    show.line(f"replay to {show.safe(to or 'everyone')}: {show.count(found.count, 'event')}{since}{erased}")
    for one in found.types:
        show.line(f"  {one.type} version {one.version}: {one.count}")
    for days in found.dropped:
        span = f"{days.first}" if days.count == 1 else f"{days.first} to {days.last}"
        show.line(f"  gone: {show.count(days.count, 'day')} ({span}) of events that are kept for {days.kept_days} days")
    if found.handled is not None:
        past = f", {found.past} quarantined: it no longer remembers whether it handled them" if found.past else ""
        show.line(f"  {found.handled} of them would be ignored as handled{past}")
    elif to is not None:
        show.line("  how many it would ignore as handled is not known here; give --consumer-database")


def _tell(one: Replay, *, as_json: bool) -> None:
    if as_json:
        show.document(_plain(one))
        return
    what = {"running": "runs", "stopped": "is stopped", "done": "is done"}[one.state]
    erased = f", {one.redacted} erased ones passed over" if one.redacted else ""
    sent = f"{one.sent - one.waiting} of {one.total - one.redacted} sent to {show.safe(one.target or 'everyone')}"
    show.line(f"replay {one.number} {what}: {sent}{erased}, at {one.rate:g}/s; its deliveries carry {one.id}")
    if one.trouble:
        show.line(f"  waits: {one.refused} are refused: {show.safe(one.trouble)}")


def _plain(one: Replay) -> dict[str, Any]:
    from dataclasses import asdict

    return {**show.plain(asdict(one)), "id": str(one.id), "chosen": one.chosen.given}


def _follow(settings: Settings, number: int, *, as_json: bool) -> None:
    one, stopped = asyncio.run(_followed(settings, number))
    _tell(one, as_json=as_json)
    if stopped:
        raise typer.Exit(Exit.STOPPED)


async def _followed(settings: Settings, number: int) -> tuple[Replay, bool]:
    """The replay when it has ended, or as it is when somebody no longer waits for that."""
    from postroad.cli.progress import progress, stopping
    from postroad.runtime import replay_acts

    one = await replay_acts.show(settings, number)
    with stopping() as leave, progress("sent", one.total - one.redacted) as told:
        while one.state == "running" and not leave.is_set():
            told(one.sent - one.waiting)
            try:
                async with asyncio.timeout(_LOOK):
                    await leave.wait()
            except TimeoutError:
                one = await replay_acts.show(settings, number)
        return one, leave.is_set()


def _chosen(
    ids: list[str] | None, *, types: list[str] | None, versions: list[int] | None, keys: list[str] | None,
    correlation: str | None, times: tuple[str | None, str | None], occurred: tuple[str | None, str | None],
) -> Chosen:  # fmt: skip
    from postroad.outbox.replay import Chosen

    since, until = span(("--since", "--until"), *times)
    occurred_since, occurred_until = span(("--occurred-since", "--occurred-until"), *occurred)
    return Chosen(
        ids=[_id(one) for one in ids] if ids else None, types=types or None, versions=versions or None,
        keys=keys or None, correlation=correlation, since=since, until=until,
        occurred_since=occurred_since, occurred_until=occurred_until,
    )  # fmt: skip


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise UsageError("PR107", f"--id {text[:60]!r} is not the id of an event: a UUID") from None
