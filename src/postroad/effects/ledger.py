"""The ledger of a process: takes one effect through its states, in the order of commits that a crash cannot confuse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from postroad.audit import Act, record
from postroad.clock import seconds
from postroad.effects import store
from postroad.effects.call import ask
from postroad.effects.decide import Move, State, doubtful, move, outcome_of, patience
from postroad.effects.outcome import Done, EffectAttempt, is_outcome
from postroad.errors import ContractError, LeaseLost, Unavailable, UsageError
from postroad.failures import OutcomeUnknown, Retry
from postroad.signals.catalog import EffectAnswered, EffectConflict, EffectMoved, EffectNeedsPerson, EffectReturned
from postroad.sql.manager import Manager
from postroad.work.use import used

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.effects.call import Answer
    from postroad.effects.effect import Effect, Request
    from postroad.effects.outcome import Outcome
    from postroad.effects.store import Entry
    from postroad.owner import Owner
    from postroad.signals import Signals
    from postroad.sql import Pipeline
    from postroad.work.run import Grip
    from postroad.work.use import Resources

T = TypeVar("T")

CONNECTIONS: Final = 4
"""The ledger's own: handlers that hold all others cannot starve it, and it takes none of theirs."""
BY: Final = "postroad"
"""Whom the audit names where no person acts."""
_THREADS: Final = 8
_TRIES: Final = 5


