"""An App without events: it leaves background work, tasks and threads behind when its environment says so."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from postroad.clock import seconds
from postroad.runtime.app import App
from postroad.runtime.background import Executor

if TYPE_CHECKING:
    from postroad.owner import Readiness

MODE = os.environ.get("LEAVER_MODE", "")
app = App("leaver", executor=Executor(concurrency=2, queue=10, time_limit=seconds(60)))
kept: list[object] = []


async def poll() -> None:
    await asyncio.sleep(3600)


def spin() -> None:
    time.sleep(3600)


async def short() -> None:
    await asyncio.sleep(0.3)


async def leave(stop: asyncio.Event, ready: Readiness) -> None:
    if MODE == "strays":
        kept.append(asyncio.create_task(poll(), name="poller"))
        kept.append(asyncio.ensure_future(asyncio.sleep(3600)))
        threading.Thread(target=spin, name="spinner", daemon=True).start()
        pool = ThreadPoolExecutor(2)
        pool.submit(int).result()  # An idle worker is nobody's concern.
        kept.append(pool)
    if MODE == "thread":
        threading.Thread(target=spin, name="spinner", daemon=False).start()
    if MODE == "pool":
        kept.append(ThreadPoolExecutor(1, thread_name_prefix="spinner").submit(spin))
    if MODE == "endless":
        for _ in range(3):
            app.executor.submit(poll)
    ready.up()
    await stop.wait()
    if MODE == "work":  # A service that stops may still leave something to be done.
        for _ in range(6):
            app.executor.submit(short)


app.background("leave", leave)
