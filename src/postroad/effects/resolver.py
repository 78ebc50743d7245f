"""The service that finds out what became of effects whose outcome nobody knows, and wakes whoever waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from postroad.audit import record
from postroad.clock import seconds
from postroad.effects import store
from postroad.effects.call import ask
from postroad.effects.decide import Conclusion, State, concluded, doubtful
from postroad.effects.ledger import looked_up
from postroad.effects.outcome import EffectAttempt
from postroad.errors import Unavailable
from postroad.failures import Rules, classify
from postroad.signals.catalog import EffectLookedUp, EffectsOpen, TaskFailed
from postroad.work.running import bring_forward

if TYPE_CHECKING:
    from postroad.effects.effect import Effect
    from postroad.effects.ledger import Ledger
    from postroad.effects.store import Entry
    from postroad.owner import Owner, Readiness
    from postroad.sql import Pipeline

EVERY: Final = seconds(1)
"""How often each process sweeps; they pass over each other's rows."""
AT_ONCE: Final = 8
"""How many look-ups run at once in a process: one that hangs keeps a place, and no other effect waiting."""
_TELL: Final = seconds(15)
_MARGIN: Final = seconds(10)
_LET_GO: Final = seconds(2)
_RULES: Final = Rules()


class Resolver:
    """Looks up the unknown outcomes of one App's effects, in each of its working processes.

    A look-up is claimed for as long as it may take, with a token: another takes it over when that is over, and the late
    answer of the first changes nothing. Each answer is recorded in the audit, in the transaction that it is noted in.
    Effects without a ``look_up`` are left to a person, once the provider may have forgotten their keys.
    """

    name = "effects"

    def __init__(
        self, ledger: Ledger, *, owner: Owner, chance: Callable[[], float], every: timedelta = EVERY
    ) -> None:  # fmt: skip
        """Resolve for `ledger`, which is closed at the end."""
        self._ledger = ledger
        self._owner = owner
        self._chance = chance
        self._every = every.total_seconds()
        self._effects: dict[str, Effect[Any]] = dict(ledger.effects)
        self._looking: set[asyncio.Task[None]] = set()
        self._tell_at = float("-inf")

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`.

        Raises:
            UsageError: PR107, the App's lifespan does not yield the owner of an effect.
        """
        for effect in self._effects.values():
            self._ledger.acting(effect)
        try:
            while not stop.is_set():
                try:
                    await self._round()
                    ready.up()
                except Unavailable as error:
                    ready.down(error.code)
                await self._rest(stop)
        finally:
            ending = self._owner.task(self._let_go(), name="effects:let-go")
            await asyncio.shield(ending)

    async def _rest(self, stop: asyncio.Event) -> None:
        """Until the next sweep, or until somebody in this process has news; `stop` is seen within a quarter second."""
        clock = asyncio.get_running_loop()
        until, news = clock.time() + self._every, self._ledger.news
        while not stop.is_set() and not news.is_set() and (left := until - clock.time()) > 0:
            try:
                async with asyncio.timeout(min(left, 0.25)):
                    await news.wait()
            except TimeoutError:
                continue
        news.clear()

    async def _let_go(self) -> None:
        for task in self._looking:
            task.cancel()
        if self._looking:
            await asyncio.wait(self._looking, timeout=_LET_GO.total_seconds())
        await self._ledger.close()

    # --- one round --------------------------------------------------------------------------------------------------

    async def _round(self) -> None:
        ledger, schema = self._ledger, self._ledger.schema
        for name, state in await ledger.run(store.doubt_orphans(schema, self._doubtful())):
            ledger.moved(self._effects[name], state)
        for name in await ledger.run(self._give_up()):
            ledger.moved(self._effects[name], State.MANUAL)
        await self._look()
        await ledger.run(self._wake())
        await self._tell()

    def _doubtful(self) -> dict[str, State]:
        return {name: doubtful(effect) for name, effect in self._effects.items()}

    def _give_up(self) -> Pipeline[list[str]]:
        """Leave to a person what has no look-up, and can be repeated no more: that is the last look at it."""
        blind = {one.name: one.timeout for one in self._effects.values() if not one.can_look_up}
        given_up = (yield from store.past_window(self._ledger.schema, blind)) if blind else []
        for number, _ in given_up:
            yield from record(self._ledger.schema, looked_up(number, answer="too late", state=State.MANUAL))
        return [name for _, name in given_up]

    async def _look(self) -> None:
        leases = {one.name: one.timeout + _MARGIN for one in self._effects.values() if one.can_look_up}
        room = AT_ONCE - len(self._looking)
        if not leases or room <= 0:
            return
        for entry in await self._ledger.run(store.claim(self._ledger.schema, leases, limit=room)):
            self._ledger.moved(self._effects[entry.name], State.RECONCILING)
            task = self._owner.task(self._resolve(entry), name=f"effects:{entry.id}")
            self._looking.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._looking.discard(task)
        self._ledger.news.set()

    def _wake(self) -> Pipeline[None]:
        """Rows that are put off run at once; one that still runs is told the next time."""
        schema = self._ledger.schema
        for number, waiting in (yield from store.awaited(schema)):
            running = yield from bring_forward(schema, waiting)
            done = [row for row in waiting if row not in running]
            if done:
                yield from store.told(schema, number, done)

    async def _tell(self) -> None:
        now = self._ledger.clock.monotonic()
        if now >= self._tell_at:
            self._tell_at = now + _TELL.total_seconds()
            found = await self._ledger.run(store.open_state(self._ledger.schema))
            self._ledger.signals.emit(EffectsOpen(tuple(found)))

    # --- one look-up ------------------------------------------------------------------------------------------------

    async def _resolve(self, entry: Entry) -> None:
        effect = self._effects[entry.name]
        try:
            conclusion = await self._concluded(effect, entry)
            ours = await self._ledger.run(self._noting(entry, conclusion))
        except Unavailable:
            return  # Its claim runs out, and it is looked up again.
        except Exception as error:  # noqa: BLE001 - what is wrong with one stops no other
            verdict = classify(error, rules=_RULES, attempt=1)
            self._ledger.signals.emit(TaskFailed(f"effects:{entry.name}", verdict.error_type, verdict.reason))
            return
        if ours:
            self._ledger.signals.emit(EffectLookedUp(effect.name, conclusion.answer, conclusion.state))
            self._ledger.moved(effect, conclusion.state)

    async def _concluded(self, effect: Effect[Any], entry: Entry) -> Conclusion:
        if entry.command is None:
            return Conclusion(state=State.MANUAL, answer="failed", reason="its command was erased on request")
        try:
            command = effect.adapter.validate_json(entry.command)
        except ValidationError:  # Its text quotes the command.
            reason = "the command that was sent does not fit what perform() takes by now"
            return Conclusion(state=State.MANUAL, answer="failed", reason=reason)
        assert entry.sent_at is not None
        attempt = EffectAttempt(
            effect=effect.name, key=entry.key, provider_key=entry.provider_key, number=entry.attempt,
            sent_at=entry.sent_at,
        )  # fmt: skip
        owner, limit = self._ledger.acting(effect), effect.timeout.total_seconds()
        answer = await ask(owner.look_up, command, attempt, limit=limit, slots=self._ledger.slots)
        return concluded(effect, entry, None if answer.failed else answer.value, chance=self._chance())

    def _noting(self, entry: Entry, conclusion: Conclusion) -> Pipeline[bool]:
        schema = self._ledger.schema
        ours = yield from store.conclude(schema, entry, conclusion)
        if ours:
            act = looked_up(entry.id, answer=conclusion.answer, state=conclusion.state)
            yield from record(schema, act)
        return ours