class Ledger:
    """What has become of the effects of one App, as far as its database knows.

    Three commits stand around each call of an owner: the intent before anything leaves, then *sent*, then the outcome;
    each is fenced by the run, and none is open while the owner works. A crash leaves an intent, of which nothing has
    left, or *sent*, which nobody takes for anything but unknown.
    """

    def __init__(
        self, url: str, effects: Iterable[Effect[Any]], *, schema: str, resources: Resources, owner: Owner,
        signals: Signals, clock: Clock,
    ) -> None:  # fmt: skip
        """Keep `effects` at the database `url`; its connections are opened when they are first needed."""
        self.effects = {effect.name: effect for effect in effects}
        self.schema = schema
        self.signals = signals
        self.clock = clock
        self.news = asyncio.Event()
        """Set where the resolver has something to do."""
        self.slots = owner.slots(_THREADS, name="effects")
        self._url = url
        self._resources = resources
        self._manager: Manager | None = None
        self._opening = asyncio.Lock()

    async def run(self, pipeline: Pipeline[T]) -> T:
        """Run `pipeline` in a durable transaction on a connection of the ledger's own."""
        async with self._opening:
            if self._manager is None:
                self._manager = await Manager.open(
                    self._url, schema=self.schema, size=CONNECTIONS, name="postroad effects"
                )
        return await self._manager.run(self._durably(pipeline))

    async def close(self) -> None:
        """Close the connections; the next use opens new ones."""
        manager, self._manager = self._manager, None
        if manager is not None:
            await manager.close()

    def _durably(self, pipeline: Pipeline[T]) -> Pipeline[T]:
        yield from store.durable(self.schema)
        return (yield from pipeline)

    def acting(self, effect: Effect[Any]) -> Any:
        """The live owner of `effect`.

        Raises:
            UsageError: PR107, the App's lifespan yields none.
        """
        return used(self._resources, effect.owner, by=f"effect {effect.name!r}")

    # --- once -------------------------------------------------------------------------------------------------------

    async def once(self, effect: Effect[Any], command: Any, run: Any) -> Outcome:
        """See `Effect.once`."""
        grip: Grip = run.grip
        self._check(effect, grip)
        owner, request = self.acting(effect), effect.request(command)
        for _ in range(_TRIES):
            step, entry = await self.run(self._intend(effect, request, grip))
            if step in {Move.SEND, Move.REPEAT}:
                entry = replace(entry, command=request.body)
                outcome = await self._send(effect, command, entry, owner=owner, grip=grip, repeat=step is Move.REPEAT)
                if outcome is not None:
                    return outcome
            elif step is not Move.DOUBT:
                return self._told(effect, step, entry)
        raise OutcomeUnknown(f"effect {effect.name!r} is moved by others", after=patience(State.UNKNOWN))

    def _check(self, effect: Effect[Any], grip: Grip) -> None:
        if self.effects.get(effect.name) is not effect:
            raise _unnamed(effect)
        if grip.open or any(lease.open for lease in [*grip.held]):
            message = f"effect {effect.name!r}: a transaction of the run is open; call once() before it, or after"
            raise UsageError("PR107", message)
        grip.enter()
        left = grip.until - self.clock.monotonic()
        if left < effect.timeout.total_seconds():
            raise Retry(seconds(0), f"its time limit leaves too little time for effect {effect.name!r}")

    def _intend(self, effect: Effect[Any], request: Request, grip: Grip) -> Pipeline[tuple[Move, Entry]]:
        """Note the intent, or find what stands already; fenced by the run."""
        schema, row = self.schema, grip.row
        entry = yield from store.intended(schema, effect.name, request, run=row.id, token=row.token)
        step = move(effect, entry, request.fingerprint, token=row.token)
        if step is Move.SEND and entry.state is State.INTENDED:
            yield from store.adopt(schema, entry.id, run=row.id, token=row.token)
        elif step is Move.DOUBT:
            assert entry.token is not None
            reason = "its run ended before there was an answer"
            yield from store.doubted(schema, entry.id, entry.token, state=doubtful(effect), reason=reason)
        elif step is Move.WAIT:
            yield from store.wait(schema, entry.id, run=row.id)
        if step not in {Move.RETURN, Move.CONFLICT}:
            yield from grip.sealed(finish=False)
        return step, entry

    def _told(self, effect: Effect[Any], step: Move, entry: Entry) -> Outcome:
        if step is Move.CONFLICT:
            self.signals.emit(EffectConflict(effect.name))
            message = f"the key of effect {entry.id} was used with another request; nothing was called"
            raise ContractError("PR514", f"effect {effect.name!r}: {message}")
        if step is Move.RETURN:
            self.signals.emit(EffectReturned(effect.name))
            return outcome_of(entry)
        raise OutcomeUnknown(_waits(effect, entry.state), after=patience(entry.state))

    async def _send(
        self, effect: Effect[Any], command: Any, entry: Entry, *, owner: Any, grip: Grip, repeat: bool
    ) -> Outcome | None:
        """Note that it leaves, call the owner, and note what came of it; None where another has moved first."""
        if entry.state is State.INTENDED:
            self.signals.emit(EffectMoved(effect.name, State.INTENDED))
        began = self.clock.monotonic()
        marked = await self.run(self._sending(effect, entry, grip, repeat=repeat))
        if marked is None:
            return None
        self.signals.emit(EffectMoved(effect.name, State.SENT))
        attempt = EffectAttempt(
            effect=effect.name, key=entry.key, provider_key=entry.provider_key, number=marked[0], sent_at=marked[1]
        )
        grip.enter()
        # Counted from before the commit: whoever stood still since then is too late, since the look-up counts from it.
        left = effect.timeout.total_seconds() - (self.clock.monotonic() - began)
        if left <= 0:
            raise await self._doubt(effect, entry.id, grip, "it was too late to send it")
        called = self.clock.monotonic()
        answer = await ask(owner.perform, command, attempt, limit=left, slots=self.slots)
        result = _result(answer)
        self.signals.emit(EffectAnswered(effect.name, result, self.clock.monotonic() - called))
        if is_outcome(answer.value):
            await self._settle(effect, entry.id, grip, answer.value)
            return answer.value
        raise await self._doubt(effect, entry.id, grip, f"{result} {answer.failed}".strip())

    def _sending(
        self, effect: Effect[Any], entry: Entry, grip: Grip, *, repeat: bool
    ) -> Pipeline[tuple[int, Any] | None]:
        row, schema = grip.row, self.schema
        marked = yield from store.sent(
            schema, entry.id, run=row.id, token=row.token, settle=effect.settle, repeat=repeat,
            key_window=effect.key_window, command=entry.command or b"", timeout=effect.timeout,
        )  # fmt: skip
        if marked is not None and repeat:
            yield from record(schema, looked_up(entry.id, answer="repeat", state=State.SENT))
        yield from grip.sealed(finish=False)
        return marked

    async def _settle(self, effect: Effect[Any], number: int, grip: Grip, outcome: Outcome) -> None:
        state, said = (
            (State.SUCCEEDED, outcome.ref) if isinstance(outcome, Done) else (State.REJECTED, outcome.code)
        )  # fmt: skip

        def settling() -> Pipeline[None]:
            token = grip.row.token
            if not (yield from store.settled(self.schema, number, token, state=state, outcome=said)):
                raise LeaseLost("PR401", f"effect {effect.name!r} was taken for unknown meanwhile; it is looked up")
            yield from grip.sealed(finish=False)

        await self.run(settling())
        self.signals.emit(EffectMoved(effect.name, state))
        self.news.set()

    async def _doubt(self, effect: Effect[Any], number: int, grip: Grip, reason: str) -> OutcomeUnknown:
        """Note that nobody knows; the error to raise. Where that cannot be noted it is found out all the same."""
        state = doubtful(effect)

        def doubting() -> Pipeline[bool]:
            ours = yield from store.doubted(self.schema, number, grip.row.token, state=state, reason=reason)
            yield from store.wait(self.schema, number, run=grip.row.id)
            return ours

        try:
            if await self.run(doubting()):
                self.moved(effect, state)
        except Unavailable:
            pass  # It stays *sent*, by a run that is about to end: the resolver takes it for unknown then.
        self.news.set()
        return OutcomeUnknown(_waits(effect, state), after=patience(state))

    def moved(self, effect: Effect[Any], state: State) -> None:
        """Tell where an effect stands now; call it once that is committed."""
        self.signals.emit(EffectMoved(effect.name, state))
        if state is State.MANUAL:
            self.signals.emit(EffectNeedsPerson(effect.name))


