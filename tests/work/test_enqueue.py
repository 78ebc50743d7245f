"""Enqueueing: what is checked before anything is sent, and the one statement that leaves the rows, as the author."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from postroad.errors import UsageError
from postroad.events.cause import Cause, cause
from postroad.sql import authoring
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.drive import drive
from postroad.work import enqueue as module
from postroad.work.enqueue import QUERIES, Enqueue, enqueue, prepare, prepare_many, unique_key
from postroad.work.job import job


class ReportRequest(BaseModel):
    day: date
    copies: int = Field(default=1, alias="how_many", ge=1)


class Other(BaseModel):
    secret: str = "hush"


class Alike(ReportRequest):
    pass


class Unlike(BaseModel):
    day: date
    how_many: int = 1


@dataclass
class Plain:
    number: int


class Touchy(BaseModel):
    note: str

    @field_validator("note")
    @classmethod
    def breaks(cls, value: str) -> str:
        if value == "hush":
            raise KeyError(value)
        return value


@job("reports.render", queue="reports", max_bytes=100)
async def render(request: ReportRequest, run: Any) -> None: ...


@job("plain")
def plain(request: Plain, run: Any) -> None: ...


@job("numbers")
async def count(request: list[int], run: Any) -> None: ...


@job("real")
async def real(request: float, run: Any) -> None: ...


@job("words")
async def words(request: str, run: Any) -> None: ...


@job("touchy")
async def touchy(request: Touchy, run: Any) -> None: ...


REPORT = ReportRequest(day=date(2026, 5, 4))


@pytest.fixture
async def author(author_url):
    connection = await asyncpg.connect(author_url)
    yield connection
    await connection.close()


async def put(connection, *rows):
    async with connection.transaction():
        return await drive(enqueue("postroad", rows), AsyncpgHand(connection))


# --- what is checked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "request_", "body"),
    [
        (render, REPORT, b'{"day":"2026-05-04","how_many":1}'),
        (render, Alike(day=date(2026, 5, 4)), b'{"day":"2026-05-04","how_many":1}'),
        (plain, Plain(3), b'{"number":3}'),
        (count, [1, 2], b"[1,2]"),
        (words, "a\x00b", b'"a\\u0000b"'),
    ],
)
def test_a_request_is_written_as_the_worker_reads_it(function, request_, body):
    assert prepare(function, request_).body == body
    read = function.__postroad_job__.adapter.validate_json(body)
    assert vars(read) == vars(request_) if hasattr(read, "__dict__") else read == request_


@pytest.mark.parametrize(
    ("function", "request_", "said"),
    [
        (render, {"day": date(2026, 5, 4)}, "reports.render takes ReportRequest, not dict"),
        (render, Other(), "reports.render takes ReportRequest, not Other"),
        (render, ReportRequest, r"takes ReportRequest, not ReportRequest \(the class itself\)"),
        (plain, 3, "plain takes Plain, not int"),
        (words, 3, "words takes str, not int"),
    ],
)
def test_a_request_of_another_class_is_told_the_right_one(function, request_, said):
    with pytest.raises(UsageError, match=said):
        prepare(function, request_)


@pytest.mark.parametrize(
    ("function", "request_", "code"),
    [
        (render, Other(), "PR107"),
        (render, Unlike(day=date(2026, 5, 4)), "PR107"),
        (render, {"day": "hush"}, "PR107"),
        (render, {"day": date(2026, 5, 4), "how_many": 1}, "PR107"),
        (render, "hush", "PR107"),
        (render, ReportRequest, "PR107"),
        (render, ReportRequest.model_construct(day="hush"), "PR107"),
        (render, ReportRequest.model_construct(day=date(2026, 1, 1), copies=-7), "PR107"),
        (plain, Plain("hush"), "PR107"),
        (count, ["hush"], "PR107"),
        (count, "hush", "PR107"),
        (real, float("nan"), "PR107"),
        (words, "hush\ud800", "PR107"),
        (touchy, Touchy.model_construct(note="hush"), "PR107"),
        (test_a_request_is_written_as_the_worker_reads_it, REPORT, "PR101"),
        ("hush", REPORT, "PR101"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_and_never_shown(function, request_, code):
    with pytest.raises(UsageError) as caught:
        prepare(function, request_)
    assert caught.value.code == code
    assert caught.value.__cause__ is None
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_is_told_by_its_fields():
    with pytest.raises(UsageError, match=r"reports\.render: .*ReportRequest, does not fit: how_many: greater_than"):
        prepare(render, ReportRequest.model_construct(day=date(2026, 1, 1), copies=-7))


@pytest.mark.sabotage
def test_without_reading_it_once_a_request_that_no_worker_can_read_would_be_written(monkeypatch):
    adapter = type(render.__postroad_job__.adapter)
    monkeypatch.setattr(adapter, "validate_json", lambda *_: None)
    assert b"-7" in prepare(render, ReportRequest.model_construct(day=date(2026, 1, 1), copies=-7)).body


def test_a_request_over_its_limit_is_refused_with_both_numbers():
    @job("short", max_bytes=10)
    async def short(request: str, run: Any) -> None: ...

    assert prepare(short, "x" * 8).body == b'"xxxxxxxx"'
    with pytest.raises(UsageError, match=r"job short has 11 bytes, its limit is 10; .*raise max_bytes \[PR106\]"):
        prepare(short, "x" * 9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"run_at": datetime(2026, 1, 1)}, "run_at is not a time with a zone"),  # noqa: DTZ001
        ({"run_at": "2026-01-01T00:00:00Z"}, "run_at is not a time with a zone"),
        ({"run_at": date(2026, 1, 1)}, "run_at is not a time with a zone"),
        ({"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=3)))}, "years 1 to 9999"),
        ({"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-3)))}, "years 1 to 9999"),
        ({"priority": 32_768}, "priority is not"),
        ({"priority": -32_769}, "priority is not"),
        ({"priority": True}, "priority is not"),
        ({"priority": 1.0}, "priority is not"),
        ({"queue": ""}, "queue is not lower-case letters"),
        ({"queue": "Slow"}, "queue is not lower-case letters"),
        ({"queue": "q" * 201}, "queue is not lower-case letters"),
        ({"queue": b"slow"}, "queue is not lower-case letters"),
        ({"unique": 7}, "unique is not text"),
        ({"unique": b"x"}, "unique is not text"),
        ({"unique": ""}, "unique is empty; give a key, or leave it out"),
    ],
)
def test_a_wrong_option_is_refused(options, said):
    with pytest.raises(UsageError, match=rf"enqueue of reports\.render: .*{said}.*\[PR107\]"):
        prepare(render, REPORT, **options)


def test_one_wrong_job_of_many_refuses_all():
    with pytest.raises(UsageError, match="PR107"):
        prepare_many([Enqueue(render, REPORT), Enqueue(render, REPORT, priority=10**6)])
    with pytest.raises(UsageError, match=r"takes Enqueue\(job, request, \.\.\.\) values, not ReportRequest"):
        prepare_many([REPORT])


def test_the_event_that_is_being_handled_is_the_cause():
    assert prepare(render, REPORT).headers == "{}"
    with cause(Cause(correlation="story", causation="event")):
        assert json.loads(prepare(render, REPORT).headers) == {"correlation": "story", "causation": "event"}


# --- unique keys ----------------------------------------------------------------------------------------------------

STRANGE = [
    " ", "a", "a ", "a\x00", "\x00a", "\ufffd", "\ud800", "\udfff", "\ud83d\ude00", "\U0001f600", "é", "e\u0301",
    "x" * 255, "x" * 256, "x" * 100_000, "x" * 99_999 + "y", "é" * 127, "é" * 128, unique_key("x" * 256),
    unique_key("a\x00"), "sha256:", "'; DROP TABLE work", "%s", "$1", "\n", "{", "report:2026-05-04",
]  # fmt: skip


def test_a_short_clean_key_stays_as_it_is():
    assert [key for key in STRANGE if unique_key(key) == key] == [
        key
        for key in STRANGE
        if len(key.encode("utf-8", "surrogatepass")) <= 255
        and not any(c == "\x00" or "\ud800" <= c <= "\udfff" for c in key)
        and not key.startswith("sha256:")
    ]


@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_any_key_can_be_held(text):
    held = unique_key(text)
    assert "\x00" not in held
    assert len(held.encode()) <= 255


async def test_strange_keys_are_all_told_apart_and_each_is_unique(author, sql):
    rows = prepare_many([Enqueue(render, REPORT, unique=key) for key in STRANGE])
    assert all(done.new for done in await put(author, *rows))
    assert not any(done.new for done in await put(author, *rows))
    assert await sql.fetchval("SELECT count(DISTINCT key) FROM work") == len(STRANGE)


@pytest.mark.sabotage
async def test_with_keys_cut_short_two_would_be_taken_for_one(author, monkeypatch):
    monkeypatch.setattr(module, "unique_key", lambda given: given.replace("\x00", "")[:255])
    keys = ("x" * 300, "x" * 300 + "y")
    done = await put(author, *(prepare(render, REPORT, unique=key) for key in keys))
    assert [one.new for one in done] == [True, False]


@pytest.mark.parametrize("state", ["scheduled", "ready", "running", "waiting"])
async def test_a_key_is_taken_while_its_job_is_open_and_free_when_it_has_left(author, sql, state):
    (first,) = await put(author, prepare(render, REPORT, unique="daily"))
    await sql.execute("UPDATE work SET state = $1", state)
    (second,) = await put(author, prepare(render, REPORT, unique="daily"))
    assert (first.new, second.new) == (True, False)
    await sql.execute("DELETE FROM work")
    (third,) = await put(author, prepare(render, REPORT, unique="daily"))
    assert third.new
    assert [row["id"] for row in await sql.fetch("SELECT id FROM work")] == [third.id]


async def test_a_key_is_of_its_queue(author):
    done = await put(author, prepare(render, REPORT, unique="k"), prepare(words, "", unique="k"), prepare(words, ""))
    assert [one.new for one in done] == [True, True, True]


@pytest.mark.sabotage
async def test_without_the_constraint_a_key_would_be_taken_twice(author, sql):
    await sql.execute("DROP INDEX work_open_key")
    done = [await put(author, prepare(render, REPORT, unique="daily")) for _ in range(2)]
    assert [one.new for (one,) in done] == [True, True]


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_an_open_transaction_with_the_same_key_decides(author, author_url, sql, end):
    other = await asyncpg.connect(author_url)
    transaction = other.transaction()
    await transaction.start()
    await drive(enqueue("postroad", [prepare(render, REPORT, unique="daily")]), AsyncpgHand(other))
    waiting = asyncio.create_task(put(author, prepare(render, REPORT, unique="daily")))
    async with asyncio.timeout(20):
        while not await sql.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110 - a poll
            await asyncio.sleep(0.01)
    await getattr(transaction, end)()
    (done,) = await waiting
    assert done.new is (end == "rollback")
    await other.close()


async def two_authors_of_the_same_keys(sql, url):
    """Each has written one row before either writes its second."""
    await sql.execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_sleep(0.3); RETURN new; END';"
        "CREATE TRIGGER hold BEFORE INSERT ON work FOR EACH ROW EXECUTE FUNCTION hold()"
    )
    both = [await asyncpg.connect(url) for _ in range(2)]
    rows = [prepare_many([Enqueue(words, "", unique=key) for key in keys]) for keys in ("ab", "ba")]
    try:
        return await asyncio.gather(*(put(one, *given) for one, given in zip(both, rows, strict=True)))
    finally:
        for one in both:
            await one.close()


async def test_authors_of_the_same_keys_in_other_orders_do_not_wait_for_each_other_in_a_ring(sql, author_url):
    done = await two_authors_of_the_same_keys(sql, author_url)
    assert sorted([one.new for one in each] for each in done) == [[False, False], [True, True]]


@pytest.mark.sabotage
async def test_with_keys_in_the_order_given_they_would(sql, author_url, monkeypatch):
    text = QUERIES.text("enqueue", "postroad").replace("ORDER BY given.queue, given.key, given.id", "")
    monkeypatch.setitem(QUERIES._rendered, ("enqueue", "postroad"), text)
    with pytest.raises(asyncpg.DeadlockDetectedError):
        await two_authors_of_the_same_keys(sql, author_url)


# --- what is written ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count_", [1, 3])
async def test_a_row_has_all_that_the_worker_needs(author, sql, count_):
    with cause(Cause(correlation="story", causation="event")):
        rows = [prepare(render, REPORT, priority=-3, unique=f"u{number}") for number in range(count_)]
    before = await sql.fetchval("SELECT clock_timestamp()")
    done = await put(author, *rows)
    after = await sql.fetchval("SELECT clock_timestamp()")
    found = await sql.fetch("SELECT * FROM work ORDER BY id")
    assert [(row["id"], row["key"]) for row in found] == [(one.id, f"u{at}") for at, one in enumerate(done)]
    for row in found:
        assert (row["queue"], row["kind"], row["event_type"]) == ("reports", "job", "reports.render")
        assert (row["state"], row["priority"], row["attempt"], row["suspect"]) == ("ready", -3, 0, 0)
        assert (row["body"], row["content_type"]) == (b'{"day":"2026-05-04","how_many":1}', "application/json")
        assert json.loads(row["headers"]) == {"correlation": "story", "causation": "event"}
        assert row["run_at"] == row["due"]
        assert before <= row["run_at"] <= after
        assert (row["worker"], row["token"], row["started_at"], row["cancel_at"]) == (None,) * 4


async def test_a_job_for_later_is_scheduled_and_one_for_earlier_is_ready(author, sql):
    later = datetime(2126, 1, 1, 12, tzinfo=timezone(timedelta(hours=-5)))
    earlier = datetime(2020, 1, 1, tzinfo=UTC)
    await put(author, *(prepare(words, "", run_at=moment) for moment in (later, earlier)))
    rows = await sql.fetch("SELECT state, run_at, due FROM work ORDER BY id")
    assert [tuple(row) for row in rows] == [("scheduled", later, later), ("ready", earlier, earlier)]


async def test_many_keep_their_order_and_say_which_were_new(author, sql):
    await put(author, prepare(words, "old", unique="m"))
    keys = ["z", None, "a", "m", "z", "b", None, "a"]
    done = await put(author, *(prepare(words, str(at), unique=key) for at, key in enumerate(keys)))
    assert [one.new for one in done] == [True, True, True, False, False, True, True, False]
    assert [one.id is not None for one in done] == [one.new for one in done]
    numbers = [one.id for one in done if one.new]
    assert numbers == sorted(numbers)
    new = {one.id: f'"{at}"'.encode() for at, one in enumerate(done) if one.new}
    rows = await sql.fetch("SELECT id, body FROM work WHERE body <> '\"old\"' ORDER BY run_at, id")
    assert {row["id"]: row["body"] for row in rows} == new
    assert [row["id"] for row in rows] == sorted(new)


async def test_one_statement_takes_two_thousand_rows_or_eight_mebibytes(author, sql, monkeypatch):
    monkeypatch.setattr(authoring, "MOST_ROWS", 40)
    seen = []
    with author.query_logger(lambda record: seen.append(record.query)):
        done = await put(author, *([prepare(words, "")] * 100))
    assert len([text for text in seen if "INSERT" in text]) == 3
    assert [one.id for one in done] == [row["id"] for row in await sql.fetch("SELECT id FROM work ORDER BY id")]
    monkeypatch.setattr(authoring, "MOST_BYTES", 1000)
    seen.clear()
    with author.query_logger(lambda record: seen.append(record.query)):
        await put(author, *(prepare(words, "x" * size) for size in (900, 100, 1, 5000, 1)))
    assert len([text for text in seen if "INSERT" in text]) == 4


async def test_nothing_to_enqueue_sends_nothing(author, sql):
    assert await put(author) == []


async def test_the_authors_role_cannot_read_what_waits(author):
    for text in ("SELECT id FROM postroad.work", "DELETE FROM postroad.work", "UPDATE postroad.work SET key = NULL"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await author.execute(text)


async def test_every_statement_can_be_prepared(author):
    for name in QUERIES:
        await author.prepare(QUERIES.text(name, "postroad"))
