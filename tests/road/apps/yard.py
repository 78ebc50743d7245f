"""A service with nothing but jobs: each notes who ran it, in a table without a unique constraint: doubles show."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING

from pydantic import BaseModel

from postroad.clock import seconds
from postroad.failures import Snooze
from postroad.retry import Backoff
from postroad.runtime.app import App
from postroad.work.job import job
from road.apps import faults

if TYPE_CHECKING:
    from postroad.work.run import BlockingRun, Run

QUICK = Backoff(first=seconds(0.1), most=seconds(0.2), attempts=3)


class Move(BaseModel):
    """Which parcel, and what happens meanwhile."""

    number: int
    act: str = ""


@job("yard.move", retry=QUICK, max_runtime=seconds(60))
async def move(request: Move, run: Run) -> None:
    """Act, then note it."""
    act, _, argument = request.act.partition(":")
    match act:
        case "wait":
            await asyncio.sleep(float(argument))
        case "block":
            time.sleep(float(argument))  # noqa: ASYNC251 - blocking the loop is the fault
        case "die":
            await asyncio.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        case "ignore":
            await _ignoring(float(argument))
        case "snooze" if not await _seen(run, request.number):
            await _note(run, request.number)
            raise Snooze(seconds(0.1))
        case _:
            pass
    await _note(run, request.number, finish=True)


@job("yard.weigh", retry=QUICK, max_runtime=seconds(60))
def weigh(request: Move, run: BlockingRun) -> None:
    """The same on a thread."""
    act, _, argument = request.act.partition(":")
    if act == "wait":
        time.sleep(float(argument))  # so long the job lasts: tests stop it in its midst
    with run.transaction(finish=True) as tx:
        tx.execute("INSERT INTO seen (number, process) VALUES (%s, %s)", (request.number, os.getpid()))


@job("yard.count", concurrency=4, fleet=3, max_runtime=seconds(60))
async def count(request: Move, run: Run) -> None:
    """Note how many of these run at once."""
    async with run.transaction() as tx:
        await tx.execute("INSERT INTO inside VALUES ($1)", request.number)
    async with run.transaction() as tx:
        await tx.execute("INSERT INTO crowd SELECT count(*) FROM inside")
    await asyncio.sleep(0.01)
    async with run.transaction() as tx:
        await tx.execute("DELETE FROM inside WHERE number = $1", request.number)


async def _ignoring(longest: float) -> None:
    until = time.monotonic() + longest
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


async def _seen(run: Run, number: int) -> bool:
    async with run.transaction() as tx:
        return bool(await tx.fetchval("SELECT count(*) FROM seen WHERE number = $1", number))


async def _note(run: Run, number: int, *, finish: bool = False) -> None:
    async with run.transaction(finish=finish) as tx:
        await tx.execute("INSERT INTO seen (number, process) VALUES ($1, $2)", number, os.getpid())


app = App("yard", jobs=[move, weigh, count], sinks=faults.prepare())
