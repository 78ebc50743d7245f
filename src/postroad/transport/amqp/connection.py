"""One connection to the broker that comes back by itself, on the loop of the transport's thread."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pika
from pika import exceptions
from pika.adapters.asyncio_connection import AsyncioConnection

from postroad.clock import Clock, seconds
from postroad.errors import PostroadError, SettingsError
from postroad.hosts import each_host
from postroad.retry import full_jitter
from postroad.signals.catalog import ConnectionBlocked, ConnectionDown, ConnectionUp
from postroad.transport.amqp import faults
from postroad.transport.amqp.deliveries import hand_over
from postroad.transport.amqp.tables import read_header
from postroad.transport.amqp.tls import Tls

if TYPE_CHECKING:
    from postroad.signals import Signals
    from postroad.transport.base import Incoming

_BLOCK: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpSettings:
    """How the transport behaves; the defaults are meant to stay.

    `heartbeat` is negotiated with the broker; a silent connection is given up after it and five seconds more.
    `vouch` sends the connection's user as `user_id`, which the broker checks. `first` and `most` bound the wait before
    a reconnect (full jitter); the count of tries starts anew once a connection has stood for `stable`. Each `watch` the
    broker is asked how many messages and consumers each of our queues has. `tls` counts for ``amqps://``.
    """

    heartbeat: timedelta = seconds(15)
    connect_within: timedelta = seconds(10)
    confirm_within: timedelta = seconds(30)
    close_within: timedelta = seconds(5)
    first: timedelta = seconds(0.25)
    most: timedelta = seconds(30)
    stable: timedelta = seconds(10)
    watch: timedelta = seconds(10)
    vouch: bool = False
    name: str = "postroad"
    tls: Tls = field(default_factory=Tls)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the broker is and how to log in. `place` is what may be printed.

    The nodes of a cluster share one URL, a comma between them; `nodes` has an address for each.
    """

    url: str = field(repr=False)
    place: str
    user: str
    nodes: tuple[Address, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, url: str) -> Address:
        """Read an ``amqp://`` or ``amqps://`` URL, of one host or of several (``amqp://user@one:5672,two:5672/vhost``).

        Raises:
            SettingsError: it is not one.
        """
        nodes = [cls._one(each) for each in each_host(url)]
        vhost = f", virtual host {nodes[0].vhost!r}"
        place = " or ".join(node.place.removesuffix(vhost) for node in nodes) + vhost
        return cls(url=nodes[0].url, place=place, user=nodes[0].user, nodes=tuple(nodes))

    @classmethod
    def _one(cls, url: str) -> Address:
        if "ssl_options=" in url.partition("?")[2]:  # They could switch verification off.
            raise SettingsError("PR201", f"{faults.SETTING} has ssl_options; give POSTROAD_BROKER_CA and the like")
        try:
            parts = urlsplit(url)
            given = pika.URLParameters(url)
        except Exception:  # noqa: BLE001 - pika's reader raises many kinds
            # Without its cause, whose text may quote a piece of the password.
            raise SettingsError("PR201", f"{faults.SETTING} is not a URL like amqp://user@host:5672/vhost") from None
        if "@" in parts.path:  # The rest of a password with a slash in it: it would be printed as the virtual host.
            raise SettingsError("PR201", f"{faults.SETTING} has an @ behind the host; write / and @ as %2F and %40")
        if parts.scheme not in {"amqp", "amqps"}:
            raise SettingsError("PR201", f"{faults.SETTING} begins with {parts.scheme!r}; use amqp:// or amqps://")
        place = f"{given.host}:{given.port}, virtual host {given.virtual_host!r}"
        return cls(url=url, place=place, user=given.credentials.username)

    @property
    def vhost(self) -> str:
        """The virtual host."""
        return str(pika.URLParameters(self.url).virtual_host)

    @property
    def hosts(self) -> list[str]:
        """The names or addresses of all hosts."""
        return [str(pika.URLParameters(node.url).host) for node in self.nodes or (self,)]

    def parameters(self, settings: AmqpSettings, *, role: str) -> pika.URLParameters:
        """Fresh parameters: pika writes into them, and certificates are read anew.

        Raises:
            SettingsError: a certificate cannot be read.
        """
        parameters = pika.URLParameters(self.url)  # Of an address of one node.
        parameters.heartbeat = max(round(settings.heartbeat.total_seconds()), 1)
        parameters.connection_attempts = 1
        parameters.socket_timeout = settings.connect_within.total_seconds()
        parameters.stack_timeout = settings.connect_within.total_seconds()
        parameters.client_properties = {"product": "Postroad", "connection_name": f"{settings.name}.{role}"}
        if parameters.ssl_options is not None:
            parameters.ssl_options = pika.SSLOptions(settings.tls.context(), parameters.host)
        return parameters


