"""However long the streams are, a comparison takes the same memory: measured, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from reconcile.books import fill
from runtime.processes import environment

COMPARE = """
import asyncio, resource, sys
from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.reconcile import Reconciliation, pages
from postroad.reconcile.checking import check
from postroad.reconcile.ground import Ground
from postroad.signals import Signals
from postroad.sql.manager import Manager

SAYS = "SELECT key, amount::text FROM {} WHERE key > $1 ORDER BY key LIMIT $2"


async def main(url, name):
    manager = await Manager.open(url, schema="postroad", size=2)
    ground = Ground(manager=manager, resources={}, signals=Signals(), clock=SYSTEM_CLOCK, by="ada")
    books = Reconciliation(
        name, authority=pages(SAYS.format(sys.argv[3])), projection=pages(SAYS.format(sys.argv[4])), settle=seconds(0)
    )
    found = await check(ground, books)
    await manager.close()
    print(found.compared, found.drift, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


asyncio.run(main(sys.argv[1], sys.argv[2]))
"""
FEW, MANY = 5_000, 60_000
MEGABYTES = 10


def compare(url: str, name: str, *tables: str) -> tuple[int, int, float]:
    """How many keys were compared, how many have drifted, and the process's highest resident size in MB."""
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, url, name, *tables], env=environment(), capture_output=True, text=True,
        timeout=100, check=True,
    )  # fmt: skip
    compared, drift, size = done.stdout.split()
    return int(compared), int(drift), int(size) / 1024


@pytest.mark.heavy
async def test_the_memory_of_a_comparison_is_flat(sql, runtime_url):
    await fill(sql, MANY)
    await sql.execute(
        f"CREATE VIEW public.few AS SELECT * FROM booked WHERE amount <= {FEW}; GRANT SELECT ON few TO pr_runtime"
    )
    await sql.execute("DELETE FROM applied WHERE amount % 50 = 0")
    some, _, small = compare(runtime_url, "few", "few", "few")
    all_, drift, large = compare(runtime_url, "many", "booked", "applied")
    assert (some, all_, drift) == (FEW, MANY, MANY // 50)
    assert large - small < MEGABYTES
