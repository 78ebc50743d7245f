"""A small App with jobs, for commands that enqueue and operate."""

from __future__ import annotations

from datetime import date
from typing import Any

from pydantic import BaseModel, Field

from postroad.runtime.app import App
from postroad.work.job import job


class ReportRequest(BaseModel):
    day: date
    copies: int = Field(default=1, ge=1)


@job("reports.render", queue="reports", max_bytes=1000)
async def render(request: ReportRequest, run: Any) -> None: ...


@job("reports.count")
def count(request: int, run: Any) -> None: ...


app = App("reports", jobs=[render, count])
