"""The web server's door: an App lives as long as its server, and a request's correlation id goes in and out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import asyncpg
import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, WebSocket
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from postroad import App, Executor, Producer, Run, job
from postroad import asgi as door
from postroad.asgi import Correlation, correlation_id, lifespan
from postroad.asyncpg import within
from postroad.errors import UsageError
from postroad.testing import Road

if TYPE_CHECKING:
    from starlette.requests import Request

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
shelf = Producer("shelf")


@shelf.event("book.lent", version=1)
class BookLent(BaseModel):
    """A book was lent."""

    title: str = Field(description="the book")


@job("shelf.remind")
async def remind(request: str, run: Run) -> None:
    async with run.transaction(finish=True) as tx:
        await within(tx).publish(BookLent(title=f"reminded of {request}"))


app = App("shelf", publishes=[shelf], jobs=[remind])


async def connection() -> AsyncIterator[Any]:
    """A connection in a transaction, as FastAPI's dependencies are written."""
    opened = await asyncpg.connect(database_url())
    try:
        async with opened.transaction():
            yield opened
    finally:
        await opened.close()


def database_url() -> str:
    return os.environ["POSTROAD_DATABASE_URL"]


Tx = Annotated[Any, Depends(connection)]
Background = Annotated[Executor, Depends(lambda: app.executor)]


async def lend_later(title: str) -> None:
    opened = await asyncpg.connect(database_url())
    async with opened.transaction():
        await within(opened).publish(BookLent(title=title))
    await opened.close()


def web() -> FastAPI:
    api = FastAPI(lifespan=lifespan(app))
    api.add_middleware(Correlation)

    @api.post("/lend/{title}")
    async def lend(title: str, tx: Tx, executor: Background) -> None:
        await within(tx).publish(BookLent(title=title))
        await within(tx).enqueue(remind, title)
        await executor.submit(lend_later, f"{title} later")

    @api.get("/blocking")
    def blocking() -> str | None:
        return correlation_id()

    @api.get("/after")
    async def after(tasks: BackgroundTasks) -> None:
        tasks.add_task(lambda: told.append(correlation_id()))

    told: list[str | None] = []
    api.state.told = told
    return api


def client(api: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://web")


async def echo(_request: Request) -> JSONResponse:
    return JSONResponse(correlation_id())


def echoing(**options: Any) -> Correlation:
    return Correlation(Starlette(routes=[Route("/", echo)]), **options)


async def asked(headers: list[tuple[str, str]] | dict[str, str], **options: Any) -> tuple[str, str]:
    """The id inside, and the one of the answer."""
    async with client(echoing(**options)) as http:
        answer = await http.get("/", headers=headers)
    return answer.json(), answer.headers[options.get("header", "X-Correlation-ID")]


# --- which id ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"X-Correlation-ID": "order-7"}, "order-7"),
        ({"x-correlation-id": "a" * 255}, "a" * 255),
        ({"traceparent": TRACEPARENT}, TRACE),
        ({"traceparent": TRACEPARENT, "X-Correlation-ID": "order-7"}, "order-7"),
        ({"traceparent": f"cc-{TRACE}-00f067aa0ba902b7-01-what-is-new"}, TRACE),
        ([("X-Correlation-ID", ""), ("X-Correlation-ID", "second")], "second"),
    ],
)
async def test_a_request_and_its_answer_have_the_id_that_came(headers: Any, expected: str) -> None:
    assert await asked(headers) == (expected, expected)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Correlation-ID": ""},
        {"X-Correlation-ID": "a" * 256},
        {"X-Correlation-ID": "a\tb"},
        {"traceparent": f"ff-{TRACE}-00f067aa0ba902b7-01"},
        {"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"},
        {"traceparent": f"00-{TRACE}-{'0' * 16}-01"},
        {"traceparent": TRACEPARENT.upper()},
        {"traceparent": TRACEPARENT[:-1]},
    ],
)
async def test_a_header_that_is_absent_or_no_id_makes_a_new_one_each_time(headers: dict[str, str]) -> None:
    (one, answered), (other, _) = await asked(headers), await asked(headers)
    assert one == answered
    assert len({one, other, *headers.values(), TRACE}) == 3 + len(headers)


async def test_bytes_that_are_not_ascii_are_no_id() -> None:
    async with client(echoing()) as http:
        answer = await http.get("/", headers=[(b"x-correlation-id", b"\xffid")])
    assert answer.json() == answer.headers["X-Correlation-ID"] != "\xffid"


async def test_another_header_may_carry_it() -> None:
    assert await asked({"X-Request-ID": "r-1", "X-Correlation-ID": "c-1"}, header="X-Request-ID") == ("r-1", "r-1")


@pytest.mark.parametrize("header", ["", "X Request", "X-Réquest", "X:\r\n"])
def test_a_header_that_has_no_name_is_refused(header: str) -> None:
    with pytest.raises(UsageError, match=r"not the name of an HTTP header .* \[PR107\]"):
        Correlation(echoing(), header=header)


async def test_an_answer_that_has_the_header_already_keeps_it() -> None:
    async def own(_request: Request) -> JSONResponse:
        return JSONResponse(correlation_id(), headers={"x-correlation-id": "mine"})

    async with client(Correlation(Starlette(routes=[Route("/", own)]))) as http:
        answer = await http.get("/", headers={"X-Correlation-ID": "theirs"})
    assert answer.json() == "theirs"
    assert answer.headers.get_list("X-Correlation-ID") == ["mine"]


