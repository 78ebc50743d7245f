"""The dispatcher: carries staged events from the outbox to the broker, and keeps what the broker did not take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import seconds
from postroad.errors import AccessRefused, Unavailable
from postroad.outbox import store
from postroad.outbox.clearer import Clearer
from postroad.outbox.floor import Floors
from postroad.outbox.reader import Reader
from postroad.outbox.routes import Routes
from postroad.outbox.settings import DispatchSettings
from postroad.outbox.shards import Shards
from postroad.outbox.waiting import MOST, Waiting
from postroad.outbox.window import Window
from postroad.retry import full_jitter
from postroad.signals.catalog import OutboxRead, OutboxState
from postroad.sql.asyncpg import AsyncpgHand

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.leases import Keeper
    from postroad.outbox.bond import Permit
    from postroad.outbox.flight import Flight
    from postroad.owner import Owner, Readiness
    from postroad.signals import Signals
    from postroad.sql.asyncpg import Connection
    from postroad.sql.manager import Manager
    from postroad.transport.base import Publisher, Settled

_SLOWER: Final = 1.25  # Each empty read makes the next pause longer by this: a quarter of a second after some twelve.
_BALANCE_JITTER: Final = 0.5
_UNKNOWN_AGAIN: Final = 1.0  # Rows whose fate nobody knows go again at once, but with a pause if it happens again.
_COUNTED: Final = 10_000
_GAUGE_SHARE: Final = 50
_FIRST_AWAY, _MOST_AWAY = timedelta(milliseconds=200), seconds(5)


class Dispatcher:
    """A service that sends what is staged: leased by shards, in order per key, at least once, confirmed and routed.

    Any number of processes may run one each: they share the shards. It holds two connections of the pool while it
    runs. With the broker away it reads nothing and keeps its shards; with the database away it tries again until it
    answers. Killed: its shards are taken over when their leases run out, and what it had sent without deleting it is
    sent again, with the same identity and bytes.
    """

    name = "dispatcher"

    def __init__(
        self,
        manager: Manager,
        keeper: Keeper,
        publisher: Publisher,
        *,
        owner: Owner,
        signals: Signals,
        clock: Clock,
        chance: Callable[[], float],
        settings: DispatchSettings | None = None,
        optional: Collection[str] = (),
        permit: Permit | None = None,
    ) -> None:
        """`optional` are the routing keys of the event types that may go without a subscriber.

        While `permit` has a doubt nothing is read or handed over, and no shard is taken; None has none.

        `chance` draws a number from 0 to 1 for jitter. The publisher must be bound to the loop that runs this.
        """
        self._manager = manager
        self._publisher = publisher
        self._permit = permit
        self._owner = owner
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self._settings = settings = settings or DispatchSettings()
        self._floors = Floors()
        self._waiting = Waiting()
        self._window = Window(settings.window, settings.window_bytes)
        self._routes = Routes(
            floors=self._floors, window=self._window, settings=settings, clock=clock, chance=chance, signals=signals
        )
        self._shards = Shards(
            keeper, ttl=settings.shard_ttl, signals=signals, busy=self._window.busy, take=self._take, drop=self._drop
        )
        self._reader = Reader(
            schema=manager.schema, floors=self._floors, waiting=self._waiting, window=self._window,
            routes=self._routes, settings=settings, clock=clock, held=self._shards.reading,
        )  # fmt: skip
        self._clearer = Clearer(
            schema=manager.schema, window=self._window, waiting=self._waiting, floors=self._floors,
            routes=self._routes, optional=optional, settings=settings, clock=clock, chance=chance, signals=signals,
            held=self._shards.reading, holds=self._shards.holds, lost=self._shards.lost,
        )  # fmt: skip
        self._wake = asyncio.Event()
        self._some = asyncio.Event()
        self._flush = asyncio.Event()
        self._quiet = asyncio.Event()
        self._delay = settings.busy
        self._enough = min(settings.page, max(1, settings.window // 4))
        self._starved = False
        self._stopping = False
        self._unknown: list[Flight] = []
        self._unknown_at = 0.0
        self._gauge_at = 0.0
        self._cleared_before_stop = 0
        self._given_back = 0

    def wake(self) -> None:
        """Look at once: something was staged in this process. Call it on the dispatcher's loop."""
        self._wake.set()

    def receipt(self) -> tuple[int, int, int]:
        """Rows finished since the stop, given back unsent or unknown, and abandoned without an answer."""
        finished = self._clearer.cleared - self._cleared_before_stop if self._stopping else 0
        return finished, self._given_back, self._window.unsettled

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`.

        Stopped, it reads no more, waits for the broker's answers, deletes what was confirmed and gives its shards up.
        Cancelled, it leaves what is unanswered to be sent again, by whoever holds the shards then.
        """
        await self._shards.release()  # Of a run that failed: what it knew is not to be trusted.
        self._stopping = False
        self._publisher.on_settled(self._on_settled)
        self._publisher.on_writable(self._wake.set)
        work = [
            self._owner.task(self._balance(), name="dispatcher:shards"),
            self._owner.task(self._clear(), name="dispatcher:clear"),
            self._owner.task(self._read(ready), name="dispatcher:read"),
        ]
        for task in work:
            task.add_done_callback(lambda _: self._quiet.set())
        ended: asyncio.Task[Any] = self._owner.task(stop.wait(), name="dispatcher:stop")
        cancelled = False
        try:
            await asyncio.wait([*work, ended], return_when=asyncio.FIRST_COMPLETED)
            await self._wind_down(work)
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            for task in (*work, ended):
                task.cancel()
            await asyncio.gather(*work, ended, return_exceptions=True)
            if not cancelled:
                await self._shards.release()

    @property
    def _doubt(self) -> str:
        return "" if self._permit is None else self._permit.doubt

    # --- reading ------------------------------------------------------------------------------------------------

    async def _read(self, ready: Readiness) -> None:
        """Read and hand over, for ever; a connection that breaks is replaced."""
        tries = 0
        while True:
            try:
                async with self._manager.connection() as connection:
                    hand = AsyncpgHand(connection)
                    if tries and self._permit is not None:
                        self._permit.look_again()
                    while True:
                        await self._turn(hand, ready)
                        tries = 0
            except AccessRefused:
                raise
            except Unavailable as error:
                tries += 1
                ready.down(str(error))
                await self._pause(self._away(tries))

    async def _turn(self, hand: AsyncpgHand, ready: Readiness) -> None:
        """One read, one hand-over, and the pause after it."""
        settings = self._settings
        if not self._publisher.writable:
            ready.down("the broker is away or does not take publishes")
            await self._pause(settings.idle)
            return
        if self._doubt:
            ready.down(self._doubt)
            await self._pause(settings.busy)
            return
        self._revive()
        self._hand_over()
        self._routes.look()
        room = self._window.room
        self._starved = room < self._enough
        if self._stopping or self._starved or self._unknown:
            late = timedelta(seconds=max(0.001, self._unknown_at - self._clock.monotonic()))
            await self._pause(late if self._unknown else settings.busy if self._window.ready else settings.idle)
            return
        flights = await self._reader.read(hand, room=room)
        ready.up()
        missing = [flight for flight in self._reader.missing() if self._shards.holds(flight.shard, flight.lease)]
        if missing:
            self._window.keep(missing)
            self._clearer.missing(missing)
            self._some.set()
        refused_meanwhile = [flight for flight in flights if not flight.probe and self._routes.blocks(flight)]
        if refused_meanwhile:
            self._routes.put_back(refused_meanwhile)
            flights = [flight for flight in flights if flight.probe or not self._routes.blocks(flight)]
        if flights and not self._stopping:
            self._signals.emit(OutboxRead(len(flights)))
            self._window.admit(flights)
            self._hand_over()
        await self._rest(found=bool(flights))

    def _hand_over(self) -> None:
        """Hand over what is ready; nothing while earlier rows wait to go again, lest they come behind."""
        if self._stopping or self._unknown or not self._publisher.writable or not self._window.ready or self._doubt:
            return
        self._shards.check()
        if self._waiting.any:
            self._window.hold_back(self._waiting.holds_back)
        now = self._clock.monotonic()
        for probe in self._window.hand_over_probes(now):
            self._publisher.publish([probe])
        batch = self._window.hand_over(now)
        if batch:
            self._publisher.publish(batch)

    def _revive(self) -> None:
        """Rows whose fate nobody knows go again, in order, after a pause; not those whose route is blocked by now."""
        if self._unknown and self._clock.monotonic() >= self._unknown_at:
            unknown, self._unknown = self._unknown, []
            self._routes.put_back([flight for flight in unknown if self._routes.blocks(flight)])
            self._window.again(unknown)

    async def _rest(self, *, found: bool) -> None:
        settings = self._settings
        if self._reader.more:
            self._delay = settings.busy
            return
        self._delay = settings.busy if found else min(self._delay * _SLOWER, settings.idle)
        await self._pause(self._delay)

    async def _pause(self, time: timedelta) -> None:
        try:
            async with asyncio.timeout(time.total_seconds()):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    # --- settlements --------------------------------------------------------------------------------------------

    def _on_settled(self, batch: Sequence[Settled]) -> None:
        unknown, released = self._clearer.settled(batch)
        if unknown:
            self._give_back(unknown)
        if released or self._routes.released():
            self._reader.rewound()
            self._wake.set()
        self._hand_over()
        if self._starved and self._window.room >= self._enough:
            self._wake.set()
        if self._clearer.owed:
            self._some.set()
        if not self._window.unsettled or self._clearer.owed >= self._settings.page:
            self._flush.set()
        if not self._window.unsettled:
            self._quiet.set()

    def _give_back(self, unknown: Sequence[Flight]) -> None:
        if self._stopping:
            self._given_back += len(unknown)
            self._window.done(unknown)
            return
        now = self._clock.monotonic()
        again = now - self._unknown_at < _UNKNOWN_AGAIN
        self._unknown += unknown
        self._unknown_at = now + (self._settings.unknown_pause.total_seconds() if again else 0)
        self._wake.set()

    async def _clear(self) -> None:
        """Tell the outbox what is settled, for ever; a connection that breaks is replaced."""
        tries = 0
        while True:
            try:
                async with self._manager.connection() as connection:
                    while True:
                        await self._clear_once(connection)
                        tries = 0
            except AccessRefused:
                raise
            except Unavailable:
                tries += 1
                await asyncio.sleep(self._away(tries).total_seconds())
                self._some.set()

    async def _clear_once(self, connection: Connection) -> None:
        await self._some.wait()
        if self._window.unsettled and self._clearer.owed < self._settings.page:
            try:
                async with asyncio.timeout(self._settings.linger.total_seconds()):
                    await self._flush.wait()
            except TimeoutError:
                pass
        self._some.clear()
        self._flush.clear()
        await self._clearer.clear(connection, AsyncpgHand(connection))
        if self._starved:
            self._wake.set()
        if not self._clearer.owed:
            self._quiet.set()

    # --- shards -------------------------------------------------------------------------------------------------

    async def _balance(self) -> None:
        """Keep to our share of the shards, for ever, about once a second."""
        while True:
            try:
                if not self._doubt and not self._stopping:
                    await self._shards.balance()
                await self._gauge()
            except AccessRefused:
                raise
            except Unavailable:
                pass  # What is held stays so until its lease runs out; the keeper tells of that.
            self._wake.set()
            jitter = 1 - _BALANCE_JITTER * self._chance()
            await asyncio.sleep(self._settings.balance.total_seconds() * jitter)

    async def _take(self, shards: Collection[int]) -> None:
        """Learn which keys of `shards` wait for a refused row; then read them from their beginning."""
        rows = await self._manager.fetch(store.waiting(self._manager.schema, sorted(shards), limit=MOST))
        for shard in shards:
            mine = [(row["place"], row["key_hash"]) for row in rows if row["shard"] == shard]
            self._waiting.load(shard, mine, complete=len(rows) < MOST)
            self._floors.add(shard)
            refused = {row["route"]: row["reason"] or "" for row in rows if row["shard"] == shard and row["route"]}
            self._routes.add(shard, refused)

    def _drop(self, shard: int) -> None:
        """A shard was given up, or its lease lost: forget it; the broker's late answers change nothing."""
        self._window.forget(shard)
        self._clearer.forget(shard)
        self._waiting.drop(shard)
        self._floors.drop(shard)
        self._routes.drop(shard)
        self._unknown = [flight for flight in self._unknown if flight.shard != shard]
        if not self._window.unsettled:
            self._quiet.set()

    async def _gauge(self) -> None:
        """Measure what waits; only the holder of the first shard does."""
        now = self._clock.monotonic()
        if now < self._gauge_at or 0 not in self._shards.reading():
            return
        rows = await self._manager.fetch(store.state(self._manager.schema, limit=_COUNTED))
        took = self._clock.monotonic() - now
        self._gauge_at = now + max(self._settings.gauge.total_seconds(), took * _GAUGE_SHARE)
        pending = tuple((row["route"], row["pending"]) for row in rows)
        self._signals.emit(OutboxState(pending, rows[0]["oldest"] if rows else 0.0))

    # --- stopping -----------------------------------------------------------------------------------------------

    async def _wind_down(self, work: Sequence[asyncio.Task[None]]) -> None:
        """Send nothing more; wait until the broker has answered for everything and the outbox knows it."""
        self._stopping = True
        self._cleared_before_stop = self._clearer.cleared
        self._given_back += len(self._window.withdraw())
        unknown, self._unknown = self._unknown, []
        self._give_back(unknown)
        await self._shards.leave()
        while True:
            self._quiet.clear()
            for task in work:
                if task.done():
                    await task  # Only a fault ends one of these.
            if not self._window.unsettled and not self._clearer.owed:
                return
            if self._clearer.owed:
                self._some.set()
            await self._quiet.wait()

    def _away(self, tries: int) -> timedelta:
        return full_jitter(tries, first=_FIRST_AWAY, most=_MOST_AWAY, chance=0.5 + self._chance() / 2)
