"""What an installation leaves on the broker: marks that last, and a name that running databases hold or are denied."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pika import exceptions

from postroad.errors import AccessRefused, PostroadError, Unavailable
from postroad.transport.amqp import faults
from postroad.transport.amqp.admin import Session, look_for
from postroad.transport.amqp.handover import post

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from datetime import timedelta

    from postroad.transport.amqp.connection import Address, AmqpSettings

T = TypeVar("T")

_STANDS_STILL: Final = "the transport does not run at the moment"
RIGHTS: Final = r"give it configure and read on ^postroad\.installation\."


class AmqpMarks:
    """Marks are durable exchanges, which nobody publishes to; a name is a queue with a consumer of each holder.

    Which instance holds a name is an argument of its queue that AMQP compares when it is declared: a limit of bytes,
    since that is a number, asks for no rights, and limits nothing in a queue that stays empty. A queue without
    consumers is nobody's, and is replaced. All of it is one connection, on the loop that runs when it is called.
    """

    def __init__(self, address: Address, settings: AmqpSettings) -> None:
        """Connect to nothing yet."""
        self.broker = address.place
        self._address = address
        self._settings = settings
        self._session: Session | None = None
        self._held: tuple[str, int, Any] | None = None
        self._hear: Callable[[], None] = lambda: None

    def on_lost(self, hear: Callable[[], None]) -> None:
        """See `Marks.on_lost`."""
        self._hear = hear

    async def has(self, mark: str) -> bool:
        """See `Marks.has`."""
        return await self._looked("exchange", mark) is not None

    async def put(self, mark: str) -> None:
        """See `Marks.put`."""
        await self._call("exchange_declare", mark, exchange_type="fanout", durable=True, internal=True)

    async def remove(self, mark: str) -> None:
        """See `Marks.remove`."""
        await self._call("exchange_delete", mark)

    async def hold(self, name: str, instance: int) -> bool:
        """See `Marks.hold`."""
        session = await self._connected()
        if self._held == (name, instance, session.channel):
            return True
        for _ in range(2):
            if await self._declared(name, instance):
                channel = session.channel
                await self._call("basic_consume", name, _ignore, auto_ack=True)
                if channel is not None and channel is session.channel:
                    channel.add_on_cancel_callback(lambda _: self._lost(session))
                    self._held = (name, instance, channel)
                    return True
            elif await self._consumers(name):
                return False
            else:
                await self._call("queue_delete", name)
        return False

    async def taken(self, name: str, instance: int) -> bool:
        """See `Marks.taken`."""
        return await self._consumers(name) > 0 and not await self._declared(name, instance)

    async def close(self) -> None:
        """See `Marks.close`."""
        session, self._session, self._held = self._session, None, None
        if session is not None:
            await session.__aexit__(None, None, None)

    async def _declared(self, name: str, instance: int) -> bool:
        """Whether the queue stands and is this instance's."""
        arguments = {"x-queue-type": "quorum", "x-max-length-bytes": instance}
        session = await self._connected()
        try:
            await session.call("queue_declare", name, durable=True, arguments=arguments)
        except exceptions.ChannelClosedByBroker as error:
            if error.reply_code != faults.PRECONDITION_FAILED:
                raise self._refused(error, name) from error
            return False
        return True

    async def _consumers(self, name: str) -> int:
        found = await self._looked("queue", name)
        return 0 if found is None else int(found.method.consumer_count)

    async def _looked(self, kind: str, name: str) -> Any:
        return await look_for(await self._connected(), kind, name)

    async def _call(self, method: str, name: str, *arguments: Any, **options: Any) -> None:
        session = await self._connected()
        try:
            await session.call(method, name, *arguments, **options)
        except exceptions.ChannelClosedByBroker as error:
            raise self._refused(error, name) from error

    def _refused(self, error: exceptions.ChannelClosedByBroker, name: str) -> PostroadError:
        said = faults.shorten(error.reply_text)
        if error.reply_code == faults.ACCESS_REFUSED:
            return AccessRefused("PR303", f"the broker user may not have {name!r} ({said}); {RIGHTS}")
        return Unavailable("PR302", f"the broker does not do its part for {name!r} ({error.reply_code} {said})")

    async def _connected(self) -> Session:
        if self._session is not None and not self._session.closed.done():
            return self._session
        await self.close()
        session = Session(self._address, self._settings)
        await session.__aenter__()
        self._session = session
        session.closed.add_done_callback(lambda _: self._lost(session))
        return session

    def _lost(self, session: Session) -> None:
        if session is self._session:
            self._held = None
            self._hear()


class ThreadMarks:
    """`AmqpMarks` on the transport's thread: a caller whose loop is blocked loses nothing that it holds."""

    def __init__(
        self, make: Callable[[], AmqpMarks], *, loop: Callable[[], asyncio.AbstractEventLoop | None], within: timedelta
    ) -> None:
        """Made on the caller's loop. `loop` is the thread's, None while it does not run; `within` bounds an act."""
        self._make = make
        self._loop = loop
        self._within = within
        self._caller = asyncio.get_running_loop()
        self._hear: Callable[[], None] = lambda: None
        self._on: asyncio.AbstractEventLoop | None = None
        self._marks = make()

    @property
    def broker(self) -> str:
        """See `Marks.broker`."""
        return self._marks.broker

    def on_lost(self, hear: Callable[[], None]) -> None:
        """See `Marks.on_lost`."""
        self._hear = hear

    async def has(self, mark: str) -> bool:
        """See `Marks.has`."""
        return await self._do(lambda marks: marks.has(mark))

    async def put(self, mark: str) -> None:
        """See `Marks.put`."""
        await self._do(lambda marks: marks.put(mark))

    async def remove(self, mark: str) -> None:
        """See `Marks.remove`."""
        await self._do(lambda marks: marks.remove(mark))

    async def hold(self, name: str, instance: int) -> bool:
        """See `Marks.hold`."""
        return await self._do(lambda marks: marks.hold(name, instance))

    async def taken(self, name: str, instance: int) -> bool:
        """See `Marks.taken`."""
        return await self._do(lambda marks: marks.taken(name, instance))

    async def close(self) -> None:
        """See `Marks.close`."""
        if self._on is not None and self._on is self._loop():
            with suppress(Unavailable):  # Then there is nothing to let go of.
                await self._do(lambda marks: marks.close())

    def _tell(self) -> None:
        post(self._caller, self._hear)

    async def _do(self, act: Callable[[AmqpMarks], Coroutine[Any, Any, T]]) -> T:
        loop = self._loop()
        if loop is None:
            raise Unavailable("PR302", _STANDS_STILL)
        if loop is not self._on:  # The thread was started anew: what was held before is gone.
            self._on, self._marks = loop, self._make()
            self._marks.on_lost(self._tell)
        work = act(self._marks)
        try:
            answer = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError as error:
            work.close()
            raise Unavailable("PR302", _STANDS_STILL) from error
        try:
            async with asyncio.timeout(self._within.total_seconds()):
                return await asyncio.wrap_future(answer)
        except TimeoutError as error:
            raise Unavailable("PR302", f"broker {self.broker} does not answer in time") from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise Unavailable("PR302", _STANDS_STILL) from error  # It was cancelled with its thread, not we.


def _ignore(*_: Any) -> None:
    """Nobody sends anything there; what comes is gone."""
