"""An App with a schedule that is due each second, of which none is left out."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel

from postroad.clock import seconds
from postroad.runtime.app import App
from postroad.schedules.policy import Missed, Overlap
from postroad.schedules.schedule import Schedule
from postroad.work.job import job


class Second(BaseModel):
    at: datetime


@job("clockwork.tick")
async def tick(request: Second, run: Any) -> None: ...


each = Schedule(
    "clockwork.each", job=tick, every=seconds(1), args=lambda due: Second(at=due), missed=Missed.ALL,
    overlap=Overlap.ALLOW, limit=1000, max_catch_up=1000,
)  # fmt: skip
app = App("clockwork", jobs=[tick], schedules=[each])
