"""Runs a soak: traffic with faults drawn from a seed, and a checker that knows only the promises.

Usage: python -m soak [--minutes M] [--seed S] [--rate N]; prints one JSON object and ends with 1 where a promise broke.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from soak.checker import judged
from soak.clock import HOUR
from soak.faults import Due, Fault, drawn
from soak.world import Author, World, at_rest

if TYPE_CHECKING:
    from collections.abc import Iterator

DROP = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = 'soak' AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
REST_SECONDS = 150.0


def deal(world: World, author: Author, due: Due) -> None:
    """Do to `world` what is due, for as long as it lasts, and undo it."""
    match due.fault:
        case Fault.CONSUMER_KILL | Fault.DISPATCHER_KILL | Fault.CONSUMER_PAUSE | Fault.DISPATCHER_PAUSE:
            strike(world, due)
        case Fault.DATABASE_RESTART:
            world.postgres.restart()
        case Fault.DATABASE_KILL:
            world.postgres.kill()
            world.postgres.start()
        case Fault.SESSIONS_DROPPED:
            world.postgres.execute(DROP)
        case Fault.CLOCK_STEP:
            step_the_clocks(world, due)
        case Fault.SLOW_CONSUMER:
            author.slow_until = time.monotonic() + due.lasts
        case _:
            disturb_the_broker(world, due)


def strike(world: World, due: Due) -> None:
    """A fault of one process."""
    victim = world.victims("board" if due.fault.startswith("consumer") else "dispatcher", due.victim)
    if due.fault in {Fault.CONSUMER_KILL, Fault.DISPATCHER_KILL}:
        victim.kill()
    else:
        with paused(victim.process.pid):
            time.sleep(due.lasts)  # so long the fault lasts


def step_the_clocks(world: World, due: Due) -> None:
    """An hour forward or back, and an hour the other way later."""
    for clock in world.clocks:
        clock.step(HOUR if due.victim % 2 else -HOUR)
    time.sleep(due.lasts)  # so long the fault lasts
    for clock in world.clocks:
        clock.step(0)


def disturb_the_broker(world: World, due: Due) -> None:
    """A fault of the broker, or of the line to it."""
    match due.fault:
        case Fault.BROKER_KILL:
            world.rabbit.settle()
            world.rabbit.kill()
            world.rabbit.start()
        case Fault.BROKER_RESTART:
            world.rabbit.restart()
        case Fault.QUEUE_FULL:
            full = json.dumps({"max-length": 1, "overflow": "reject-publish"})
            world.rabbit.ctl("set_policy", "full", "^soak[.]moves$", full, "--apply-to", "queues")
            time.sleep(due.lasts)  # so long the fault lasts
            world.rabbit.ctl("clear_policy", "full")
        case _:
            (world.line.cut if due.fault is Fault.BROKER_LINE_CUT else world.line.stall)()
            time.sleep(due.lasts)  # so long the fault lasts
            world.line.heal()


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop a process, and let it go on."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def soak(
    folder: Path, *, lasts: float, seed: int, rate: int, say: Callable[[str], None],
    board: str = "soak.service:board", rest: float = REST_SECONDS,
) -> dict[str, object]:  # fmt: skip
    """Run it; what came of it."""
    dealt: Counter[str] = Counter()
    with World(folder, board=board) as world:
        with Author(world, per_second=rate) as author:
            began = time.monotonic()
            for due in drawn(seed, lasts=lasts):
                time.sleep(max(0.0, began + due.at - time.monotonic()))  # until it is due
                say(f"{time.monotonic() - began:7.1f} s  {due.fault}  ({author.staged} events)")
                deal(world, author, due)
                dealt[due.fault] += 1
            time.sleep(max(0.0, began + lasts - time.monotonic()))  # traffic alone, to the end
        rested = at_rest(world, within_seconds=rest)
        codes = [member.stop() for members in world.members.values() for member in members]
        found = world.found()
    verdict = judged(found)
    return {
        "seed": seed, "seconds": lasts, "events": len(found.committed) + len(found.weighed),
        "faults": dict(sorted(dealt.items())), "at_rest": rested, "exit_codes": sorted({*codes}), **asdict(verdict),
        "kept": dict(found.kept), "good": rested and verdict.good and not any(codes),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=40, help="transactions a second, of two events each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="postroad-soak-") as folder:
        report = soak(
            Path(folder), lasts=options.minutes * 60, seed=options.seed, rate=options.rate,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )  # fmt: skip
        if not report["good"]:
            for log in sorted(Path(folder).glob("*.log")):
                print(log.name, log.read_text(errors="replace")[-4000:], sep="\n", file=sys.stderr)
    print(json.dumps(report))
    return 0 if report["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
