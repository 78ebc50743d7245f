"""What happens to the process and its services."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from postroad.signals.catalog.base import Level, Signal


@dataclass(frozen=True, slots=True)
class ServiceStarted(Signal):
    """A service of the App was started."""

    service: str


@dataclass(frozen=True, slots=True)
class ServiceReady(Signal):
    """A service reached (or left) the state in which it does its work."""

    level: ClassVar[Level] = Level.INFO
    service: str
    ready: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ServiceFailed(Signal):
    """A service ended without being told to; it is started again after `delay_seconds`."""

    level: ClassVar[Level] = Level.ERROR
    service: str
    error_type: str
    reason: str
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class TaskFailed(Signal):
    """A task or thread ended with an error that nobody awaited."""

    level: ClassVar[Level] = Level.ERROR
    task: str
    error_type: str
    reason: str


@dataclass(frozen=True, slots=True)
class ThreadsStuck(Signal):
    """How many threads of a pool run something that was given up: none of them is used until it returns."""

    level: ClassVar[Level] = Level.WARNING
    pool: str
    count: int


@dataclass(frozen=True, slots=True)
class PartitionsKept(Signal):
    """Partitions were looked after: `days_ahead` stand; without `allowed` the database role may not make any."""

    level: ClassVar[Level] = Level.INFO
    made: int
    days_ahead: int
    allowed: bool


@dataclass(frozen=True, slots=True)
class RetentionKept(Signal):
    """What was kept long enough was let go: whole partitions, rows, inbox marks, leases of processes long gone.

    `needed` partitions are past their time and stay, since something that is not resolved needs them; `held` ones
    were in use, and are tried again in the next round.
    """

    level: ClassVar[Level] = Level.INFO
    dropped: int
    needed: int
    held: int
    rows: int
    marks: int
    leases: int


@dataclass(frozen=True, slots=True)
class HealthServing(Signal):
    """The health and metrics pages are served at this address."""

    level: ClassVar[Level] = Level.INFO
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ShutdownBegan(Signal):
    """The process was told to stop; `cause` is the signal's name or the reason."""

    level: ClassVar[Level] = Level.INFO
    cause: str
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class ShutdownReceipt(Signal):
    """The last word: what was finished, given back and abandoned, and how long it took.

    `unfinished` names background tasks that were cancelled or never began: they are lost, and counted as abandoned.
    `left` names tasks and threads of ours that still run, `strays` those that nobody owns, with their places.
    """

    level: ClassVar[Level] = Level.INFO
    finished: int
    given_back: int
    abandoned: int
    seconds: float
    unfinished: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stray(Signal):
    """A task or thread that nobody owns ran on at shutdown: the function that it runs, and where it was `started`.

    `kind` is *task*, *thread*, or *more* where there are too many to name. Where a thread was started is not known.
    """

    level: ClassVar[Level] = Level.WARNING
    kind: str
    name: str
    runs: str
    started: str = ""


@dataclass(frozen=True, slots=True)
class ExecutorLoad(Signal):
    """How many background tasks wait and run now."""

    executor: str
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class ExecutorSettled(Signal):
    """A background task ended: *ok*, *failed*, *timed_out* or *cancelled*, after waiting and running so long."""

    executor: str
    task: str
    result: str
    waited_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ExecutorRefused(Signal):
    """A background task was not taken, and its submitter told so: the executor is *full* or *stopping*."""

    executor: str
    task: str
    reason: str


@dataclass(frozen=True, slots=True)
class ExecutorFull(Signal):
    """The executor began to refuse; told again only after half of its queue was free in between."""

    level: ClassVar[Level] = Level.WARNING
    executor: str
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class PublishDropped(Signal):
    """A publish, or the enqueue of a job by that name, was called and never awaited: nothing was staged."""

    level: ClassVar[Level] = Level.ERROR
    event_type: str
