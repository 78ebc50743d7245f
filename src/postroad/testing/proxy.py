"""A TCP proxy that tests can sever: what a network does to a connection."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_CHUNK = 65_536


class TcpProxy:
    """Forwards a loopback port to another, and lets a test cut, stall and heal the line.

    It starts on construction and runs on threads of its own until `close`. All methods may be called from any thread.
    """

    def __init__(self, target_port: int, *, target_host: str = "127.0.0.1") -> None:
        self._target = (target_host, target_port)
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._stranded: set[tuple[socket.socket, socket.socket]] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = False
        self._listener = _bound(0)
        self.port: int = self._listener.getsockname()[1]
        self._listening = False
        self._listen()

    def cut(self) -> None:
        """Drop all connections and refuse new ones, until `heal`."""
        with self._lock:
            if self._listening:
                _drop(self._listener)
                # Bound but not listening: the system refuses connections, and nobody else is given the port.
                self._listener = _bound(self.port)
                self._listening = False
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            _drop(*pair)
        self._flowing.set()

    def stall(self) -> None:
        """Keep connections and accept new ones, but forward nothing, until `heal`."""
        self._flowing.clear()

    def strand(self) -> None:
        """Make open connections lead nowhere for good, without a word; new ones work: a fail-over without resets."""
        with self._lock:
            self._stranded |= self._pairs

    def heal(self) -> None:
        """Accept and forward again; what a stall held back goes on its way."""
        self._flowing.set()
        with self._lock:
            if not self._listening and not self._closed:
                self._listen()

    def close(self) -> None:
        """Drop all connections and end. Repeating is harmless."""
        self._closed = True
        self.cut()
        self._listener.close()

    @property
    def connections(self) -> int:
        """How many connections are open through the proxy now."""
        with self._lock:
            return len(self._pairs)

    def __enter__(self) -> Self:
        """Return the running proxy."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _listen(self) -> None:
        self._listener.listen(128)
        self._listening = True
        # A test server's own: no App, and with it no executor, runs around a proxy. It ends with its socket.
        threading.Thread(target=self._accept, args=(self._listener,), name=f"proxy-{self.port}", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                inner, _ = listener.accept()
            except OSError:
                return  # Cut or closed.
            try:
                outer = socket.create_connection(self._target, 5)
            except OSError:
                _drop(inner)
                continue
            outer.settimeout(None)
            self._join(listener, inner, outer)

    def _join(self, listener: socket.socket, inner: socket.socket, outer: socket.socket) -> None:
        pair = (inner, outer)
        with self._lock:
            if listener is not self._listener or not self._listening:
                _drop(inner, outer)
                return
            self._pairs.add(pair)
        for source, sink in (pair, pair[::-1]):
            # As the one in `_listen`: it ends with its sockets, which `cut` and `close` close.
            threading.Thread(
                target=self._pump, args=(source, sink, pair), name=f"proxy-{self.port}", daemon=True
            ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        with suppress(OSError):
            while chunk := source.recv(_CHUNK):
                self._flowing.wait()
                if pair not in self._stranded:
                    sink.sendall(chunk)
        self._flowing.wait()  # The end of a connection is news too, and a stalled line carries none.
        with self._lock:
            self._pairs.discard(pair)
            self._stranded.discard(pair)
        _drop(*pair)


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def _drop(*sockets: socket.socket) -> None:
    """Close for good; the shutdown wakes threads that wait on the socket."""
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
