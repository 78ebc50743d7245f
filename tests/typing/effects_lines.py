"""Lines about effects that must type-check, and lines (marked with their error code) that must not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from postroad import (
    Absent,
    BlockingRun,
    Delivery,
    Done,
    EffectAttempt,
    Found,
    Refused,
    Run,
    Subscription,
    Unknown,
    consumer,
    effect,
)
from postroad.effects import Effect


@dataclass
class Charge:
    payment: str


class Cards:
    async def perform(self, command: Charge, attempt: EffectAttempt) -> Done | Refused:
        return Done("ref")

    async def look_up(self, command: Charge, attempt: EffectAttempt) -> type[Absent | Unknown] | Found:
        return Found(Done("ref"))


class Letters:
    def perform(self, command: Charge, attempt: EffectAttempt) -> Done:
        return Done()


class Careless:
    async def perform(self, command: Charge, attempt: EffectAttempt) -> str:
        return "ref"


charge = effect("charge", Cards, key=lambda command: command.payment)
letter = effect("letter", Letters, key=lambda command: command.payment)
assert_type(charge, Effect[Charge])

effect("careless", Careless, key=lambda command: "k")  # E: arg-type
effect("keyless", Cards)  # E: call-arg
effect("number", Cards, key=lambda command: 7)  # E: arg-type # E: return-value

ONE = Subscription("a.b.done", version=1, model=Charge)


@consumer(ONE, name="one", effects=[charge])
async def one(event: Charge, run: Run) -> None:
    assert_type(await charge.once(event, run), Done | Refused)
    await charge.once("a", run)  # E: arg-type


@consumer(ONE, name="two", effects=[letter])
def two(event: Charge, run: BlockingRun) -> None:
    assert_type(letter.once_sync(event, run), Done | Refused)


@consumer(ONE, name="three", effects=[charge])  # E: arg-type
async def three(event: Charge, delivery: Delivery[Any]) -> None:
    await charge.once(event, delivery)  # E: arg-type


@consumer(ONE, name="four")  # E: arg-type
async def four(event: Charge, run: Run) -> None: ...
