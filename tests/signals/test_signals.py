"""Signals reach every sink, and no sink reaches the road."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from postroad.signals import Signals, catalog
from postroad.signals.catalog import OutboxRead, Signal

RECORDS = [
    each
    for each in vars(catalog).values()
    if isinstance(each, type) and issubclass(each, Signal) and each is not Signal
]


def test_every_sink_hears_a_signal_at_once_in_order() -> None:
    heard: list[tuple[str, Signal]] = []
    signals = Signals(lambda signal: heard.append(("one", signal)))
    signals.subscribe(lambda signal: heard.append(("two", signal)))
    signals.emit(OutboxRead(3))
    assert heard == [("one", OutboxRead(3)), ("two", OutboxRead(3))]


def test_a_sink_hears_in_the_thread_that_emits() -> None:
    threads: list[threading.Thread] = []
    signals = Signals(lambda _signal: threads.append(threading.current_thread()))
    emitting = threading.Thread(target=signals.emit, args=(OutboxRead(1),))
    emitting.start()
    emitting.join()
    assert threads == [emitting]


def test_an_error_in_a_sink_is_counted_and_nobody_else_notices() -> None:
    heard: list[Signal] = []

    def broken(signal: Signal) -> None:
        raise RuntimeError(signal)

    signals = Signals(broken, heard.append)
    signals.emit(OutboxRead(1))
    signals.emit(OutboxRead(2))
    assert heard == [OutboxRead(1), OutboxRead(2)]
    assert signals.sink_errors == 2


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_what_must_end_the_process_comes_through(end: type[BaseException]) -> None:
    def crash(_signal: Signal) -> None:
        raise end

    with pytest.raises(end):
        Signals(crash).emit(OutboxRead(1))


def test_a_removed_sink_hears_no_more_and_removing_it_again_is_harmless() -> None:
    heard: list[Signal] = []
    signals = Signals()
    remove = signals.subscribe(heard.append)
    signals.emit(OutboxRead(1))
    remove()
    remove()
    signals.emit(OutboxRead(2))
    assert heard == [OutboxRead(1)]


def test_a_sink_may_remove_itself_while_it_hears() -> None:
    signals = Signals()
    heard: list[Signal] = []

    def once(signal: Signal) -> None:
        heard.append(signal)
        remove()

    remove = signals.subscribe(once)
    signals.subscribe(heard.append)
    signals.emit(OutboxRead(1))
    signals.emit(OutboxRead(2))
    assert heard == [OutboxRead(1), OutboxRead(1), OutboxRead(2)]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_records_are_frozen_slotted_and_explained(record: type[Signal]) -> None:
    assert record.__doc__
    assert not record.__doc__.startswith(record.__name__ + "(")
    assert dataclasses.is_dataclass(record)
    assert record.__dataclass_params__.frozen
    assert "__slots__" in vars(record)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_no_record_has_room_for_a_payload(record: type[Signal]) -> None:
    names = {field.name for field in dataclasses.fields(record)}
    assert not names & {"body", "payload", "data", "envelope", "headers", "key", "error", "url", "password"}
    kinds = " ".join(str(field.type) for field in dataclasses.fields(record))
    assert "bytes" not in kinds
    assert "dict" not in kinds
    assert "Any" not in kinds
