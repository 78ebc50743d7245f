"""What a run of the demo came to: a table for people, or one line of JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from postroad.demo.road import Outcome


def as_json(outcome: Outcome) -> str:
    """The outcome as one JSON object on one line."""
    verdict = outcome.verdict
    facts: dict[str, Any] = {
        "rows": verdict.rows,
        "published": outcome.published,
        "confirmed": outcome.confirmed,
        "handled": outcome.handled,
        "duplicates": outcome.duplicates,
        "quarantined": outcome.quarantined,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "malformed": len(outcome.malformed),
        "repeated": outcome.repeated,
        "reports": {"days": verdict.days, "written": verdict.reports, "agree": verdict.reports_agree},
        "notices": {
            "late": verdict.late,
            "sent": verdict.notices,
            "unanswered": outcome.unanswered,
            "looked_up": outcome.looked_up,
            "agree": verdict.notices_agree,
        },
        "seconds": outcome.seconds,
        "faults": outcome.faults,
        "per_carrier": verdict.per_carrier,
    }
    return json.dumps(facts, separators=(",", ":"))


def show(outcome: Outcome, console: Console) -> None:
    """Print the projection and what happened, for people."""
    table = Table(title="Punctuality per carrier, as the consumer service counted it")
    for name in ("carrier", "flights", "departed", "cancelled", "minutes late", "over 60"):
        table.add_column(name, justify="left" if name == "carrier" else "right")
    for carrier, counts in outcome.verdict.per_carrier.items():
        table.add_row(carrier, *(f"{count:,}" for count in counts.values()))
    console.print(table)
    for line in _story(outcome):
        console.print(line, highlight=False)


def _story(outcome: Outcome) -> list[str]:
    verdict = outcome.verdict
    story = [
        f"{verdict.rows:,} flights were written and {outcome.published:,} events published, one transaction each.",
        f"{outcome.confirmed:,} were confirmed and routed; {outcome.handled:,} were handled.",
        f"{outcome.duplicates:,} duplicates had no effect; {outcome.quarantined:,} events are in quarantine.",
        *(f"Fault: {name.replace('_', ' ')}: {count}" for name, count in outcome.faults.items() if count),
        *(f"Line {line.line} was left out: {line.reason}." for line in outcome.malformed[:10]),
    ]
    agrees = "agrees" if verdict.agrees else "DIFFERS"
    reports = "agree" if verdict.reports_agree else "DIFFER"
    notices = "one for each" if verdict.notices_agree else "NOT ONE FOR EACH"
    return [
        *story,
        f"{verdict.reports:,} daily reports of {verdict.days:,} days were written; they {reports} with the file.",
        f"{verdict.notices:,} notices were sent for {verdict.late:,} flights over an hour late, {notices}.",
        f"{outcome.unanswered:,} calls to send one were not answered; {outcome.looked_up:,} outcomes were looked up.",
        f"The projection {agrees} with the file. It took {outcome.seconds:.1f} s.",
        f"lost {verdict.lost}, doubled {verdict.doubled}",
    ]


def sound(outcome: Outcome) -> bool:
    """Whether everything arrived, was reported and was told, once in effect."""
    verdict = outcome.verdict
    agree = verdict.agrees and verdict.reports_agree and verdict.notices_agree
    return agree and verdict.lost == 0 and verdict.doubled == 0 and outcome.confirmed == outcome.published
