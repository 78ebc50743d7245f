"""The driver of pipelines: what goes in, what comes back, and who hears of errors."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import asyncpg
import psycopg
import pytest

from postroad.errors import UsageError
from postroad.sql import Call, Statement, drive, drive_sync
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.drive import kept
from postroad.sql.psycopg import AsyncPsycopgBlock


class Hand:
    """Answers from a list; an exception in it is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.seen: list[Statement] = []

    async def fetch(self, statement: Statement) -> Any:
        self.seen.append(statement)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


ONE, TWO = Statement("SELECT 1"), Statement("SELECT 2")


async def test_rows_come_back_where_they_were_asked_for() -> None:
    def pipeline() -> Generator[Statement, Any, list[Any]]:
        first = yield ONE
        second = yield TWO
        return [first, second]

    hand = Hand(["a"], ["b"])
    assert await drive(pipeline(), hand) == [["a"], ["b"]]
    assert hand.seen == [ONE, TWO]


async def test_a_pipeline_without_steps_has_its_value() -> None:
    def pipeline() -> Generator[Statement, Any, int]:
        return 7
        yield ONE

    assert await drive(pipeline(), Hand()) == 7


async def test_a_call_is_awaited_where_it_can_be() -> None:
    async def handler() -> str:
        await asyncio.sleep(0)
        return "async"

    def pipeline() -> Generator[Call, Any, list[Any]]:
        return [(yield Call(handler)), (yield Call(lambda: "sync"))]

    assert await drive(pipeline(), Hand()) == ["async", "sync"]


async def test_a_steps_error_is_thrown_in_where_it_was_asked_for_and_may_be_answered() -> None:
    def pipeline() -> Generator[Statement | Call, Any, str]:
        try:
            yield ONE
        except ValueError:
            rows = yield TWO
            return f"recovered with {rows}"
        return "never"

    assert await drive(pipeline(), Hand(ValueError(), ["b"])) == "recovered with ['b']"


async def test_an_unanswered_error_comes_out_and_the_pipeline_is_closed() -> None:
    ended: list[str] = []

    def pipeline() -> Generator[Statement, Any, None]:
        try:
            yield ONE
        finally:
            ended.append("closed")

    with pytest.raises(ZeroDivisionError):
        await drive(pipeline(), Hand(ZeroDivisionError()))
    assert ended == ["closed"]


async def test_cancellation_is_thrown_in_too_and_goes_on() -> None:
    heard: list[str] = []

    def pipeline() -> Generator[Call, Any, None]:
        try:
            yield Call(asyncio.Event().wait)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    running = asyncio.ensure_future(drive(pipeline(), Hand()))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert heard == ["cancelled"]


async def test_the_asyncpg_hand_runs_both_kinds_of_statement(database) -> None:
    def pipeline() -> Generator[Statement, Any, int]:
        yield Statement("CREATE TEMP TABLE t (x int)", command=True)
        yield Statement("INSERT INTO t SELECT generate_series(1, $1::int)", (3,))
        yield Statement("SAVEPOINT s", command=True)
        yield Statement("DELETE FROM t", command=False)
        yield Statement("ROLLBACK TO s", command=True)
        [row] = yield Statement("SELECT count(*) AS count FROM t")
        return row["count"]

    connection = await asyncpg.connect(database)
    async with connection.transaction():
        assert await drive(pipeline(), AsyncpgHand(connection)) == 3
    await connection.close()


class BlockingHand:
    """The same, for the blocking driver."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def fetch(self, _: Statement) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def test_the_blocking_driver_sends_back_rows_values_and_errors() -> None:
    def pipeline() -> Generator[Statement | Call, Any, list[Any]]:
        found = [(yield ONE), (yield Call(lambda: "called"))]
        try:
            yield TWO
        except ValueError:
            found.append("recovered")
        return found

    assert drive_sync(pipeline(), BlockingHand(["a"], ValueError())) == [["a"], "called", "recovered"]


def test_the_blocking_driver_closes_a_pipeline_that_does_not_answer_an_error() -> None:
    ended: list[str] = []

    def pipeline() -> Generator[Statement, Any, None]:
        try:
            yield ONE
        finally:
            ended.append("closed")

    with pytest.raises(KeyError):
        drive_sync(pipeline(), BlockingHand(KeyError()))
    assert ended == ["closed"]


def test_the_blocking_driver_refuses_what_would_have_to_be_awaited() -> None:
    async def handler() -> None:
        """Nothing."""

    def pipeline() -> Generator[Call, Any, None]:
        yield Call(handler)

    with pytest.raises(UsageError, match=r"returned something to be awaited.*PR107"):
        drive_sync(pipeline(), BlockingHand())


async def test_a_block_that_was_ended_inside_is_an_error_of_the_handlers(database) -> None:
    connection = await psycopg.AsyncConnection.connect(database, autocommit=True)
    async with connection:
        with pytest.raises(UsageError, match=r"the handler ended the transaction.*PR111"):
            async with kept(AsyncPsycopgBlock(connection)):
                await connection.execute("COMMIT")
