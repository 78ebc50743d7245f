"""What the outbox is told of settled publishes: confirmed rows leave it, refused ones stay with their reason."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from postroad.failures import FailureClass, Verdict
from postroad.outbox import store
from postroad.signals.catalog import (
    BodyMissing,
    LateWriteRefused,
    OutboxCleared,
    PublishesSettled,
    PublishRefused,
    PublishResult,
)
from postroad.sql.drive import drive
from postroad.transport.base import Settled, Settlement

if TYPE_CHECKING:
    from collections.abc import Collection

    from postroad.clock import Clock
    from postroad.leases import Lease
    from postroad.outbox.flight import Flight
    from postroad.outbox.floor import Floors
    from postroad.outbox.routes import Routes
    from postroad.outbox.settings import DispatchSettings
    from postroad.outbox.waiting import Waiting
    from postroad.outbox.window import Window
    from postroad.signals import Signals
    from postroad.sql import AsyncHand
    from postroad.sql.asyncpg import Connection

_NO_ACCESS, _NOT_FOUND = 403, 404
_RESULTS: Final = {
    Settlement.RETURNED: PublishResult.RETURNED,
    Settlement.NACKED: PublishResult.NACKED,
    Settlement.UNKNOWN: PublishResult.ERROR,
    Settlement.OVERDUE: PublishResult.TIMEOUT,
    Settlement.REFUSED: PublishResult.ERROR,
}


_SETTLEMENTS: Final = {str(settlement): settlement for settlement in Settlement}


class Clearer:
    """Hears of settlements at once, and tells the outbox in batches. One call of `clear` at a time.

    Every write is fenced by the leases of its shards: what another dispatcher took over meanwhile is not touched,
    and counted.
    """

    def __init__(
        self,
        *,
        schema: str,
        window: Window,
        waiting: Waiting,
        floors: Floors,
        routes: Routes,
        optional: Collection[str],
        settings: DispatchSettings,
        clock: Clock,
        chance: Callable[[], float],
        signals: Signals,
        held: Callable[[], Mapping[int, Lease]],
        holds: Callable[[int, Lease], bool],
        lost: Callable[[Lease], None],
    ) -> None:
        """`held` are the shards to read, with their leases; `holds` asks whether one is still held under a lease.

        `lost` is told when the database says that it is not.
        """
        self._schema = schema
        self._window = window
        self._waiting = waiting
        self._floors = floors
        self._routes = routes
        self._optional = frozenset(optional)
        self._settings = settings
        self._clock = clock
        self._chance = chance
        self._signals = signals
        self._held = held
        self._holds = holds
        self._lost = lost
        self._confirmed: list[Flight] = []
        self._charged: list[Flight] = []
        self._convicted: list[tuple[Flight, Settled]] = []
        self.cleared = 0
        """Rows that left the outbox, since the start."""

    @property
    def owed(self) -> int:
        """How many settled rows, and released routes, the outbox has not been told of."""
        return len(self._confirmed) + len(self._charged) + len(self._convicted) + len(self._routes.released())

    # --- at once ------------------------------------------------------------------------------------------------

    def settled(self, batch: Sequence[Settled]) -> tuple[list[Flight], bool]:
        """Take in answers of the broker: the rows whose fate is unknown, and whether held back rows may go now."""
        confirmed, others = self._window.settle(batch, self._clock.monotonic())
        released = self._resolved(confirmed)
        self._tell(confirmed, PublishResult.CONFIRMED)
        self._confirmed += confirmed
        if self._routes.any:
            self._probed(confirmed)
        unknown: list[Flight] = []
        told: dict[PublishResult, list[Flight]] = defaultdict(list)
        for flight, answer in others:
            result = self._result(flight, answer)
            told[result].append(flight)
            if answer.settlement is Settlement.UNKNOWN:
                flight.suspect = answer.code != 0
                unknown.append(flight)
            elif result is PublishResult.NO_SUBSCRIBER:
                released |= self._resolved([flight])
                self._confirmed.append(flight)
                self._probed([flight])
            elif answer.settlement is Settlement.REFUSED and answer.code != _NOT_FOUND:
                self._convict(flight, answer)
            else:
                reason = f"{answer.settlement}: {answer.reason}"
                self._refuse(flight, reason)
                self._routes.refused(flight, reason)
        unknown = [flight for flight in unknown if not self._passed_over(flight)]
        for result, flights in told.items():
            self._tell(flights, result)
        return unknown, released

    def missing(self, flights: Iterable[Flight]) -> None:
        """Rows that have no event in the log: kept, with that reason, and tried again ever later."""
        for flight in flights:
            self._signals.emit(BodyMissing(flight.place, flight.seq))
            self._waiting.refuse(flight, holds=False)
            self._charged.append(flight)

    def _probed(self, confirmed: Iterable[Flight]) -> None:
        for flight in confirmed:
            if flight.probe:
                self._routes.confirmed(flight)

    def _convict(self, flight: Flight, answer: Settled) -> None:
        self._convicted.append((flight, answer))
        if answer.code == _NO_ACCESS:  # The exchange's fault, or the topic's: it would be every other row's as well.
            self._routes.refused(flight, f"{answer.settlement}: {answer.reason}")
        elif flight.probe:
            self._routes.unanswered(flight)

    def _passed_over(self, flight: Flight) -> bool:
        """Put back a row of unknown fate that is a probe, or whose route is blocked."""
        if flight.probe:
            self._routes.unanswered(flight)
        elif self._routes.blocks(flight):
            self._routes.put_back([flight])
        else:
            return False
        return True

    def _refuse(self, flight: Flight, reason: str) -> None:
        flight.reason = reason
        self._waiting.refuse(flight)
        self._charged.append(flight)

    def _result(self, flight: Flight, answer: Settled) -> PublishResult:
        result = _RESULTS[answer.settlement]
        if result is PublishResult.RETURNED and flight.target is None and flight.route.key in self._optional:
            return PublishResult.NO_SUBSCRIBER
        return result

    def _resolved(self, flights: Iterable[Flight]) -> bool:
        """Let go what these held back; whether there was any."""
        released = False
        for flight in flights:
            if flight.attempts:
                back = self._waiting.settle(flight)
                if back is not None:
                    self._floors.rewind(flight.shard, back)
                    self._routes.rewind(flight.shard, back)
                    released = True
        return released

    def _tell(self, flights: Sequence[Flight], result: PublishResult) -> None:
        """One signal per route: what is settled, of which the outbox does not know yet."""
        routes: dict[str, list[Flight]] = {}
        for flight in flights:
            routes.setdefault(flight.route.key, []).append(flight)
        now = self._clock.now()
        for group in routes.values():
            where = group[0].route
            self._signals.emit(
                PublishesSettled(
                    where.type, where.version, result, len(group),
                    tuple([flight.settled_at - flight.sent_at for flight in group]),
                    tuple([max(0.0, (now - flight.recorded).total_seconds()) for flight in group]),
                    tuple([flight.attempts for flight in group]),
                )
            )  # fmt: skip

    # --- in batches ---------------------------------------------------------------------------------------------

    async def clear(self, connection: Connection, hand: AsyncHand) -> None:
        """Tell the outbox of everything that is settled: one statement for what leaves it, one for what stays.

        Repeating it after a failure is safe: a row is told of until its statement succeeded, and no statement does
        anything twice.

        Raises:
            Unavailable: the database is away; what was not told stays owed.
        """
        await self._delete(hand)
        await self._charge(hand)
        await self._let_go(hand)
        while self._convicted:
            await self._quarantine(connection, hand)

    def forget(self, shard: int) -> None:
        """A shard's lease is gone: nothing of it is told any more."""
        self._confirmed = [flight for flight in self._confirmed if flight.shard != shard]
        self._charged = [flight for flight in self._charged if flight.shard != shard]
        self._convicted = [pair for pair in self._convicted if pair[0].shard != shard]

    async def _delete(self, hand: AsyncHand) -> None:
        flights = self._ours(self._confirmed)
        if not flights:
            self._confirmed.clear()
            return
        reached = self._floors.reached()
        row = (await hand.fetch(store.clear(self._schema, flights)))[0]
        self._floors.mark(row["xid"], reached)
        self._settle_with(flights, row["shards"], self._confirmed)
        self.cleared += row["count"]
        self._signals.emit(OutboxCleared(deleted=row["count"], refused=0))

    async def _charge(self, hand: AsyncHand) -> None:
        flights = self._ours(self._charged)
        if not flights:
            self._charged.clear()
            return
        # One draw for the batch: rows of a key that were refused together come back together, in their order.
        chance = self._chance()
        waits = [self._settings.refused.delay(flight.attempts + 1, chance=chance) for flight in flights]
        reached = self._floors.reached()
        row = (await hand.fetch(store.charge(self._schema, flights, waits)))[0]
        self._floors.mark(row["xid"], reached)
        self._settle_with(flights, row["shards"], self._charged)
        self._signals.emit(OutboxCleared(deleted=0, refused=row["count"]))
        self._tell_refused(flights)

    async def _let_go(self, hand: AsyncHand) -> None:
        """What was refused of a route that is well again goes now, before what was passed over behind it."""
        routes = list(self._routes.released())
        leases = self._held()
        if routes and leases:
            reached = self._floors.reached()
            row = (await hand.fetch(store.let_go(self._schema, leases, routes)))[0]
            self._floors.mark(row["xid"], reached)
        del self._routes.released()[: len(routes)]

    async def _quarantine(self, connection: Connection, hand: AsyncHand) -> None:
        flight, answer = self._convicted[0]
        if self._holds(flight.shard, flight.lease):
            verdict = _verdict(flight, answer)
            async with connection.transaction():
                ours = await drive(store.quarantine(self._schema, flight, verdict), hand)
            self._settle_with([flight], [flight.shard] if ours else [], [])
            flight.reason = verdict.reason
            self._tell_refused([flight])
            self._resolved([flight])
        self._convicted = [pair for pair in self._convicted if pair[0] is not flight]

    def _ours(self, flights: Sequence[Flight]) -> list[Flight]:
        return [flight for flight in flights if self._holds(flight.shard, flight.lease)]

    def _settle_with(self, flights: Sequence[Flight], shards: Collection[int], owed: list[Flight]) -> None:
        """The fence let `shards` through: forget what was told, and the shards that it did not."""
        told = set(map(id, flights))
        owed[:] = [flight for flight in owed if id(flight) not in told]
        passed = set(shards)
        late = [flight for flight in flights if flight.shard not in passed]
        self._window.done(flights)
        if late:
            self._signals.emit(LateWriteRefused("outbox", len(late)))
            for lease in {id(flight.lease): flight.lease for flight in late}.values():
                self._lost(lease)

    def _tell_refused(self, flights: Sequence[Flight]) -> None:
        groups = Counter((flight.route, flight.reason) for flight in flights)
        for (where, reason), count in groups.items():
            word = reason.partition(":")[0]
            result = _RESULTS.get(_SETTLEMENTS.get(word, Settlement.REFUSED), PublishResult.ERROR)
            self._signals.emit(PublishRefused(where.type, where.version, result, count, reason))


def _verdict(flight: Flight, answer: Settled) -> Verdict:
    reason = f"the broker refused it ({answer.code}): {answer.reason}" if answer.code else answer.reason
    print_of = hashlib.sha256(f"publish {answer.code} {flight.route.key}".encode()).hexdigest()[:16]
    return Verdict(
        failure=FailureClass.QUARANTINE, code="PR509", reason=reason, error_type="Refused", fingerprint=print_of
    )
