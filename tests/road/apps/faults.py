"""What the Apps of these tests do to themselves, as their environment says.

ROAD_AT=point:count:signal   sends itself that signal when it has come to `point` so many times
ROAD_WITHOUT=name,name       switches mechanisms of Postroad off, so that a test can show what they are for
ROAD_HEARTBEAT=seconds       another heartbeat than the product's, so that a test can outwait several
ROAD_CONFIRM=seconds         another time limit for confirms, for the same reason
ROAD_PATIENCE=seconds        another patience with statements of ours, likewise
"""

from __future__ import annotations

import functools
import os
import signal
from typing import TYPE_CHECKING

from postroad.clock import seconds
from postroad.runtime import roads
from postroad.signals.catalog import (
    DeadLetterCollected,
    DeliveriesCommitted,
    HandlerStarted,
    PublishesSettled,
    PublishResult,
    ReplayAdvanced,
)
from postroad.sql import manager
from postroad.transport.amqp import AmqpSettings
from road.apps import without

if TYPE_CHECKING:
    from postroad.signals import Signal, Sink


def prepare() -> list[Sink]:
    """The sinks of an App; what is to be switched off is off when this returns."""
    for name in filter(None, os.environ.get("ROAD_WITHOUT", "").split(",")):
        without.SWITCHES[name]()
    limits = {
        field: seconds(float(os.environ[name]))
        for name, field in {"ROAD_HEARTBEAT": "heartbeat", "ROAD_CONFIRM": "confirm_within"}.items()
        if name in os.environ
    }
    if limits:
        roads.AmqpSettings = functools.partial(AmqpSettings, **limits)  # type: ignore[attr-defined,assignment,arg-type]
    if "ROAD_PATIENCE" in os.environ:
        manager.OWN_PATIENCE = seconds(float(os.environ["ROAD_PATIENCE"]))  # type: ignore[misc]
    if "ROAD_AT" not in os.environ:
        return []
    point, count, number = os.environ["ROAD_AT"].split(":")
    return [_at(point, int(count), signal.Signals[number])]


def _at(point: str, count: int, number: signal.Signals) -> Sink:
    passed = 0

    def hear(heard: Signal) -> None:
        nonlocal passed
        if _is_at(point, heard):
            passed += 1
            if passed == count:
                os.kill(os.getpid(), number)

    return hear


def _is_at(point: str, heard: Signal) -> bool:
    match point:
        case "handler":
            return isinstance(heard, HandlerStarted)
        case "retry":
            return isinstance(heard, HandlerStarted) and heard.attempt > 1
        case "committed":
            return isinstance(heard, DeliveriesCommitted)
        case "replayed":
            return isinstance(heard, ReplayAdvanced)
        case "collected":
            return isinstance(heard, DeadLetterCollected)
        case _:
            return isinstance(heard, PublishesSettled) and heard.result is PublishResult.CONFIRMED
