"""Declaring and verifying a topology, on a connection of its own that is thrown away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from pika import exceptions, spec

from postroad.errors import AccessRefused, SettingsError, TopologyError, Unavailable
from postroad.transport.amqp import faults
from postroad.transport.amqp.connection import Address, AmqpSettings, CoalescedConnection
from postroad.transport.topology import Difference, Exchange, Queue, Topology

NOT_CHECKED: Final = (
    "not checked: bindings, arguments, policies and time-outs, which AMQP does not show; a missing binding shows as a"
    " returned publish, another argument as a refused apply"
)
"""What `verify` cannot see; whoever prints its differences prints this too."""


class Session:
    """A short-lived connection on the running loop, with one channel that is opened anew when the broker closes it.

    ``async with``: entering connects to the first node that can be reached (AccessRefused, Unavailable), leaving
    closes.
    """

    def __init__(self, address: Address, settings: AmqpSettings) -> None:
        self._address = address
        self._settings = settings
        self._limit = settings.connect_within.total_seconds()
        self._connection: CoalescedConnection | None = None
        self._channel: Any = None
        self._waiting: asyncio.Future[Any] | None = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        """Connect."""
        *others, last = self._address.nodes or (self._address,)
        for node in others:
            with suppress(Unavailable):
                return await self._connected(node, place=node.place)
        return await self._connected(last, place=self._address.place)

    async def _connected(self, node: Address, *, place: str) -> Self:
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def failed(_connection: Any, error: BaseException) -> None:
            if not opened.done():
                opened.set_exception(faults.refused_connection(error, place=place))

        try:
            self._connection = CoalescedConnection(
                node.parameters(self._settings, role="admin"),
                on_open_callback=lambda _connection: None if opened.done() else opened.set_result(None),
                on_open_error_callback=failed,
                on_close_callback=self._lost,
                custom_ioloop=asyncio.get_running_loop(),
            )
            await asyncio.wait_for(opened, self._limit + 1)
        except (TimeoutError, OSError) as error:
            self._abort()
            raise faults.refused_connection(error, place=place) from error
        except BaseException:
            self._abort()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, at once where the broker does not answer."""
        connection = self._connection
        if connection is None or connection.is_closed:
            return
        if not connection.is_closing:
            connection.close()
        done, _ = await asyncio.wait([self._closed], timeout=self._settings.close_within.total_seconds())
        if not done:
            self._abort()

    @property
    def closed(self) -> asyncio.Future[None]:
        """Done once the connection is gone, however that came about."""
        return self._closed

    @property
    def channel(self) -> Any:
        """The channel of the last call; None where there is none, or the broker closed it."""
        return self._channel

    @property
    def server(self) -> str:
        """What the broker says it is, such as ``RabbitMQ 4.0.5``; empty before it is connected."""
        said: dict[str, Any] = getattr(self._connection, "server_properties", None) or {}
        return f"{said.get('product', 'unknown')} {said.get('version', '')}".strip() if said else ""

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the channel and return the broker's answer.

        Raises:
            pika.exceptions.ChannelClosedByBroker: it refused; the next call opens a new channel.
            Unavailable: the connection is lost, or there is no answer in time.
        """
        if self._channel is None:
            self._channel = await self._answer(self._open)
        channel = self._channel
        return await self._answer(lambda hear: getattr(channel, method)(*arguments, callback=hear, **options))

    async def publish(self, exchange: str, routing_key: str, properties: spec.BasicProperties) -> None:
        """Publish nothing but `properties`, and wait until the broker has taken it, routed or not.

        Raises:
            pika.exceptions.ChannelClosedByBroker: it refused; the next call opens a new channel.
            Unavailable: the connection is lost, or there is no answer in time.
        """
        settled: list[Callable[[Any], None]] = []

        def settle(frame: Any) -> None:
            settled[0](frame)

        await self.call("confirm_delivery", settle)
        channel = self._channel

        def send(hear: Callable[[Any], None]) -> None:
            settled.append(hear)
            channel.basic_publish(exchange, routing_key, b"", properties)

        await self._answer(send)

    def _open(self, hear: Callable[[Any], None]) -> None:
        if self._connection is None or not self._connection.is_open:
            raise Unavailable("PR302", f"the connection to the broker at {self._address.place} was lost")

        def opened(channel: Any) -> None:
            channel.add_on_close_callback(self._channel_closed)
            hear(channel)

        self._connection.channel(on_open_callback=opened)

    async def _answer(self, ask: Callable[[Callable[[Any], None]], None]) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting = answer
        ask(lambda frame: None if answer.done() else answer.set_result(frame))
        try:
            return await asyncio.wait_for(answer, self._limit)
        except TimeoutError as error:
            raise faults.refused_connection(error, place=self._address.place) from error
        finally:
            self._waiting = None

    def _channel_closed(self, channel: Any, error: BaseException) -> None:
        if channel is self._channel:
            self._channel = None
        if isinstance(error, exceptions.ChannelClosedByBroker):
            self._fail(error)

    def _lost(self, _connection: Any, error: BaseException) -> None:
        self._channel = None
        self._fail(faults.lost_connection(error))
        if not self._closed.done():
            self._closed.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def _abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()


async def apply(session: Session, topology: Topology) -> None:
    """Declare everything; what stands already as declared stays. Repeat at will, also after a crash half way.

    An exchange of another owner is declared only where it is missing, since declaring needs rights that a consumer
    need not have.

    Raises:
        TopologyError: something stands on the broker otherwise than declared; the message says how.
        AccessRefused: the user may not declare, or not bind.
        Unavailable: the broker is away.
    """
    for exchange in topology.exchanges:
        if exchange.owned or not await _stands(session, exchange):
            await _declare(
                session,
                f"exchange {exchange.name!r}",
                "exchange_declare",
                exchange.name,
                exchange_type=exchange.kind,
                durable=True,
            )
    for queue in topology.queues:
        if not queue.owned:
            await _require(session, queue)
            continue
        await _declare(
            session,
            f"queue {queue.name!r}",
            "queue_declare",
            queue.name,
            durable=True,
            arguments=dict(queue.arguments),
        )
    for binding in topology.bindings:
        what = f"the binding of queue {binding.queue!r} to exchange {binding.exchange!r}"
        await _declare(session, what, "queue_bind", binding.queue, binding.exchange, binding.routing_key)


async def verify(session: Session, topology: Topology) -> list[Difference]:
    """What is missing on the broker, as far as AMQP shows it, and the user may look: see `NOT_CHECKED`.

    Raises:
        Unavailable: the broker is away.
    """
    things: list[Exchange | Queue] = [*topology.exchanges, *topology.queues]
    return [
        Difference(_kind(thing), thing.name, "does not exist", _remedy(thing))
        for thing in things
        if not await _stands(session, thing)
    ]


async def prove_user(session: Session, exchange: str, user: str) -> None:
    """Prove that the broker vouches for `user` on what this connection publishes, by a publish that no queue gets.

    `exchange` is a direct one of the user's own. Repeating is harmless; a broker that knows the connection by another
    name (a token's or a certificate's) would refuse every publish.

    Raises:
        SettingsError: it knows the connection by another name.
        AccessRefused: the user may not write to the exchange.
        TopologyError: the exchange does not exist.
        Unavailable: the broker is away.
    """
    properties = spec.BasicProperties(user_id=user)
    try:
        await session.publish(exchange, f"postroad.nobody.{user}", properties)
    except exceptions.ChannelClosedByBroker as error:
        if error.reply_code == faults.PRECONDITION_FAILED:
            message = f"POSTROAD_VOUCH is on, but the broker knows this connection by another name than {user!r}"
            raise SettingsError("PR201", f"{message} ({faults.shorten(error.reply_text)})") from error
        raise faults.refused_declaration(
            error.reply_code, error.reply_text, what=f"a publish to exchange {exchange!r}"
        ) from error


async def depths(session: Session, names: Iterable[str]) -> dict[str, int]:
    """How many messages are ready in each queue; queues that do not exist are left out.

    Raises:
        AccessRefused: the user may not even look.
        Unavailable: the broker is away.
    """
    found: dict[str, int] = {}
    for name in names:
        answer = await look_for(session, "queue", name)
        if answer is not None:
            found[name] = answer.method.message_count
    return found


def mismatches(differences: Iterable[Difference]) -> dict[str, int]:
    """How many differences there are of each kind."""
    return dict(Counter(difference.kind for difference in differences))


def _kind(thing: Exchange | Queue) -> str:
    return "exchange" if isinstance(thing, Exchange) else "queue"


def _remedy(thing: Exchange | Queue) -> str:
    another = isinstance(thing, Queue) and not thing.owned
    return "its owner declares it; nothing here does" if another else "run: postroad topology apply MODULE:APP"


async def _require(session: Session, queue: Queue) -> None:
    if not await _stands(session, queue):
        message = f"queue {queue.name!r}, which a consumer takes from, does not exist; {_remedy(queue)}"
        raise TopologyError("PR205", message)


async def _stands(session: Session, thing: Exchange | Queue) -> bool:
    """Whether it is there, as far as the user may look: from RabbitMQ 4.2 on that takes a right on the thing itself.

    What it may not look at is no difference: whoever needs it finds out by using it.
    """
    try:
        return await look_for(session, _kind(thing), thing.name) is not None
    except AccessRefused:
        return True


async def look_for(session: Session, kind: str, name: str) -> Any:
    """The broker's answer to a passive declare of an exchange or queue, or None where there is no such thing."""
    try:
        return await session.call(f"{kind}_declare", name, passive=True)
    except exceptions.ChannelClosedByBroker as error:
        if error.reply_code == faults.NOT_FOUND:
            return None
        raise faults.refused_declaration(error.reply_code, error.reply_text, what=f"{kind} {name!r}") from error


async def _declare(session: Session, what: str, method: str, *arguments: Any, **options: Any) -> None:
    try:
        await session.call(method, *arguments, **options)
    except exceptions.ChannelClosedByBroker as error:
        raise faults.refused_declaration(error.reply_code, error.reply_text, what=what) from error
