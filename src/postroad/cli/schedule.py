"""``postroad schedule``: when a schedule is due, and what its policies make of a timeline; neither needs a database."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from json import JSONDecodeError, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from postroad.cli import show
from postroad.cli.load import load
from postroad.clock import SYSTEM_CLOCK
from postroad.errors import UsageError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from postroad.schedules.timing import Timing

app = typer.Typer(
    no_args_is_help=True, help="Schedules (cron, periodic jobs): when they are due, what ran, what did not."
)

_MOST_READ: Final = 8 * 1024 * 1024
_YEARS: Final = range(1900, 9900)
_DURATION: Final = re.compile(r"(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,9})s)?")


@app.command("next")
def next_(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A schedule that --app declares.")] = None,
    *,
    reference: Annotated[
        str | None, typer.Option("--app", metavar="MODULE:APP", help="Where NAME is declared.")
    ] = None,
    cron: Annotated[str | None, typer.Option(metavar="TEXT", help="Five fields, as '15 2 * * *', or @daily.")] = None,
    every: Annotated[str | None, typer.Option(metavar="DURATION", help="An interval: 90s, 5m, 1h30m, 2d.")] = None,
    phase: Annotated[str | None, typer.Option(metavar="DURATION", help="How far its grid is moved; 0s.")] = None,
    zone: Annotated[str | None, typer.Option(help="The IANA name of the zone; UTC by default.")] = None,
    after: Annotated[str | None, typer.Option(metavar="INSTANT", help="Strictly later; now by default.")] = None,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 5,
    json: show.AsJson = False,
) -> None:
    """Print the next due times, in UTC and on the zone's clock, and say the text in plain words.

    Changes of the clock are marked. A text that is refused ends with exit code 2 and a line that names the field.
    """
    from postroad.schedules.preview import coming

    if name is not None:
        if cron is not None or every is not None or phase is not None or zone is not None:
            raise UsageError("PR107", "a declared schedule has its own times and zone; give NAME, or --cron or --every")
        timing, place = _declared(reference, name)
    else:
        timing, place = _given(cron, every, phase, zone)
    found = coming(timing, place, after=_instant(after), count=count)
    if json:
        rows = [{"due": _utc(one.due), "local": one.local.isoformat(), "change": one.change} for one in found]
        fields = {"explained": timing.explain(), "zone": place.key, "warnings": timing.warnings(), "next": rows}
        show.document({**timing.stored(), **fields})
        return
    show.line(f"{timing.explain()} (zone {place.key})")
    for warning in timing.warnings():
        show.line(f"warning: {warning}")
    rows_ = [((_utc(one.due), f"{one.local:%a %Y-%m-%d %H:%M:%S %z}"), one.change or "") for one in found]
    show.listing(show.count(len(found), "due time") if found else "never due", ("due, UTC", "on the clock"), rows_)


@app.command("simulate")
def simulate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="One case, a list of them, or {'cases': [...]}, as JSON.")
    ],
    *,
    json: show.AsJson = False,
) -> None:
    """Play timelines (outages, overlaps, pauses, backfills) through the real policies, and print every decision.

    The clock is a manual one: nothing waits, nothing runs. A case that names a policy or an event that does not exist
    here is not played, and says why; if none can be played, the exit code is 2.
    """
    cases = _cases(file)
    results = [_played(case, place) for place, case in enumerate(cases)]
    failed = [one for one in results if "not_played" in one]
    if len(failed) == len(results):
        raise UsageError("PR107", f"file {str(file)!r}: {failed[0]['id']}: {failed[0]['not_played']}")
    if json:
        show.document(results)
        return
    for one in results:
        _tell(one)
    show.line(f"{len(results) - len(failed)} of {show.count(len(results), 'timeline')} played")


# --- `next`: what it is asked about -----------------------------------------------------------------------------------


def _declared(reference: str | None, name: str) -> tuple[Timing, ZoneInfo]:
    """The times of a schedule that an App declares."""
    if reference is None:
        raise UsageError(
            "PR107", f"where is schedule {name!r} declared? add --app MODULE:APP, or give --cron or --every"
        )
    schedules = getattr(load(reference).declarations, "schedules", ())
    for one in schedules:
        if one.name == name:
            return one.timing, one.zone
    known = ", ".join(sorted(one.name for one in schedules)) or "none"
    raise UsageError("PR107", f"{reference} declares no schedule {name!r}; it declares {known}")


def _given(cron: str | None, every: str | None, phase: str | None, zone: str | None) -> tuple[Timing, ZoneInfo]:
    from postroad.schedules.cron import Cron
    from postroad.schedules.timing import Every
    from postroad.schedules.zones import zone_named

    if (cron is None) == (every is None):
        raise UsageError("PR107", "give one of NAME, --cron and --every")
    place = zone_named("UTC" if zone is None else zone)
    if cron is not None:
        if phase is not None:
            raise UsageError("PR107", "--phase is of an interval; leave it out, or give --every")
        return Cron(cron), place
    assert every is not None, "one of the two is given"
    return Every(_duration("--every", every), _duration("--phase", phase or "0s")), place


def _duration(option: str, text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise UsageError("PR107", f"{option} {text!r} is no duration; write 90s, 5m, 1h30m or 2d")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def _instant(text: str | None) -> datetime:
    if text is None:
        return SYSTEM_CLOCK.now()
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.utcoffset() is None or at.year not in _YEARS:
        raise UsageError("PR107", f"--after {text!r} is no instant; write it with its zone, as 2026-03-08T00:00:00Z")
    return at.astimezone(UTC)


def _utc(at: datetime) -> str:
    from postroad.schedules.simulate import shown

    return shown(at)


# --- `simulate`: reading and telling ----------------------------------------------------------------------------------


def _cases(file: Path) -> list[Any]:
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_READ + 1)
        if len(content) > _MOST_READ:
            raise UsageError("PR107", f"file {str(file)!r} is longer than 8 MiB; split it")
        found = loads(content)
    except OSError as error:
        raise UsageError("PR107", f"file {str(file)!r} cannot be read ({type(error).__name__})") from None
    except JSONDecodeError as error:
        raise UsageError("PR107", f"file {str(file)!r} is no JSON: {error.msg} in line {error.lineno}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise UsageError("PR107", f"file {str(file)!r} is no JSON ({type(error).__name__})") from None
    cases = found.get("cases", [found]) if isinstance(found, Mapping) else found
    if not isinstance(cases, list) or not cases:
        raise UsageError("PR107", f'file {str(file)!r} holds no cases; write {{"cases": [...]}}')
    return cases


def _played(case: object, place: int) -> dict[str, Any]:
    from postroad.schedules.simulate import outcome

    given: Mapping[str, Any] = case if isinstance(case, Mapping) else {}
    name = str(given.get("id", f"case {place + 1}"))
    try:
        result = outcome(case)
    except UsageError as error:
        return {"id": name, "not_played": error.message}
    expected = given.get("expect")
    wanted = expected if isinstance(expected, Mapping) else {}
    return {"id": name, **result, "differs": [key for key in wanted if key in result and wanted[key] != result[key]]}


def _tell(result: Mapping[str, Any]) -> None:
    if "not_played" in result:
        show.line(f"{show.safe(result['id'])}: not played: {show.safe(result['not_played'])}\n")
        return
    show.line(f"{show.safe(result['id'])}")
    for one in result.get("decisions", ()):
        what = one.get("scheduled", "")
        if "count" in one:
            what = f"{one['count']} due from {one['first']} to {one['last']}"
        extra = [one[key] for key in ("kind", "reason", "starts_at") if key in one and one[key] != "scheduled"]
        show.line(f"  {one['at']}  {one['act']:<6} {what} {' '.join(extra)}".rstrip())
    for key in ("start_now", "buffer", "skipped_count", "cancel_running", "next"):
        if key in result:
            show.line(f"  {key.replace('_', ' ')}: {'never' if result[key] is None else result[key]}")
    if result["differs"]:
        show.line(f"  differs from what is expected: {', '.join(result['differs'])}")
    show.line("")
