"""A provider that is not ours: a real HTTP server that counts what it did, and misbehaves as it is told."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel

from postroad.effects import Absent, Done, EffectAttempt, Found, Refused, Unknown

if TYPE_CHECKING:
    from postroad.effects.outcome import LookedUp, Outcome

LONGEST = 30.0


class Provider:
    """Acts on POST, tells on GET what it did. `script` says how the next requests go, each in turn; then all is well.

    ``hang`` does nothing and never answers; ``act-hang`` acts, and never answers; ``late`` acts only when `let_go` is
    called, and never answers; ``act-late`` acts, and answers well when that is called; ``500`` does nothing,
    ``act-500`` acts, both answer 500; ``refuse`` answers 402;
    ``nonsense`` acts and answers something else, ``numbered`` a number for a reference. Questions about `mute` payments
    hang until `let_go`, too.
    """

    def __init__(self, *script: str, honours: bool = False, window: float = 1e9, lag: int = 0) -> None:
        self.script = deque(script)
        self.acts: Counter[str] = Counter()
        self.keys: dict[str, set[str]] = {}
        self.requests: Counter[str] = Counter()
        self.looks: Counter[str] = Counter()
        self.asked = threading.Event()
        self.blind = False
        self.mute: set[str] = set()
        self._known: dict[str, tuple[float, str]] = {}
        self._honours = honours
        self._window = window
        self._lag = lag
        self._lock = threading.Lock()
        self._released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def let_go(self) -> None:
        """Whatever hangs goes on."""
        self._released.set()

    def act(self, payment: str, key: str) -> str:
        with self._lock:
            known = self._known.get(key)
            if self._honours and known is not None and time.monotonic() - known[0] < self._window:
                return known[1]
            self.acts[payment] += 1
            self._known[key] = time.monotonic(), f"ref-{payment}-{self.acts[payment]}"
            return self._known[key][1]

    def post(self, payment: str, key: str) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self.requests[payment] += 1
            self.keys.setdefault(payment, set()).add(key)
            how = self.script.popleft() if self.script else "act"
        self.asked.set()
        match how:
            case "hang":
                self._released.wait(LONGEST)
                return 503, {}
            case "late":
                self._released.wait(LONGEST)
                self.act(payment, key)
                return 503, {}
            case "500":
                return 500, {}
            case "refuse":
                return 402, {"code": "no-cover"}
        ref = self.act(payment, key)
        if how in {"act-hang", "act-late"}:
            self._released.wait(LONGEST)
        if how == "numbered":
            return 200, {"ref": 7}
        return (500 if how in {"act-hang", "act-500"} else 200), ({} if how == "nonsense" else {"ref": ref})

    def get(self, payment: str, key: str) -> tuple[int, dict[str, str]]:
        with self._lock:
            self.looks[payment] += 1
            mute = payment in self.mute
        if mute:
            self._released.wait(LONGEST)
        with self._lock:
            known = self._known.get(key)
            if self.blind:
                return 503, {}
            if known is None or time.monotonic() - known[0] >= self._window or self.looks[payment] <= self._lag:
                return 404, {}
            return 200, {"ref": known[1]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self._answer(*provider.post(self.path.strip("/"), self.headers["Idempotency-Key"]))

            def do_GET(self) -> None:
                self._answer(*provider.get(self.path.strip("/"), self.headers["Idempotency-Key"]))

            def _answer(self, status: int, said: dict[str, str]) -> None:
                body = json.dumps(said).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:  # Whoever asked is gone.
                    return

            def log_message(self, *_: Any) -> None:
                return

        return Handler


class Charge(BaseModel):
    """What the owners under test are asked."""

    payment: str
    amount: int = 1
    asked_at: float = 0


class Cards:
    """An owner as an author would write it."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def perform(self, command: Charge, attempt: EffectAttempt) -> Outcome:
        return _outcome(*await _asked(self.url, "POST", command.payment, attempt.provider_key))

    async def look_up(self, command: Charge, attempt: EffectAttempt) -> LookedUp:
        return _found(*await _asked(self.url, "GET", command.payment, attempt.provider_key))


class BlindCards:
    """One that cannot look anything up."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def perform(self, command: Charge, attempt: EffectAttempt) -> Outcome:
        return _outcome(*await _asked(self.url, "POST", command.payment, attempt.provider_key))


class PlainCards:
    """One of plain functions."""

    def __init__(self, url: str) -> None:
        self.url = url

    def perform(self, command: Charge, attempt: EffectAttempt) -> Outcome:
        return _outcome(*_asked_plainly(self.url, "POST", command.payment, attempt.provider_key))

    def look_up(self, command: Charge, attempt: EffectAttempt) -> LookedUp:
        return _found(*_asked_plainly(self.url, "GET", command.payment, attempt.provider_key))


def _outcome(status: int, said: dict[str, str]) -> Outcome:
    match status:
        case 200 if "ref" in said:
            return Done(said["ref"])
        case 402:
            return Refused(said["code"])
        case 200:
            return None  # type: ignore[return-value]  # As careless owners do.
    message = f"the provider answered {status}"
    raise RuntimeError(message)


def _found(status: int, said: dict[str, str]) -> LookedUp:
    return {200: Found(Done(said.get("ref", ""))), 404: Absent}.get(status, Unknown)


async def _asked(url: str, method: str, payment: str, key: str) -> tuple[int, dict[str, str]]:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"{method} /{payment} HTTP/1.0\r\nIdempotency-Key: {key}\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)
    finally:
        writer.close()


def _asked_plainly(url: str, method: str, payment: str, key: str) -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(f"{url}/{payment}", method=method, headers={"Idempotency-Key": key})
    try:
        with urllib.request.urlopen(request, timeout=LONGEST) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())
