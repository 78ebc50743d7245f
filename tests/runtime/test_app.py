"""The App: its declarations as a whole, and its life inside another server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest
from pydantic import BaseModel, Field

from postroad.asyncpg import UnawaitedPublish, within
from postroad.clock import seconds
from postroad.consume import Delivery, consumer
from postroad.errors import AccessRefused, UsageError
from postroad.events import Producer, Subscription
from postroad.runtime.app import App
from postroad.runtime.resources import Resources
from postroad.runtime.settings import ALL_ROLES, Role, Settings, TopologyMode
from postroad.signals.catalog import (
    DeliverySettled,
    PartitionsKept,
    PublishDropped,
    RetentionKept,
    ServiceFailed,
    ServiceReady,
    ShutdownReceipt,
)

if TYPE_CHECKING:
    from postroad.owner import Readiness
    from postroad.signals import Signal
    from postroad.testing.servers import Postgres


class Body(BaseModel):
    """What is read."""

    number: int = 0


def reads(type_: str, *, name: str, version: int = 1) -> Any:
    @consumer(Subscription(type_, version=version, model=Body), name=name)
    async def handle(event: Body, delivery: Delivery[Any]) -> None: ...

    return handle


def own_producer() -> tuple[Producer, type]:
    """A producer of a fresh name with one event type."""
    producer = Producer(f"p{uuid4().hex[:8]}")

    class Placed(BaseModel):
        """Something was placed."""

        number: int = Field(description="Which")

    Placed.__qualname__ = f"Placed{producer.name}"
    return producer, producer.event("thing.placed", version=2)(Placed)


# --- declarations ---------------------------------------------------------------------------------------------------


def test_every_problem_of_the_declarations_is_in_one_error() -> None:
    producer, _ = own_producer()
    first, second = reads("x.y.happened", name="same"), reads("x.z.happened", name="same")
    with pytest.raises(UsageError) as caught:
        App(
            "No Name", publishes=[producer, producer, "flights"],  # type: ignore[list-item]
            consumers=[first, second, print, reads(f"{producer.name}.thing.placed", name="old", version=1)],
            lifespan=lambda: None,  # type: ignore[arg-type,return-value]
        )  # fmt: skip
    text = str(caught.value)
    assert caught.value.code == "PR104"
    for words in (
        "App name", f"producer '{producer.name}' is published twice", "publishes holds str",
        "consumer 'same' is declared twice",
        "print", "does not declare", "lifespan is not an async generator function",
    ):  # fmt: skip
        assert words in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"consumers": [print]}, "print is not a consumer; decorate it with @consumer(..., name=...)"),
        ({"publishes": "things"}, "publishes is str, not a list of Producer values"),
        ({"publishes": ["x", "y"]}, "publishes holds str, not a Producer"),
        ({"publishes": Producer("alone")}, "publishes is Producer, not a list of Producer values"),
        ({"consumers": 3}, "consumers is int, not a list of functions decorated with @consumer"),
    ],
)
def test_each_problem_of_the_declarations_is_told_once(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        App("a", **options)
    assert str(caught.value) == f"App 'a': {text} [PR101]"


def test_a_consumer_of_an_own_type_in_its_declared_version_is_fine() -> None:
    producer, _ = own_producer()
    app = App("fine", publishes=[producer], consumers=[reads(f"{producer.name}.thing.placed", name="new", version=2)])
    assert {queue.name for queue in app.topology.queues} == {"new", "new.dlq"}


def test_a_background_service_has_a_free_name_and_the_right_shape() -> None:
    app = App("fine", consumers=[reads("x.y.happened", name="c")])

    async def good(stop: asyncio.Event, ready: Readiness) -> None: ...

    app.background("rates", good)
    for name in ("rates", "c", "transport"):
        with pytest.raises(UsageError, match="PR104"):
            app.background(name, good)
    with pytest.raises(UsageError, match="PR101"):
        app.background("other", lambda stop, ready: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(UsageError, match="PR101"):
        app.background("Bad Name", good)


def test_a_producer_of_another_schema_than_the_processs_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    producer = Producer(f"p{uuid4().hex[:8]}", schema="elsewhere")
    app = App("split", publishes=[producer], settings=Settings(database_url="postgresql://h/d", broker_url="amqp://h"))
    with pytest.raises(SystemExit) as ended:
        app.run()
    assert ended.value.code == 3
    said = capsys.readouterr().err
    assert "POSTROAD_SCHEMA" in said
    assert "'elsewhere'" in said


# --- resources ------------------------------------------------------------------------------------------------------


def test_live_objects_are_found_by_type_by_base_and_by_mapping() -> None:
    assert Resources(3)(int) == 3
    assert Resources([3, "x"])(str) == "x"
    assert Resources(True)(int) is True
    assert Resources({object: 1})(object) == 1
    for resources, kind in ((Resources(), int), (Resources([1, 2.0]), object), (Resources("x"), int)):
        with pytest.raises(LookupError):
            resources(kind)
    with pytest.raises(UsageError, match="mapping"):
        Resources([1, 2])


# --- inside another server ------------------------------------------------------------------------------------------


async def test_inside_another_server_it_has_no_roles_and_needs_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POSTROAD_DATABASE_URL", "POSTROAD_BROKER_URL", "POSTROAD_ROLES"):
        monkeypatch.delenv(name, raising=False)
    heard: list[Signal] = []
    ran = asyncio.Event()
    steps: list[str] = []

    async def lifespan() -> AsyncGenerator[None, None]:
        steps.append("opened")
        yield
        steps.append("closed")

    async def background(stop: asyncio.Event, ready: Readiness) -> None:
        ready.up()
        ran.set()
        await stop.wait()
        steps.append("stopped")

    app = App("web", publishes=[own_producer()[0]], lifespan=lifespan, sinks=[heard.append])
    app.background("tick", background)
    async with app:
        await asyncio.wait_for(ran.wait(), 5)
        assert {signal.service for signal in heard if isinstance(signal, ServiceReady)} == {"tick"}
        with pytest.raises(UsageError, match="runs already"):
            async with app:
                pass
    assert steps == ["opened", "stopped", "closed"]
    assert isinstance(heard[-1], ShutdownReceipt)
    async with app:  # It may run again.
        pass


def settings(database: str, vhost: str, **changes: Any) -> Settings:
    given: dict[str, Any] = {
        "database_url": database, "direct_url": database, "broker_url": vhost, "topology": TopologyMode.APPLY,
        "grace": seconds(5), "shard_lease": seconds(2), "worker_lease": seconds(2), **changes,
    }  # fmt: skip
    return Settings(**given)


async def test_with_roles_it_carries_events_and_hands_out_live_objects(
    runtime_url: str, author_url: str, vhost: str
) -> None:
    producer, placed = own_producer()
    handled: list[tuple[int, str]] = []
    settled = asyncio.Event()

    async def lifespan() -> AsyncGenerator[str, None]:
        yield "a live object"

    @consumer(placed, name=f"{producer.name}.reader")
    async def handle(event: Any, delivery: Delivery[Any]) -> None:
        handled.append((event.number, delivery.use(str)))

    def hear(signal: Signal) -> None:
        if isinstance(signal, DeliverySettled):
            settled.set()

    app = App(
        "both", publishes=[producer], consumers=[handle], lifespan=lifespan, sinks=[hear],
        settings=settings(runtime_url, vhost, roles=ALL_ROLES),
    )  # fmt: skip
    async with app:
        connection = await asyncpg.connect(author_url)
        async with connection.transaction():
            await within(connection).publish(placed(number=7))
        await connection.close()
        await asyncio.wait_for(settled.wait(), 20)
    assert handled == [(7, "a live object")]


async def test_a_publish_that_nobody_awaits_is_reported_while_the_app_runs(author_url: str) -> None:
    heard: list[Signal] = []
    producer, placed = own_producer()
    connection = await asyncpg.connect(author_url)
    app = App("web", publishes=[producer], sinks=[heard.append])
    async with app, connection.transaction():
        with pytest.warns(UnawaitedPublish):
            within(connection).publish(placed(number=7))  # type: ignore[unused-coroutine]
    await connection.close()
    assert [signal for signal in heard if isinstance(signal, PublishDropped)]


async def test_inside_another_server_a_refused_service_ends_nothing() -> None:
    failed = asyncio.Event()

    def hear(signal: Signal) -> None:
        if isinstance(signal, ServiceFailed):
            failed.set()

    async def refused(stop: asyncio.Event, ready: Readiness) -> None:
        raise AccessRefused("PR303", "no")

    app = App("web", sinks=[hear], settings=Settings(roles=frozenset()))
    app.background("refused", refused)
    async with app:
        await asyncio.wait_for(failed.wait(), 5)


async def test_who_asks_for_readiness_waits_for_every_service() -> None:
    go = asyncio.Event()

    async def slow(stop: asyncio.Event, ready: Readiness) -> None:
        await go.wait()
        ready.up()
        await stop.wait()

    app = App("web", settings=Settings(roles=frozenset()))
    app.background("slow", slow)
    with pytest.raises(UsageError, match="does not run"):
        await app.ready()
    async with app:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(app.ready(), 0.1)
        go.set()
        await asyncio.wait_for(app.ready(), 5)


async def test_a_start_that_fails_closes_what_it_had_opened(runtime_url: str, vhost: str) -> None:
    steps: list[str] = []

    async def lifespan() -> AsyncGenerator[None, None]:
        steps.append("opened")
        yield
        steps.append("closed")

    wrong = vhost.replace("guest:guest", "guest:wrong")
    app = App(
        "bad", consumers=[reads("x.y.happened", name="c")], lifespan=lifespan, settings=settings(runtime_url, wrong)
    )
    with pytest.raises(AccessRefused, match="PR303"):
        async with app:
            raise AssertionError
    assert steps == ["opened", "closed"]
    with pytest.raises(AccessRefused):  # It is not left as running.
        async with app:
            raise AssertionError


async def test_the_maintainer_makes_partitions_that_are_missing_and_reports(
    postgres: Postgres, database: str, runtime_url: str, vhost: str
) -> None:
    name = database.rpartition("/")[2]
    days = postgres.execute("SELECT to_char(now() AT TIME ZONE 'UTC' + interval '1 day', 'YYYYMMDD')", database=name)
    postgres.execute(f"DROP TABLE postroad.event_90_{days[0][0]}", database=name)
    kept: asyncio.Queue[PartitionsKept] = asyncio.Queue()

    def hear(signal: Signal) -> None:
        if isinstance(signal, PartitionsKept):
            kept.put_nowait(signal)

    app = App("keeper", sinks=[hear], settings=settings(runtime_url, vhost, roles=frozenset({Role.MAINTAIN})))
    async with app:
        signal = await asyncio.wait_for(kept.get(), 20)
    assert signal.allowed
    assert signal.made >= 1
    assert signal.days_ahead >= 7


async def test_the_maintainer_lets_go_of_what_was_kept_long_enough_and_reports(
    postgres: Postgres, database: str, runtime_url: str, vhost: str
) -> None:
    postgres.execute(
        "SELECT postroad.make_partition('event_7', (now() AT TIME ZONE 'UTC')::date - 8);"
        "INSERT INTO postroad.inbox VALUES ('c', gen_random_uuid(), 'handled', NULL, now() - interval '36 days')",
        database=database.rpartition("/")[2],
    )
    kept: asyncio.Queue[RetentionKept] = asyncio.Queue()

    def hear(signal: Signal) -> None:
        if isinstance(signal, RetentionKept):
            kept.put_nowait(signal)

    app = App("keeper", sinks=[hear], settings=settings(runtime_url, vhost, roles=frozenset({Role.MAINTAIN})))
    async with app:
        signal = await asyncio.wait_for(kept.get(), 20)
    assert signal == RetentionKept(dropped=1, needed=0, held=0, rows=0, marks=1, leases=0)


async def test_where_the_role_may_not_make_partitions_the_maintainer_says_so(
    postgres: Postgres, database: str, runtime_url: str, vhost: str
) -> None:
    name = database.rpartition("/")[2]
    postgres.execute("REVOKE EXECUTE ON FUNCTION postroad.make_partition(text, date) FROM pr_runtime", database=name)
    kept: asyncio.Queue[PartitionsKept] = asyncio.Queue()

    def hear(signal: Signal) -> None:
        if isinstance(signal, PartitionsKept):
            kept.put_nowait(signal)

    app = App("keeper", sinks=[hear], settings=settings(runtime_url, vhost, roles=frozenset({Role.MAINTAIN})))
    async with app:
        signal = await asyncio.wait_for(kept.get(), 20)
    assert (signal.allowed, signal.made) == (False, 0)
