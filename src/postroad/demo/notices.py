"""The notice to the passengers of a late flight: an act at another company, at most one for each flight."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from postroad.clock import seconds
from postroad.demo.provider import ask
from postroad.effects import Absent, Done, EffectAttempt, Found, Unknown, effect
from postroad.retry import Backoff
from postroad.work.job import job

if TYPE_CHECKING:
    from postroad.asyncpg import Connection
    from postroad.effects.outcome import LookedUp
    from postroad.work.run import Run

PROVIDER: Final = "DEMO_PROVIDER"
_OK, _MISSING = 200, 404
RECORD = "INSERT INTO passenger_notice (flight_id, ref) VALUES ($1, $2)"


class Notice(BaseModel):
    """What the passengers of a flight are told."""

    flight_id: str
    delay_minutes: int


class NoticeCompany:
    """The owner of the effect: it calls the company, and asks it later what it did."""

    def __init__(self, url: str) -> None:
        """`url` is HOST:PORT."""
        self.url = url

    async def perform(self, command: Notice, attempt: EffectAttempt) -> Done:  # noqa: ARG002 - it honours no keys
        """Have it sent. What is not answered in time, or otherwise, is unknown."""
        status, _ = await ask(self.url, "POST", command.flight_id)
        if status != _OK:
            raise ValueError(f"the provider answered {status}")
        return Done(command.flight_id)

    async def look_up(self, command: Notice, attempt: EffectAttempt) -> LookedUp:  # noqa: ARG002
        """Whether it was sent."""
        status, _ = await ask(self.url, "GET", command.flight_id)
        if status == _OK:
            return Found(Done(command.flight_id))
        return Absent if status == _MISSING else Unknown


notice = effect(
    "punctuality.notice", NoticeCompany, key=lambda command: command.flight_id, timeout=seconds(1), settle=seconds(2),
    looks=Backoff(first=seconds(0.2), most=seconds(1)),
)  # fmt: skip


@job("punctuality.notify", max_runtime=seconds(15), concurrency=16)
async def notify(request: Notice, run: Run[Connection]) -> None:
    """Send the notice, once, and note it."""
    outcome = await notice.once(request, run)
    async with run.transaction(finish=True) as tx:
        await tx.execute(RECORD, request.flight_id, outcome.ref if isinstance(outcome, Done) else None)


async def company() -> AsyncGenerator[NoticeCompany, None]:
    """The lifespan: the live owner, of the provider that the demo started."""
    yield NoticeCompany(os.environ.get(PROVIDER, "127.0.0.1:1"))
