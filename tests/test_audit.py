"""Acts of operators are kept: with the act or not at all, and nobody of the runtime changes them."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

from postroad import audit
from postroad.audit import Act, Chosen
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.drive import drive

PAUSE = Act(by="ada", act="queue.pause", subject="mail", reason="provider is down", before={"paused": False})
FENCE = Act(by="ben", act="lease.fence", subject="reports", items=3, after={"token": 7})


@pytest.fixture
async def hand(runtime_url):
    connection = await asyncpg.connect(runtime_url)
    yield AsyncpgHand(connection)
    await connection.close()


async def told(hand, **chosen):
    return await drive(audit.entries("postroad", Chosen(**chosen), limit=10), hand)


async def test_an_act_is_read_back_as_it_was_recorded(hand):
    await drive(audit.record("postroad", PAUSE), hand)
    await drive(audit.record("postroad", FENCE), hand)
    fence, pause = await told(hand)
    assert (pause.by, pause.act, pause.subject, pause.items, pause.reason) == (
        "ada",
        "queue.pause",
        "mail",
        1,
        PAUSE.reason,
    )
    assert (pause.before, pause.after) == ({"paused": False}, None)
    assert (fence.items, fence.after, fence.reason) == (3, {"token": 7}, None)
    assert fence.at >= pause.at


@pytest.mark.parametrize(
    ("chosen", "acts"),
    [
        ({"act": "queue."}, ["queue.pause"]),
        ({"act": "queue.pause"}, ["queue.pause"]),
        ({"by": "ben"}, ["lease.fence"]),
        ({"subject": "mail"}, ["queue.pause"]),
        ({"subject": "queue"}, []),
    ],
)
async def test_acts_are_found_by_what_is_asked_for(hand, chosen, acts):
    await drive(audit.record("postroad", PAUSE), hand)
    await drive(audit.record("postroad", FENCE), hand)
    assert [entry.act for entry in await told(hand, **chosen)] == acts


async def test_acts_before_a_time_are_left_out(hand):
    await drive(audit.record("postroad", PAUSE), hand)
    [entry] = await told(hand)
    assert await told(hand, since=entry.at) == [entry]
    assert await told(hand, since=entry.at + timedelta(microseconds=1)) == []


async def test_an_act_that_is_rolled_back_is_not_told(hand):
    transaction = hand.connection.transaction()
    await transaction.start()
    await drive(audit.record("postroad", PAUSE), hand)
    await transaction.rollback()
    assert await told(hand) == []


@pytest.mark.parametrize("statement", ["UPDATE postroad.audit SET by = 'eve'", "DELETE FROM postroad.audit"])
async def test_the_runtime_role_cannot_change_what_was_recorded(hand, statement):
    await drive(audit.record("postroad", PAUSE), hand)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await hand.connection.execute(statement)
