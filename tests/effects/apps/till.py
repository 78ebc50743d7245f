"""A till: one job that charges at a provider, and a sink that kills the process at one arrow of the state chart.

TILL_AT names the arrow, and with it the effect, the job and its queue: so that each process has its own. Without it the
App has those of all arrows, and dies at none. Some tills cannot look anything up: their provider honours keys, or a
person decides.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from effects.bench import QUICK
from effects.provider import BlindCards, Cards, Charge
from postroad.clock import hours, seconds
from postroad.effects import EffectAttempt, effect, ledger
from postroad.effects.decide import State
from postroad.runtime.app import App
from postroad.signals.catalog import EffectAnswered, EffectLookedUp, EffectMoved, WorkSettled
from postroad.work.job import job

if TYPE_CHECKING:
    from postroad.signals import Signal
    from postroad.work.run import Run

MOVES = ("intended", "sent", "succeeded", "unknown", "reconciling", "not_found")
SEEING = (*MOVES, "answered", "looked-up", "finished")
REPEATING = ("repeat", "repeat-answered")
BLIND = (*REPEATING, "manual", "calling", "rejected")
ARROWS = (*SEEING, *BLIND)
"""What has just happened when the process is killed; ``calling`` is a request on its way, ``repeat`` the second one."""
SCRIPTS = {
    "unknown": ["act-500"], "reconciling": ["act-500"], "looked-up": ["act-500"], "not_found": ["500"],
    "answered": [], "intended": [], "sent": [], "succeeded": [], "finished": [], "calling": [],
    "repeat": ["act-500"], "repeat-answered": ["act-500"], "manual": ["act-500"], "rejected": ["refuse"],
}  # fmt: skip
AT = os.environ.get("TILL_AT", "")
URLS = dict(pair.split("=") for pair in os.environ.get("TILL_URLS", "").split(",") if pair)
if os.environ.get("TILL_WITHOUT") == "doubt":  # What was sent by a process that died is taken for never sent.
    ledger.doubtful = lambda _: State.NOT_FOUND  # type: ignore[assignment]
    from postroad.effects import resolver

    resolver.doubtful = lambda _: State.NOT_FOUND  # type: ignore[assignment]


ledger.patience = lambda _: seconds(0.5)  # type: ignore[assignment]  # Repeats are not waited for.


def _owner(arrow: str) -> Any:
    base: type[Any] = BlindCards if arrow in {*REPEATING, "manual"} else Cards

    class Till(base):
        def __init__(self) -> None:
            super().__init__(URLS[arrow])

        async def perform(self, command: Charge, attempt: EffectAttempt) -> Any:
            if AT == "calling":
                calling = asyncio.create_task(super().perform(command, attempt))
                await asyncio.sleep(0.5)  # Long enough for it to arrive, and for whatever else there is to go on.
                os.kill(os.getpid(), signal.SIGKILL)
                await calling
            return await super().perform(command, attempt)

    return Till


OWNERS = {arrow: _owner(arrow) for arrow in ([AT] if AT else ARROWS)}


def _charging(arrow: str) -> tuple[Any, Any]:
    charge = effect(
        f"charge.{arrow}", OWNERS[arrow], key=lambda command: command.payment, timeout=seconds(2), settle=seconds(0.5),
        looks=QUICK, key_window=hours(1) if arrow in REPEATING else None,
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


SEEN: set[str] = set()


def die(happened: Signal) -> None:
    """At the arrow."""
    reached = {
        EffectAnswered: "answered", EffectLookedUp: "looked-up", WorkSettled: "finished",
    }.get(type(happened), "")  # fmt: skip
    if isinstance(happened, EffectMoved):
        reached = happened.state
    SEEN.add(reached)
    there = {
        "repeat": reached == "sent" and "unknown" in SEEN,
        "repeat-answered": isinstance(happened, EffectAnswered) and happened.result == "done",
    }
    if AT and there.get(AT, reached == AT):
        os.kill(os.getpid(), signal.SIGKILL)


MADE = [_charging(arrow) for arrow in OWNERS]
app = App(
    "till", jobs=[work for _, work in MADE], effects=[charge for charge, _ in MADE], lifespan=lifespan, sinks=[die]
)