class WithLedger:
    """An App's live objects, and its ledger among them: so runs find it, and nothing below knows of it."""

    def __init__(self, resources: Callable[[type[Any]], Any], ledger: Ledger) -> None:
        """`resources` finds all others."""
        self._resources = resources
        self._ledger = ledger

    def __call__(self, kind: type[Any]) -> Any:
        """The object of type `kind`; raises `LookupError` where there is none."""
        return self._ledger if kind is Ledger else self._resources(kind)


def ledger_of(effect: Effect[Any], run: object) -> Ledger:
    """The ledger of the App that runs `run`.

    Raises:
        UsageError: PR107, it is no run, or its App names no effects.
    """
    grip = getattr(run, "grip", None)
    if grip is None:
        text = f"once() needs a run, not a {type(run).__name__}, whose transaction would stay open meanwhile"
        remedy = "name effects=[...] in the consumer, or call it in a job"
        raise UsageError("PR107", f"effect {effect.name!r}: {text}; {remedy}")
    try:
        return used(grip.resources, Ledger, by=effect.name)
    except UsageError:
        raise _unnamed(effect) from None


def looked_up(number: int, *, answer: str, state: State) -> Act:
    """The entry in the audit of a look-up: nothing leaves *unknown* without one."""
    return Act(
        by=BY, act="effect.look-up", subject=subject(number), before={"state": State.UNKNOWN.value},
        after={"answer": answer, "state": state.value},
    )  # fmt: skip


def subject(number: int) -> str:
    """What the audit calls an effect: its number, since keys may be persons'."""
    return f"effect {number}"


def _unnamed(effect: Effect[Any]) -> UsageError:
    text = "the App does not name it; write App(effects=[...])"
    return UsageError("PR107", f"effect {effect.name!r}: {text}")


def _result(answer: Answer) -> str:
    if answer.failed:
        return "timeout" if answer.overtime else "failed"
    if not is_outcome(answer.value):
        return "nonsense"
    return "done" if isinstance(answer.value, Done) else "refused"


def _waits(effect: Effect[Any], state: State) -> str:
    match state:
        case State.MANUAL:
            return f"nobody knows what became of effect {effect.name!r}: a person decides (`postroad effects list`)"
        case State.INTENDED | State.SENT:
            return f"effect {effect.name!r} is in progress elsewhere"
        case _:
            return f"nobody knows yet what became of effect {effect.name!r}: it is looked up"
