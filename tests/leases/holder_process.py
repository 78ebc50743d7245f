"""A process for tests that holds the lease "op" for as long as it can, and writes under it all the time.

It says ``has TOKEN`` and ``lost`` on standard output. As ``unfenced`` nothing stops it: neither the fence nor the loss.
"""

from __future__ import annotations

import asyncio
import sys
from random import random

import asyncpg

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.errors import LeaseLost, PostroadError
from postroad.leases import Keeper, Leases
from postroad.leases.held import HeldLease
from postroad.runtime.executor import Tasks
from postroad.signals import Signals
from postroad.sql.interrupt import Interrupt
from postroad.sql.manager import Manager

TTL = seconds(1.5)
WRITE = "INSERT INTO public.written (token) VALUES ($1)"


async def main(url: str) -> None:
    signals = Signals()
    keeper = Keeper(
        url, schema="postroad", holder=SYSTEM_CLOCK.new_id(), clock=SYSTEM_CLOCK, signals=signals, owner=Tasks(signals)
    )
    await keeper.start()
    manager = await Manager.open(url, schema="postroad", size=3)
    leases = Leases(keeper, manager, clock=SYSTEM_CLOCK, signals=signals, chance=random, shortest=seconds(0.25))
    say("ready")
    while True:
        try:
            async with leases.hold("op", ttl=TTL, wait=seconds(60)) as lease:
                say("has", lease.token)
                while True:
                    await write(lease)
        except LeaseLost:
            say("lost")
        except (PostroadError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
            await asyncio.sleep(0.05)  # The database is away.


async def write(lease) -> None:
    async with lease.transaction() as connection:
        await connection.execute(WRITE, lease.token)
    await asyncio.sleep(0.002)  # Others on this machine want to run as well.


def unfenced(_lease):
    return
    yield


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    if sys.argv[2:] == ["unfenced"]:
        HeldLease.fence = unfenced
        Interrupt.tell = lambda _: None
    asyncio.run(main(sys.argv[1]))
