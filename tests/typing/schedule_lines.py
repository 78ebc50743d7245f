"""Lines that declare schedules: those that must type-check, and those (marked with their error code) that must not."""

from __future__ import annotations

from datetime import date, datetime

from pydantic import BaseModel

from postroad import Missed, Overlap, Schedule, job, minutes


class Request(BaseModel):
    day: date


@job("reports.render")
async def render(request: Request, run: object) -> None: ...


@job("chores.sweep")
def sweep(request: None, run: object) -> None: ...


def of_day(due: datetime) -> Request:
    return Request(day=due.date())


def wrong(due: datetime) -> str:
    return str(due)


def allowed() -> None:
    Schedule("a", job=render, cron="15 2 * * *", args=of_day, missed=Missed.ALL, overlap=Overlap.QUEUE_ONE)
    Schedule("b", job=render, every=minutes(5), args=lambda due: Request(day=due.date()))
    Schedule("c", job=sweep, cron="@daily")


def refused() -> None:
    Schedule("a", job=render, cron="@daily", args=wrong)  # E: misc
    Schedule("a", job=render, cron="@daily", args=lambda: Request(day=date(2026, 1, 1)))  # E: misc  # E: arg-type
    Schedule("a", job=sweep, cron=5)  # E: arg-type
    Schedule("a", job=sweep, every=60)  # E: arg-type
    Schedule("a", job=sweep, at="2026-01-01")  # E: arg-type
    Schedule("a", job=sweep, cron="@daily", missed="latest")  # E: arg-type
    Schedule("a", job=sweep, cron="@daily", overlap="skip")  # E: arg-type
    Schedule("a", sweep, cron="@daily")  # E: call-arg
    Schedule("a", cron="@daily")  # E: call-arg
