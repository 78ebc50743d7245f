"""Counters that outlive a killed process: a small shared file per process, written by a sink of the demo's own Apps."""

from __future__ import annotations

import mmap
import os
import signal
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from postroad.signals.catalog import (
    ConsumerSubscribed,
    DeliveriesAcked,
    DeliveriesCommitted,
    DeliveriesReceived,
    DeliveryResult,
    DeliverySettled,
    OccurrenceStarted,
    OutboxRead,
    PublishesSettled,
    PublishResult,
)

if TYPE_CHECKING:
    from postroad.signals import Signal, Sink

FOLDER: Final = "DEMO_GAUGES"
CRASH: Final = "DEMO_CRASH"
NAMES: Final = ("received", "redelivered", "settled", "duplicates", "unacked", "unconfirmed", "crashes", "planned")
_LAYOUT: Final = struct.Struct(f"{len(NAMES)}q")


@dataclass(frozen=True, slots=True)
class Gauges:
    """What one process counted until now, or until it was killed. `unacked` and `unconfirmed` are what it holds."""

    received: int = 0
    redelivered: int = 0
    settled: int = 0
    duplicates: int = 0
    unacked: int = 0
    unconfirmed: int = 0
    crashes: int = 0
    planned: int = 0


def read(folder: Path) -> dict[int, Gauges]:
    """What every process that ever counted in `folder` has counted, by process id."""
    found = {}
    for path in folder.glob("*.gauges"):
        data = path.read_bytes()
        if len(data) == _LAYOUT.size:
            found[int(path.stem)] = Gauges(*_LAYOUT.unpack(data))
    return found


class Counter:
    """The sink: adds what it hears to this process's file."""

    def __init__(self, folder: Path) -> None:
        """Make the file of this process in `folder`."""
        path = folder / f"{os.getpid()}.gauges"
        path.write_bytes(bytes(_LAYOUT.size))
        with path.open("r+b") as file:
            self._view = memoryview(mmap.mmap(file.fileno(), _LAYOUT.size)).cast("q")

    def __call__(self, heard: Signal) -> None:
        """Count what is worth counting."""
        match heard:
            case DeliverySettled():
                self.add("settled", heard.count)
                self.add("duplicates", heard.count if heard.result is DeliveryResult.DUPLICATE else 0)
            case DeliveriesReceived():
                self.add("received", heard.count)
                self.add("redelivered", heard.redelivered)
                self.add("unacked", heard.count)
            case DeliveriesAcked():
                self.add("unacked", -heard.count)
            case ConsumerSubscribed() if not heard.consumer.endswith(".dlq"):
                self.set("unacked", 0)
            case OutboxRead():
                self.add("unconfirmed", heard.count)
            case OccurrenceStarted():
                self.add("planned", 1)
            case PublishesSettled():
                self.add("unconfirmed", -heard.count)
            case _:
                pass

    def add(self, name: str, count: int) -> None:
        """Add `count`; what a process holds never falls below nothing."""
        self.set(name, max(0, self._view[NAMES.index(name)] + count))

    def set(self, name: str, value: int) -> None:
        """Set one counter."""
        self._view[NAMES.index(name)] = value


def crash_at(point: str, after: int, *, note: Callable[[], None]) -> Sink:
    """A sink that kills its process with SIGKILL at `point`, once `after` events have passed it.

    *committed* lies between a consumer's commit and its ack, *confirmed* between the broker's confirm and the
    deletion from the outbox: the signals are emitted just there. `note` is called first.
    """
    passed = 0

    def crash(heard: Signal) -> None:
        nonlocal passed
        passed += _passing(point, heard)
        if passed > after:
            note()
            os.kill(os.getpid(), signal.SIGKILL)

    return crash


def _passing(point: str, heard: Signal) -> int:
    if point == "committed" and isinstance(heard, DeliveriesCommitted):
        return heard.count
    if point == "confirmed" and isinstance(heard, PublishesSettled) and heard.result is PublishResult.CONFIRMED:
        return heard.count
    return 0


def sinks_from_environment(environment: Mapping[str, str] = os.environ) -> tuple[Sink, ...]:
    """The counter, and the crash that the demo armed, where this process was started by the demo."""
    if FOLDER not in environment:
        return ()
    counter = Counter(Path(environment[FOLDER]))
    if CRASH not in environment:
        return (counter,)
    point, _, after = environment[CRASH].partition(":")
    return counter, crash_at(point, int(after), note=lambda: counter.add("crashes", 1))
