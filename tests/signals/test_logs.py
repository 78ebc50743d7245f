"""The log sink, seen through the standard library's logging."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from enum import StrEnum

import pytest

from postroad.signals import Signals, catalog
from postroad.signals.catalog import (
    ConsumerGone,
    LeaseGone,
    LossReason,
    OutboxRead,
    PublishesSettled,
    PublishResult,
    Signal,
    TaskFailed,
    WorkSettled,
)
from postroad.signals.logs import JsonFormatter, LogSink


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def logger() -> logging.Logger:
    made = logging.Logger("postroad.test", logging.DEBUG)  # noqa: LOG001 - one that no other test shares
    made.addHandler(Kept())
    return made


def records(logger: logging.Logger, *signals: Signal) -> list[logging.LogRecord]:
    told = Signals(LogSink(logger))
    for signal in signals:
        told.emit(signal)
    assert told.sink_errors == 0
    return logger.handlers[0].records


def test_a_signal_is_a_line_of_its_name_and_fields(logger) -> None:
    [record] = records(logger, LeaseGone("shard", "shard:03", LossReason.FENCED))
    assert record.getMessage() == "lease_gone kind=shard name=shard:03 reason=fenced"
    assert record.levelno == logging.WARNING
    assert record.signal == "lease_gone"
    assert record.fields == {"kind": "shard", "name": "shard:03", "reason": "fenced"}


def test_a_consumer_that_we_stopped_is_no_warning(logger) -> None:
    found = records(logger, ConsumerGone("c", "stopped"), ConsumerGone("c", "broker"))
    assert [record.levelno for record in found] == [logging.INFO, logging.WARNING]


def test_each_signal_has_the_level_that_it_declares(logger) -> None:
    found = records(logger, OutboxRead(1), TaskFailed("a", "ValueError", "in f"))
    assert [record.levelno for record in found] == [logging.DEBUG, logging.ERROR]


def test_a_level_that_is_off_is_not_written(logger) -> None:
    logger.setLevel(logging.INFO)
    assert records(logger, OutboxRead(1)) == []


def test_a_text_cannot_break_the_line(logger) -> None:
    [record] = records(logger, TaskFailed("a task", "E", 'two\nlines "quoted" and \x1b[31m'))
    assert record.getMessage() == (
        'task_failed task="a task" error_type=E reason="two\\nlines \\"quoted\\" and \\u001b[31m"'
    )


def test_a_long_list_is_told_by_its_length(logger) -> None:
    many = (0.25,) * 2000
    [record] = records(logger, PublishesSettled("a.b.c", 1, PublishResult.CONFIRMED, 2000, seconds=many, delays=(0.5,)))
    assert 'seconds="2000 values" delays=[0.5] attempts=[]' in record.getMessage()


def test_the_default_logger_is_the_packages(caplog) -> None:
    with caplog.at_level(logging.DEBUG, "postroad"):
        LogSink()(OutboxRead(7))
    assert [(record.name, record.getMessage()) for record in caplog.records] == [("postroad", "outbox_read count=7")]


def test_the_json_formatter_writes_one_object_a_line(logger) -> None:
    [record] = records(logger, TaskFailed("a", "E", "two\nlines"))
    line = JsonFormatter().format(record)
    assert "\n" not in line
    said = json.loads(line)
    assert said.pop("time").endswith("+00:00")
    assert said == {
        "level": "error", "logger": "postroad.test", "signal": "task_failed",
        "task": "a", "error_type": "E", "reason": "two\nlines",
    }  # fmt: skip


def test_the_json_formatter_takes_foreign_records_too(logger) -> None:
    try:
        sys.intern(7)  # type: ignore[arg-type]
    except TypeError:
        logger.exception("could not intern %s", "it")
    said = json.loads(JsonFormatter().format(logger.handlers[0].records[0]))
    assert said["message"] == "could not intern it"
    assert "TypeError" in said["exception"]


def test_a_signals_field_does_not_hide_the_records_own(logger) -> None:
    record = logger.makeRecord("postroad", logging.INFO, "f", 1, "m", (), None, extra={
        "signal": "x", "fields": {"level": "fake", "time": "fake", "count": 1},
    })  # fmt: skip
    said = json.loads(JsonFormatter().format(record))
    assert (said["level"], said["count"]) == ("info", 1)
    assert said["time"] != "fake"


RECORDS = [
    each
    for each in vars(catalog).values()
    if isinstance(each, type) and issubclass(each, Signal) and each is not Signal
]
SAMPLES = {"str": "text", "int": 7, "float": 0.5, "bool": True}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_record_of_the_catalog_can_be_written(logger, record) -> None:
    values = {
        field.name: () if field.type.startswith("tuple") else SAMPLES.get(field.type) or next(iter(_states(field.type)))
        for field in dataclasses.fields(record)
    }
    [written] = records(logger, record(**values))
    assert json.loads(JsonFormatter().format(written)).keys() >= values.keys() | {"signal"}


def _states(name: str) -> list[StrEnum]:
    return list(getattr(catalog, name))


@pytest.mark.parametrize(("level", "lines"), [(logging.INFO, 0), (logging.DEBUG, 1)])
def test_jobs_that_end_well_are_one_line_at_debug_and_none_at_info(
    logger: logging.Logger, level: int, lines: int
) -> None:
    logger.setLevel(level)
    LogSink(logger)(WorkSettled("reports", "job", "ok", 1, (0.5,), "reports.render"))
    (kept,) = logger.handlers
    said = "work_settled queue=reports kind=job result=ok count=1 seconds=[0.5] job=reports.render"
    assert [record.getMessage() for record in kept.records] == [said] * lines
