"""``postroad effects``: acts outside the database, and what people say about those whose outcome nobody knows."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from postroad.cli import show
from postroad.cli.quarantine import By, who

if TYPE_CHECKING:
    from postroad.effects.operate import Changed, Listed
    from postroad.effects.outcome import Outcome

app = typer.Typer(no_args_is_help=True, help="Acts outside the database (side effects), and outcomes nobody knows.")

_ID: Final = typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="The effect's number, from `effects list`.")
_WHY: Final = typer.Option(help="Why; kept in the audit.")


class State(StrEnum):
    """The states of an effect."""

    INTENDED = "intended"
    SENT = "sent"
    SUCCEEDED = "succeeded"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    RECONCILING = "reconciling"
    NOT_FOUND = "not_found"
    MANUAL = "manual"


class Became(StrEnum):
    """What a person found out."""

    DONE = "done"
    REFUSED = "refused"
    ABSENT = "absent"


@app.command("list")
def list_(
    *,
    name: Annotated[str | None, typer.Option(help="Only effects of this name.")] = None,
    state: Annotated[State | None, typer.Option(help="Only in this state.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those whose outcome is known.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, latest first.")] = 100,
    json: show.AsJson = False,
) -> None:
    """List effects without an outcome, latest first. Commands are never printed."""
    from dataclasses import asdict

    from postroad.runtime import effect_acts, operations

    which = None if state is None else str(state)
    settings = operations.database_settings()
    found = asyncio.run(effect_acts.effects(settings, name=name, state=which, everything=everything, limit=limit))
    if json:
        show.document([show.plain(asdict(one)) for one in found])
        return
    columns = ("id", "state", "attempts", "look-ups", "since (UTC)", "effect", "key")
    show.listing(show.count(len(found), "effect"), columns, [(_line(one), one.reason or "") for one in found])


def _line(one: Listed) -> tuple[object, ...]:
    since = show.moment(one.finished_at or one.sent_at or one.intended_at)
    return one.id, one.state, one.attempt, one.looks, since, one.name, one.key


@app.command("show")
def show_(effect: Annotated[int, _ID], *, json: show.AsJson = False) -> None:
    """Show one effect, with every look-up of it and what people said. Its command is never printed."""
    from dataclasses import asdict

    from postroad.runtime import effect_acts, operations

    found, acts = asyncio.run(effect_acts.effect(operations.database_settings(), effect))
    fields = show.plain(asdict(found))
    if json:
        show.document({**fields, "audit": [show.plain(asdict(act)) for act in acts]})
        return
    for name, value in fields.items():
        if value is not None:
            show.line(f"{name}: {show.safe(value)}")
    for act in acts:
        told = " ".join(f"{key}={value}" for key, value in (act.after or {}).items())
        why = f" ({act.reason})" if act.reason else ""
        show.line(f"  {show.moment(act.at)} {act.act} by {show.safe(act.by)}: {show.safe(told + why)}")


@app.command("look-up")
def look_up(
    effect: Annotated[int, _ID],
    *,
    reason: Annotated[str | None, _WHY] = None,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Have a running process of the App look an effect up now, also one that was left to a person."""
    from postroad.runtime import effect_acts, operations

    done = asyncio.run(effect_acts.look_up(operations.database_settings(), effect, by=who(by), reason=reason))
    _tell(done, "is looked up by the next process that works", as_json=json)


@app.command("resolve")
def resolve(
    effect: Annotated[int, _ID],
    became: Annotated[Became, typer.Option("--as", help="What became of it at the provider.")],
    *,
    ref: Annotated[str, typer.Option(help="With `--as done`: what the provider calls it.")] = "",
    code: Annotated[str, typer.Option(help="With `--as refused`: the provider's reason.")] = "",
    reason: Annotated[str | None, _WHY] = None,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Say what became of an effect that nobody knew about: done, refused, or absent (it is sent again then).

    Look at the provider first: an effect that is called absent and did happen happens twice.
    """
    from postroad.runtime import effect_acts, operations

    outcome = _outcome(became, ref=ref, code=code)
    done = asyncio.run(effect_acts.resolve(operations.database_settings(), effect, outcome, by=who(by), reason=reason))
    _tell(done, f"is {done.state} now", as_json=json)


def _outcome(became: Became, *, ref: str, code: str) -> Outcome | None:
    from postroad.effects.outcome import Done, Refused
    from postroad.errors import UsageError

    if (ref and became is not Became.DONE) or (code and became is not Became.REFUSED):
        raise UsageError("PR107", "effects resolve: --ref goes with --as done, and --code with --as refused")
    if became is Became.REFUSED and not code:
        raise UsageError("PR107", "effects resolve: --as refused needs --code, the provider's reason")
    if became is Became.ABSENT:
        return None
    return Done(ref) if became is Became.DONE else Refused(code)


def _tell(done: Changed, said: str, *, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        show.document(asdict(done))
    else:
        show.line(f"effect {done.id} ({done.name}), {done.was} before, {said}; noted as {done.by}'s word")
