"""The three pages that a platform reads: live, ready, metrics; served from a thread of their own."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from postroad.errors import UsageError
from postroad.signals.catalog import HealthServing

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.owner import OwnedThread, Owner
    from postroad.runtime.supervisor import ServiceState
    from postroad.signals import Signals

LIVE_SECONDS: Final = 60.0
"""How long the App's loop may stand still before it counts as hung: a handler may block it for seconds, not minutes."""
BEAT_SECONDS: Final = 0.5
_HEAD_BYTES: Final = 8192
_READ_SECONDS: Final = 5.0
_CONNECTIONS: Final = 64
_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,1024}) HTTP/1\.[01]")
_REASONS: Final = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout",
    431: "Request Header Fields Too Large", 503: "Service Unavailable",
}  # fmt: skip


class Pulse:
    """Sign of life of the App's loop: `beat` is called on it, `age` is asked from another thread."""

    def __init__(self, clock: Clock) -> None:
        """Alive as of now."""
        self._clock = clock
        self._at = clock.monotonic()

    def beat(self) -> None:
        """The loop went round."""
        self._at = self._clock.monotonic()

    @property
    def age(self) -> float:
        """Seconds since the last beat."""
        return self._clock.monotonic() - self._at


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """Where the pages come from; each is called on the health thread and must be safe there."""

    pulses: Sequence[Callable[[], float]]
    """Seconds since each of our loops last went round: above LIVE_SECONDS the process is not live."""
    phase: Callable[[], str]
    """starting, running or stopping; only a running process is ready."""
    states: Callable[[], Sequence[ServiceState]]
    metrics: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    kind: str = "application/json"


class Health:
    """Serves `/health/live`, `/health/ready` and `/metrics` on its own thread and loop.

    A handler that blocks the App's loop therefore does not fail liveness, until it has done so for LIVE_SECONDS.
    Nothing else is served, nothing is changed, requests are bounded in size, time and number, and the address is
    loopback unless set otherwise.
    """

    def __init__(self, vitals: Vitals, *, host: str, port: int, owner: Owner, signals: Signals) -> None:
        """Serve on `host` and `port` (0: a free one) once started."""
        self._vitals = vitals
        self._host = host
        self._port = port
        self._owner = owner
        self._signals = signals
        self._thread: OwnedThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._busy = 0
        self.port = 0

    async def start(self) -> None:
        """Start the thread; returns once the port is open.

        Raises:
            UsageError: the port cannot be had.
        """
        here = asyncio.get_running_loop()
        opened: asyncio.Future[OSError | None] = here.create_future()

        def tell(error: OSError | None) -> None:
            here.call_soon_threadsafe(opened.set_result, error)

        self._thread = self._owner.thread(lambda: self._serve(tell), name="health")
        error = await opened
        if error is not None:
            where = f"{self._host}:{self._port}"
            message = f"POSTROAD_HEALTH_PORT: {where} cannot be had ({error.strerror}); set another port or host"
            raise UsageError("PR201", message) from error

    def stop(self) -> None:
        """Close the port; the thread ends by itself and is joined with the others. Safe to repeat."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self, tell: Callable[[OSError | None], None]) -> None:
        try:
            server = await asyncio.start_server(self._answer, self._host, self._port, limit=_HEAD_BYTES)
        except OSError as error:
            tell(error)
            return
        self.port = server.sockets[0].getsockname()[1]
        self._loop = asyncio.get_running_loop()
        self._signals.emit(HealthServing(self._host, self.port))
        tell(None)
        async with server:
            await self._stop.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._busy += 1
        try:
            async with asyncio.timeout(_READ_SECONDS):
                answer, head_only = await self._hear(reader)
                writer.write(_bytes(answer, head_only=head_only))
                await writer.drain()
        except (TimeoutError, OSError):
            pass  # It was slow or left; nobody is owed an answer.
        finally:
            self._busy -= 1
            writer.close()

    async def _hear(self, reader: asyncio.StreamReader) -> tuple[_Answer, bool]:
        if self._busy > _CONNECTIONS:
            return _fault(503), False
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _fault(431), False
        except asyncio.IncompleteReadError:
            return _fault(400), False
        line = _LINE.fullmatch(head.partition(b"\r\n")[0])
        if line is None:
            return _fault(400), False
        method, path = line[1], line[2].partition(b"?")[0]
        if method not in {b"GET", b"HEAD"}:
            return _fault(405), False
        return self._page(path), method == b"HEAD"

    def _page(self, path: bytes) -> _Answer:
        if path == b"/health/live":
            return self._live()
        if path == b"/health/ready":
            return self._ready()
        if path == b"/metrics":
            return _Answer(200, self._vitals.metrics(), "text/plain; version=0.0.4; charset=utf-8")
        return _fault(404)

    def _live(self) -> _Answer:
        oldest = max((age() for age in self._vitals.pulses), default=0.0)
        live = oldest <= LIVE_SECONDS
        return _json(200 if live else 503, {"live": live, "seconds_since_beat": round(oldest, 1)})

    def _ready(self) -> _Answer:
        phase, states = self._vitals.phase(), self._vitals.states()
        ready = phase == "running" and all(state.ready for state in states)
        services = {state.name: {"ready": state.ready, "reason": state.reason} for state in states}
        return _json(200 if ready else 503, {"ready": ready, "phase": phase, "services": services})


def _json(status: int, content: dict[str, object]) -> _Answer:
    return _Answer(status, json.dumps(content).encode() + b"\n")


def _fault(status: int) -> _Answer:
    return _json(status, {"error": _REASONS[status]})


def _bytes(answer: _Answer, *, head_only: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\nContent-Type: {answer.kind}\r\n"
        f"Content-Length: {len(answer.body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if head_only else answer.body)
