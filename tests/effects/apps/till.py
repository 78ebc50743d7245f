"""A till: one job that charges at a provider, and a sink that kills the process at one arrow of the state chart.

TILL_AT names the arrow, and with it the effect, the job and its queue: so that each process has its own. Without it the
App has those of all arrows, and dies at none.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from effects.bench import QUICK
from effects.provider import Cards, Charge
from postroad.clock import seconds
from postroad.effects import effect, ledger
from postroad.effects.decide import State
from postroad.runtime.app import App
from postroad.signals.catalog import EffectAnswered, EffectLookedUp, EffectMoved, WorkSettled
from postroad.work.job import job

if TYPE_CHECKING:
    from postroad.signals import Signal
    from postroad.work.run import Run

MOVES = ("intended", "sent", "succeeded", "unknown", "reconciling", "not_found")
ARROWS = (*MOVES, "answered", "looked-up", "finished")
"""What has just happened when the process is killed."""
SCRIPTS = {
    "unknown": ["act-500"], "reconciling": ["act-500"], "looked-up": ["act-500"], "not_found": ["500"],
    "answered": [], "intended": [], "sent": [], "succeeded": [], "finished": [],
}  # fmt: skip
AT = os.environ.get("TILL_AT", "")
URLS = dict(pair.split("=") for pair in os.environ.get("TILL_URLS", "").split(",") if pair)
if os.environ.get("TILL_WITHOUT") == "doubt":  # What was sent by a process that died is taken for never sent.
    ledger.doubtful = lambda _: State.NOT_FOUND  # type: ignore[assignment]
    from postroad.effects import resolver

    resolver.doubtful = lambda _: State.NOT_FOUND  # type: ignore[assignment]


def _owner(arrow: str) -> Any:
    class Till(Cards):
        def __init__(self) -> None:
            super().__init__(URLS[arrow])

    return Till


OWNERS = {arrow: _owner(arrow) for arrow in ([AT] if AT else ARROWS)}


def _charging(arrow: str) -> tuple[Any, Any]:
    charge = effect(
        f"charge.{arrow}", OWNERS[arrow], key=lambda command: command.payment, timeout=seconds(2), settle=seconds(0.5),
        looks=QUICK,
    )  # fmt: skip

    @job(f"till.{arrow}", retry=QUICK, max_runtime=seconds(20))
    async def work(request: Charge, run: Run) -> None:
        outcome = await charge.once(request, run)
        async with run.transaction(finish=True) as tx:
            await tx.execute("INSERT INTO postroad.receipt VALUES ($1, $2)", request.payment, repr(outcome))

    return charge, work


async def lifespan() -> AsyncGenerator[Any, None]:
    """One owner for each arrow."""
    yield {owner: owner() for owner in OWNERS.values()}


def die(happened: Signal) -> None:
    """At the arrow."""
    reached = {
        EffectAnswered: "answered", EffectLookedUp: "looked-up", WorkSettled: "finished",
    }.get(type(happened), "")  # fmt: skip
    if isinstance(happened, EffectMoved):
        reached = happened.state
    if AT and reached == AT:
        os.kill(os.getpid(), signal.SIGKILL)


MADE = [_charging(arrow) for arrow in OWNERS]
app = App(
    "till", jobs=[work for _, work in MADE], effects=[charge for charge, _ in MADE], lifespan=lifespan, sinks=[die]
)