async def test_requests_side_by_side_keep_their_own_and_leave_nothing_behind() -> None:
    meet = asyncio.Barrier(8)

    async def meeting(_request: Request) -> JSONResponse:
        await meet.wait()
        return JSONResponse(correlation_id())

    async with client(Correlation(Starlette(routes=[Route("/", meeting)]))) as http:
        names = [f"r-{number}" for number in range(8)]
        answers = await asyncio.gather(*(http.get("/", headers={"X-Correlation-ID": name}) for name in names))
    assert [answer.json() for answer in answers] == names
    assert correlation_id() is None


# --- where it goes ----------------------------------------------------------------------------------------------------


async def test_threads_and_tasks_of_a_request_inherit_it() -> None:
    api = web()
    async with client(api) as http:
        assert (await http.get("/blocking", headers={"X-Correlation-ID": "b-1"})).json() == "b-1"
        await http.get("/after", headers={"X-Correlation-ID": "b-2"})
    assert api.state.told == ["b-2"]


async def test_a_web_socket_has_one_for_as_long_as_it_is_open() -> None:
    api = FastAPI()

    @api.websocket("/")
    async def talk(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(str(correlation_id()))
        await socket.close()

    sent: list[Any] = []
    coming = [{"type": "websocket.connect"}]

    async def receive() -> Any:
        return coming.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"x-correlation-id", b"s-1")]
    scope = {"type": "websocket", "path": "/", "headers": headers, "query_string": b"", "subprotocols": []}
    await Correlation(api)(scope, receive, send)
    assert headers[0] in sent[0]["headers"]
    assert sent[1]["text"] == "s-1"


async def lent(road: Road, http: httpx.AsyncClient) -> dict[str, str | None]:
    """A book is lent in a request, by its transaction, its task and its job: the stories by title."""
    answer = await http.post("/lend/Emma", headers={"traceparent": TRACEPARENT})
    assert answer.status_code == 200
    await road.drain()
    return {one.event.title: one.envelope.correlation_id for one in await road.published(BookLent)}


TITLES = {"Emma", "Emma later", "reminded of Emma"}


@pytest.fixture
def own_road(database: str, monkeypatch: pytest.MonkeyPatch) -> Road:
    monkeypatch.setenv("POSTROAD_DATABASE_URL", database)
    return Road(app, database)


async def test_what_a_request_publishes_enqueues_and_submits_is_one_story(own_road: Road) -> None:
    api = web()
    async with api.router.lifespan_context(api), client(api) as http:
        assert await lent(own_road, http) == dict.fromkeys(TITLES, TRACE)
    [first] = [one for one in await own_road.published(BookLent) if one.event.title == "Emma"]
    assert first.envelope.causation_id is None


@pytest.mark.sabotage
async def test_without_the_cause_each_is_a_story_of_its_own(own_road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "cause", lambda _what: nullcontext())
    api = web()
    async with api.router.lifespan_context(api), client(api) as http:
        stories = await lent(own_road, http)
    assert stories.keys() == TITLES
    assert TRACE not in stories.values()
    assert len(set(stories.values())) == len(TITLES)


# --- how long it lives ------------------------------------------------------------------------------------------------


async def test_a_server_with_the_lifespan_dispatches_nothing_and_needs_no_setting(
    own_road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = web()
    monkeypatch.delenv("POSTROAD_DATABASE_URL")  # The App starts without one.
    async with api.router.lifespan_context(api), client(api) as http:
        await app.ready()
        monkeypatch.setenv("POSTROAD_DATABASE_URL", own_road.url)
        await http.post("/lend/Emma")
        assert await leases(own_road) == 0
        async with own_road.transaction() as tx:
            assert await tx.fetchval("SELECT count(*) FROM postroad.outbox") == len({"Emma", "Emma later"})
    with pytest.raises(UsageError, match="does not run"):
        await app.ready()


@pytest.mark.sabotage
async def test_a_server_that_is_given_roles_would_be_one_more_dispatcher(
    own_road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_BROKER_URL", "postgres:")
    monkeypatch.setenv("POSTROAD_ROLES", "dispatch,work")
    monkeypatch.setenv("POSTROAD_TOPOLOGY", "apply")
    api = web()
    async with api.router.lifespan_context(api):
        await app.ready()
        assert await leases(own_road) > 0


async def leases(road: Road) -> int:
    """How many names are held in the database: a dispatcher holds its shards, a worker itself."""
    async with road.transaction() as tx:
        found = await tx.fetchval("SELECT count(*) FROM postroad.lease WHERE holder IS NOT NULL")
    return int(found)


async def test_a_server_whose_app_cannot_start_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    api = web()
    monkeypatch.setenv("POSTROAD_ROLES", "nonsense")
    with pytest.raises(UsageError, match="POSTROAD_ROLES"):
        async with api.router.lifespan_context(api):
            raise AssertionError


async def test_a_server_starts_and_stops_again_and_again() -> None:
    api = web()
    for _ in range(2):
        async with api.router.lifespan_context(api):
            assert await app.executor.submit(echo_number, 7) == 7


async def echo_number(number: int) -> int:
    return number
