"""The web server's door: an App that lives as long as its ASGI server, and one correlation id for each request."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import UsageError
from postroad.events.attributes import text_problem
from postroad.events.cause import Cause, cause, current_cause

# ASGI 3.0: the three arguments of an application, as Starlette, FastAPI, Litestar, Quart and Django have them.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER: Final = "X-Correlation-ID"

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, section 5.6.2.
# W3C Trace Context, section 3.2: later versions may append fields; ff, and ids of zeros alone, are not valid.
_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?", re.DOTALL
)
_ANSWERS: Final = ("http.response.start", "websocket.accept")


def lifespan(app: AbstractAsyncContextManager[object]) -> Callable[[object], AbstractAsyncContextManager[None]]:
    """The lifespan of a web application that runs `app` with it: ``FastAPI(lifespan=lifespan(app))``.

    The App starts on the server's loop before the first request, in each worker process after its fork, and stops in
    order after the last one, within its grace period. It has no roles unless POSTROAD_ROLES gives some: `app.executor`,
    `lifespan`, background services, health and metrics run, but nothing is dispatched or consumed. If it cannot start,
    the server does not either. With a lifespan of your own, say ``async with app:`` in that.
    """

    @asynccontextmanager
    async def running(_server: object) -> AsyncIterator[None]:
        async with app:
            yield

    return running


def correlation_id() -> str | None:
    """The story that the running code belongs to, for its log; None outside of requests, handlers and jobs."""
    what = current_cause()
    return None if what is None else what.correlation


class Correlation:
    """ASGI middleware: what a request publishes, enqueues and submits carries its correlation id; its answer, too.

    The id is the request's `header`; else the trace id of its ``traceparent`` (W3C Trace Context); else a new UUIDv7.
    A header that could not be an event's correlation (empty, over 255 bytes, not printable ASCII) counts as absent. The
    answer has it in the same header, unless the application has set that itself. Tasks and threads that the request
    starts inherit it (`contextvars`); a web socket keeps it until it closes.

    Whoever sends the request may choose it: where requests come from strangers, have the proxy set or remove both.
    """

    __slots__ = ("_app", "_clock", "_key")

    def __init__(self, app: Application, *, header: str = HEADER, clock: Clock = SYSTEM_CLOCK) -> None:
        """Wrap `app`; `clock` gives new ids.

        Raises:
            UsageError: PR107, `header` is not the name of a header.
        """
        if not _TOKEN.fullmatch(header):
            raise UsageError("PR107", f"Correlation(header={header!r}) is not the name of an HTTP header (RFC 9110)")
        self._app = app
        self._clock = clock
        self._key = header.lower().encode()  # ASGI: names of headers are in lower case.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request, web socket or lifespan."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        story = self._story(scope)

        async def answer(message: Message) -> None:
            if message["type"] in _ANSWERS:
                headers = [*message.get("headers", ())]
                if all(bytes(name).lower() != self._key for name, _ in headers):
                    message = {**message, "headers": [*headers, (self._key, story.encode())]}
            await send(message)

        with cause(Cause(story, None)):
            await self._app(scope, receive, answer)

    def _story(self, scope: Scope) -> str:
        trace = None
        for name, value in scope["headers"]:
            if name == self._key and value.isascii() and text_problem(value.decode()) is None:
                return str(value.decode())
            if name == b"traceparent" and trace is None:
                trace = _TRACEPARENT.fullmatch(value)
        return str(self._clock.new_id()) if trace is None else str(trace[1].decode())
