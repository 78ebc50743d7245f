"""The page of limits names what the code enforces."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.consume import arrival, gears, group, starts
from postroad.consume.consumer import _PREFETCHED, _PREFETCHED_IN_GROUPS
from postroad.consume.problems import LONGEST
from postroad.events import envelope, event_type, parse
from postroad.outbox import waiting
from postroad.outbox.settings import DispatchSettings
from postroad.retry import Backoff
from postroad.runtime import background, health, strays, wires
from postroad.signals import prometheus
from postroad.sql import authoring, manager
from postroad.transport.amqp import tables
from postroad.work import lane

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text("utf-8")
SETTINGS = DispatchSettings()


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("at most {}; one more for heartbeats", wires._MOST_CONNECTIONS),
        ("{} for each handler, 32 where", _PREFETCHED),
        ("{} where groups may form", _PREFETCHED_IN_GROUPS),
        ("{} deliveries, 50 ms", gears.MOST),
        ("{} deliveries where groups take turns", gears.MOST_IN_TURNS),
        ("32 deliveries, {} ms", round(gears.AGE.total_seconds() * 1000)),
        ("{} s until one that hangs", round(group.STALLED.total_seconds())),
        ("at most {} minutes", LONGEST.total_seconds() // 60),
        ("{} in 24 hours", Backoff().attempts),
        ("12 in {} hours", Backoff().max_age.total_seconds() // 3600),
        ("{}; then quarantine", starts.MOST),
        ("{} and 8 MiB, a quarter", SETTINGS.window),
        ("4,000 and {} MiB, a quarter", SETTINGS.window_bytes // 2**20),
        ("{} in memory", waiting.MOST),
        ("{} KiB when published", event_type.MAX_BYTES // 1024),
        ("up to {} bytes", envelope.MAX_PAYLOAD_BYTES),
        ("{} MiB, nested", envelope.MAX_BODY_BYTES // 2**20),
        ("nested {} deep", parse.MAX_DEPTH),
        ("{} values in its headers", tables.MOST_FIELDS),
        ("{} rows or 8 MiB a statement", authoring.MOST_ROWS),
        ("2,000 rows or {} MiB a statement", authoring.MOST_BYTES // 2**20),
        ("the free slots, at most {}", lane._MOST),
        ("{} at once and 100 that wait", background.CONCURRENCY),
        ("8 at once and {} that wait", background.QUEUE),
        ("that wait, {} s each", round(background.TIME_LIMIT.total_seconds())),
        ("{}; the others are counted", strays.MOST),
        ("{} event types", prometheus.MOST_EVENT_TYPES),
        ("{} connections, 8 KiB", health._CONNECTIONS),
        ("64 connections, {} KiB", health._HEAD_BYTES // 1024),
        ("{} s without an answer", round(manager.OWN_PATIENCE.total_seconds())),
    ],
)
def test_a_limit_of_the_page_is_the_one_that_is_enforced(words, value):
    assert words.format(f"{int(value):,}") in PAGE


def test_what_is_read_of_a_body_is_what_arrives_there():
    assert arrival.decode.__kwdefaults__["max_bytes"] == envelope.MAX_BODY_BYTES