class CoalescedConnection(AsyncioConnection):  # type: ignore[misc]
    """pika's connection, which writes frames in blocks, once per turn of the loop, and reads whatever headers come.

    Deliveries that `hands` take are read in one piece, and do not pass through pika's channel.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As `AsyncioConnection`."""
        self.hands: dict[tuple[int, bytes], tuple[int, Callable[[Incoming], None]]] = {}
        self._pieces: list[bytes] = []
        self._size = 0
        super().__init__(*arguments, **options)

    def emit(self, frames: bytes) -> None:
        """Send frames that were encoded elsewhere."""
        self._adapter_emit_data(frames)

    def abort(self) -> None:
        """Drop the connection without a word to the broker."""
        if not self.is_closed:
            self._terminate_stream(exceptions.AMQPConnectionError("given up"))

    def _proto_connection_made(self, transport: Any) -> None:
        transport._MAX_RECV_BYTES = _BLOCK  # noqa: SLF001 - pika's 4 kB are four deliveries
        super()._proto_connection_made(transport)

    def _read_frame(self) -> Any:
        taken = hand_over(self._frame_buffer, self.hands)
        if taken:
            self._trim_frame_buffer(taken)
        return read_header(self._frame_buffer) or super()._read_frame()

    def _adapter_emit_data(self, data: bytes) -> None:
        if not self._pieces:
            self._adapter_add_callback_threadsafe(self._flush)
        self._pieces.append(data)
        self._size += len(data)
        if self._size >= _BLOCK:  # What a socket takes at once; larger blocks would be copied again and again.
            self._write()

    def _flush(self) -> None:
        if self._pieces:
            self._write()

    def _write(self) -> None:
        block = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if self._transport is not None:
            super()._adapter_emit_data(block)


class RecoveringConnection:
    """Keeps one connection standing; loss, missed heartbeats and refusals all lead to the same recovery.

    Of several nodes it begins with any, so that processes spread over them, and goes on to the next after each loss
    or failed attempt; the wait grows once all were tried.

    Its users are told: `up` with the connection, `down` with a reason (also after a failed attempt), and `blocked`.
    All of it on the loop that `start` ran on.
    """

    def __init__(
        self,
        role: str,
        address: Address,
        *,
        settings: AmqpSettings,
        signals: Signals,
        clock: Clock,
        chance: Callable[[], float],
        up: Callable[[CoalescedConnection], None],
        down: Callable[[str], None],
        blocked: Callable[[bool], None],
    ) -> None:
        self._role = role
        self._nodes = address.nodes or (address,)
        self._turn = int(chance() * len(self._nodes))
        self._settings = settings
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self._up, self._down, self._blocked = up, down, blocked
        self._connection: CoalescedConnection | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._closing: asyncio.Future[None] | None = None
        self._tries = 0
        self._since = 0.0  # When it went down, or came up.
        self._is_blocked = False

    def start(self) -> None:
        """Begin to connect; needs the running loop."""
        self._since = self._clock.monotonic()
        self._connect()

    def abort(self) -> None:
        """Drop the connection and recover: for a user whom the broker no longer answers on it."""
        if self._connection is not None:
            self._connection.abort()

    async def close(self, *, within: timedelta) -> None:
        """Close for good, in good order where the broker answers `within` that time, else at once."""
        if self._retry is not None:
            self._retry.cancel()
        connection = self._connection
        self._closing = asyncio.get_running_loop().create_future()
        if connection is None or connection.is_closed:
            return
        if not connection.is_closing:
            connection.close()
        try:
            await asyncio.wait_for(asyncio.shield(self._closing), within.total_seconds())
        except TimeoutError:
            connection.abort()
            await asyncio.wait_for(asyncio.shield(self._closing), 1)

    @property
    def _node(self) -> Address:
        return self._nodes[self._turn % len(self._nodes)]

    def _connect(self) -> None:
        self._retry = None
        try:
            self._connection = CoalescedConnection(
                self._node.parameters(self._settings, role=self._role),
                on_open_callback=self._opened,
                on_open_error_callback=self._failed,
                on_close_callback=self._closed,
                custom_ioloop=asyncio.get_running_loop(),
            )
        except PostroadError as error:  # A certificate is missing, or half written: it may be whole next time.
            self._lost(str(error))
        except OSError as error:
            self._lost(f"{faults.refused_connection(error, place=self._node.place)}")

    def _opened(self, connection: CoalescedConnection) -> None:
        now = self._clock.monotonic()
        away, self._since = now - self._since, now
        connection.add_on_connection_blocked_callback(lambda *_: self._block(blocked=True))
        connection.add_on_connection_unblocked_callback(lambda *_: self._block(blocked=False))
        self._signals.emit(ConnectionUp(self._role, away))
        self._up(connection)

    def _failed(self, _connection: CoalescedConnection, error: BaseException) -> None:
        self._lost(str(faults.refused_connection(error, place=self._node.place)))

    def _closed(self, _connection: CoalescedConnection, error: BaseException) -> None:
        now = self._clock.monotonic()
        if now - self._since >= self._settings.stable.total_seconds():
            self._tries = 0
        self._since = now
        self._lost(str(faults.lost_connection(error)))

    def _lost(self, reason: str) -> None:
        self._connection = None
        if self._is_blocked:
            self._block(blocked=False)
        if self._closing is not None:
            self._down("closed")
            if not self._closing.done():
                self._closing.set_result(None)
            return
        self._signals.emit(ConnectionDown(self._role, reason))
        self._down(reason)
        self._tries += 1
        self._turn += 1
        rounds = math.ceil(self._tries / len(self._nodes))
        wait = full_jitter(rounds, first=self._settings.first, most=self._settings.most, chance=self._chance())
        self._retry = asyncio.get_running_loop().call_later(wait.total_seconds(), self._connect)

    def _block(self, *, blocked: bool) -> None:
        self._is_blocked = blocked
        self._signals.emit(ConnectionBlocked(self._role, blocked))
        self._blocked(blocked)
