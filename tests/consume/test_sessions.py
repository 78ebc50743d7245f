"""Handlers with sessions of SQLAlchemy's, or asynchronous connections of psycopg's: once in effect, also grouped."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from consume.bench import AT_ONCE, Order, OrderPlaced, body
from postroad.clock import seconds
from postroad.consume import consumer, gears, group
from postroad.errors import UsageError
from postroad.events import Subscription
from postroad.psycopg import AsyncConnections
from postroad.psycopg import within as within_psycopg
from postroad.signals.catalog import DeliveryDelayed, DeliveryResult, HandlerStarted
from postroad.sql import handed_session, sessions
from postroad.sql.asyncpg import AsyncpgBlock
from postroad.sql.psycopg import AsyncPsycopgBlock
from postroad.sql.statement import Statement
from postroad.sqlalchemy import AsyncSessions, Sessions, within
from support import until

Placed = Subscription("orders.order.placed", version=1, model=Order)
COUNT = 32
CULPRIT = "13"
ASYNC = ["asyncpg", "psycopg"]


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effect"
    __table_args__ = ({"schema": "public"},)
    name: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]
    attempt: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """A busy machine is no reason to end a group or to change gears."""
    monkeypatch.setattr(group, "AGE", seconds(60))
    monkeypatch.setattr(gears, "AGE", seconds(60))
    monkeypatch.setattr(gears, "SLOW_ABOVE", seconds(60))
    monkeypatch.setattr(gears, "FAST_BELOW", seconds(60))
    monkeypatch.setattr(group, "STALLED", seconds(60))
    monkeypatch.setattr(gears, "ABREAST", 1)


@pytest.fixture(autouse=True)
async def constrained(sql):
    await sql.execute("ALTER TABLE public.effect ALTER amount SET NOT NULL")


@pytest.fixture(params=["optimistic", "careful"])
def mode(request, monkeypatch):
    """Groups as they are while nothing has failed, and as they are for a minute after that."""
    if request.param == "careful":
        monkeypatch.setattr(gears.Gears, "optimistic", property(lambda _: False))
    return request.param


def address(url, driver):
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


class Form:
    """One way of ``on=``, and how a handler adds an effect and publishes there."""

    def __init__(self, on, *, adds, publish):
        self.on = on
        self.adds = adds
        self.publish = publish


async def add_orm(session, name, attempt):
    session.add(Effect(name=name, amount=1, attempt=attempt))


async def add_sql(connection, name, attempt):
    await connection.execute("INSERT INTO public.effect VALUES (%s, 1, %s)", (name, attempt))


@pytest.fixture(params=["sessions, asyncpg", "sessions, psycopg", "connections, psycopg"])
async def form(request, runtime_url):
    kind, _, driver = request.param.partition(", ")
    if kind == "connections":
        yield Form(AsyncConnections(), adds=add_sql, publish=lambda tx, event: within_psycopg(tx).publish(event))
        return
    engine = create_async_engine(address(runtime_url, driver), pool_size=10)
    yield Form(
        AsyncSessions(async_sessionmaker(engine)), adds=add_orm, publish=lambda tx, event: within(tx).publish(event)
    )
    await engine.dispose()


SESSIONS = pytest.mark.parametrize("form", ["sessions, asyncpg", "sessions, psycopg"], indirect=True)


def transactions(here, url, form, name="billing.orders"):
    return form.on.transactions(url, here.owner, size=9, name=name)


async def run(here, queue, url, form, function, *, count=COUNT, ok=None):
    for number in range(count):
        queue.put(body(f"{number}"))
    own = transactions(here, url, form)
    async with here.consuming(function, queue.intake(), transactions=own, retries=True):
        await here.settled(count if ok is None else ok, result=DeliveryResult.OK)
        await until(lambda: len(queue.acked) == count)


async def refuses(form, tx):
    raise RuntimeError


async def breaks_the_statement(form, tx):
    await tx.execute(text("SELECT 1 / 0") if isinstance(tx, AsyncSession) else "SELECT 1 / 0")


async def hides_the_error(form, tx):
    with suppress(Exception):  # As careless code does.
        await breaks_the_statement(form, tx)


async def adds_what_cannot_be(form, tx):
    """It is sent when the handler has returned."""
    tx.add(Effect(name="x", amount=None, attempt=1))


async def commits(form, tx):
    await tx.commit()


async def commits_in_raw_text(form, tx):
    await tx.execute(text("/* */ COMMIT") if isinstance(tx, AsyncSession) else "/* */ COMMIT")


TROUBLE = [refuses, breaks_the_statement, hides_the_error, commits, commits_in_raw_text]


def billing(form, trouble, *, publishes=False):
    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def bill(event, delivery):
        await form.adds(delivery.tx, event.order, delivery.attempt)
        if publishes:
            await form.publish(delivery.tx, OrderPlaced(order=event.order, amount=1))
        if event.order == CULPRIT and delivery.attempt == 1:
            await trouble(form, delivery.tx)

    return bill


async def once_each(sql, *, culprit=2):
    rows = await sql.fetch("SELECT name, attempt FROM public.effect")
    assert sorted(row["name"] for row in rows) == sorted(f"{number}" for number in range(COUNT))
    assert {row["name"]: row["attempt"] for row in rows if row["attempt"] != 1} == {CULPRIT: culprit}
    assert await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome = 'handled'") == COUNT


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_a_member_that_fails_costs_its_neighbours_nothing(here, queue, sql, runtime_url, form, mode, trouble):
    await run(here, queue, runtime_url, form, billing(form, trouble))
    await once_each(sql)


async def test_events_of_a_group_are_staged_once_beside_a_failing_neighbour(here, queue, sql, runtime_url, form, mode):
    await run(here, queue, runtime_url, form, billing(form, refuses, publishes=True))
    await once_each(sql)
    assert await sql.fetchval("SELECT count(*) FROM event") == COUNT


@pytest.mark.sabotage
async def test_without_savepoints_what_a_failing_neighbour_wrote_would_be_committed(
    here, queue, sql, runtime_url, form, mode, monkeypatch
):
    for name in ("ENTER", "LEAVE", "UNDO"):
        monkeypatch.setattr(group, name, Statement("SELECT 1", command=True))
    await run(here, queue, runtime_url, form, billing(form, refuses, publishes=True))
    with pytest.raises(AssertionError):
        await once_each(sql)
    assert await sql.fetchval("SELECT count(*) FROM event") == COUNT + 1


async def test_in_one_group_all_share_one_transaction(here, queue, sql, runtime_url, form):
    await run(here, queue, runtime_url, form, billing(form, refuses), count=12)
    assert await sql.fetchval("SELECT count(DISTINCT xmin::text) FROM public.effect") == 1


@SESSIONS
async def test_an_error_of_the_last_flush_is_its_members_own(here, queue, sql, runtime_url, form, mode):
    await run(here, queue, runtime_url, form, billing(form, adds_what_cannot_be))
    await once_each(sql)
    (delayed,) = here.heard.all(DeliveryDelayed)
    assert "IntegrityError" in delayed.error_type


@pytest.mark.sabotage
@SESSIONS
async def test_without_the_last_flush_what_was_added_would_be_lost(here, queue, sql, runtime_url, form, monkeypatch):
    monkeypatch.setattr(sessions, "finish", lambda *_, **__: None)
    await run(here, queue, runtime_url, form, billing(form, refuses), count=3)
    assert await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome = 'handled'") == 3
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 0


@pytest.mark.sabotage
@SESSIONS
async def test_a_session_for_all_would_write_what_failed(here, queue, sql, runtime_url, form, monkeypatch):
    """Objects of a member that failed would be flushed with the next one's."""
    monkeypatch.setattr(gears.Gears, "optimistic", property(lambda _: False))
    shared = []
    plain = sessions.AsyncSessionUnit.lent

    def lent(unit):
        if not shared:
            shared.append(AsyncSession(unit._connection, autoflush=False))
        return Lent(shared[0])

    class Lent:
        def __init__(self, session):
            self.session = session

        async def __aenter__(self):
            return self.session

        async def __aexit__(self, kind, *_):
            if kind is None:
                await self.session.flush()

    monkeypatch.setattr(sessions.AsyncSessionUnit, "lent", lent)
    await run(here, queue, runtime_url, form, billing(form, refuses), ok=COUNT - 1)
    assert plain is not lent
    names = [row["name"] for row in await sql.fetch("SELECT name FROM public.effect WHERE attempt = 1")]
    assert CULPRIT in names


async def an_error_leaves_nothing(here, queue, sql, url, form):
    seen = []

    @consumer(Placed, name="billing.orders", retry=AT_ONCE, group=False)
    async def bill(event, delivery):
        if delivery.attempt == 1:
            await form.adds(delivery.tx, event.order, delivery.attempt)
            await form.publish(delivery.tx, OrderPlaced(order=event.order, amount=1))
            raise RuntimeError
        seen.append(await left(sql))

    await run(here, queue, url, form, bill, count=1)
    assert seen == [(0, 0, 0)]


async def left(sql):
    """How many writes, events and marks of what was handled were committed."""
    return (
        await sql.fetchval("SELECT count(*) FROM public.effect"),
        await sql.fetchval("SELECT count(*) FROM event"),
        await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome = 'handled'"),
    )


async def test_a_handlers_error_leaves_neither_inbox_row_nor_write(here, queue, sql, runtime_url, form):
    await an_error_leaves_nothing(here, queue, sql, runtime_url, form)


@pytest.mark.sabotage
async def test_without_the_rollback_an_error_would_leave_them(here, queue, sql, runtime_url, form, monkeypatch):
    for block in (AsyncpgBlock, AsyncPsycopgBlock):
        monkeypatch.setattr(block, "rollback", block.commit)
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(10):
            await an_error_leaves_nothing(here, queue, sql, runtime_url, form)
    assert (await left(sql))[:2] == (1, 1)


@SESSIONS
async def test_each_delivery_has_a_session_of_its_own_which_ends_with_it(here, queue, sql, runtime_url, form):
    seen = []

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def bill(event, delivery):
        assert not list(delivery.tx)
        await form.adds(delivery.tx, event.order, 1)
        await delivery.tx.flush()
        assert await delivery.tx.scalar(select(Effect).where(Effect.name == event.order)) in delivery.tx
        seen.append(delivery.tx)

    await run(here, queue, runtime_url, form, bill, count=5)
    assert len(set(map(id, seen))) == 5
    with pytest.raises(InvalidRequestError):
        await seen[0].execute(text("SELECT 1"))


@SESSIONS
async def test_a_savepoint_of_the_handlers_own_keeps_the_rest(here, queue, sql, runtime_url, form, mode):
    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def bill(event, delivery):
        await form.adds(delivery.tx, event.order, 1)
        with pytest.raises(IntegrityError):
            async with delivery.tx.begin_nested():
                delivery.tx.add(Effect(name="x", amount=None, attempt=7))
        await form.publish(delivery.tx, OrderPlaced(order=event.order, amount=1))

    await run(here, queue, runtime_url, form, bill, count=6)
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 6
    assert await sql.fetchval("SELECT count(*) FROM event") == 6
    assert len(here.heard.all(HandlerStarted)) == 6


async def connection_commits(tx):
    await (await tx.connection()).commit()


async def connection_rolls_back(tx):
    await (await tx.connection()).rollback()


async def begins_a_block(tx):
    async with tx.begin():
        tx.add(Effect(name="x", amount=1, attempt=1))


async def uses_it_as_a_block(tx):
    async with tx:
        tx.add(Effect(name="x", amount=1, attempt=1))


async def leaves_a_savepoint(tx):
    await tx.begin_nested()
    tx.add(Effect(name="x", amount=1, attempt=1))


async def catches_a_flush(tx):
    tx.add(Effect(name="x", amount=None, attempt=1))
    with pytest.raises(IntegrityError):
        await tx.flush()


@SESSIONS
@pytest.mark.parametrize(
    "act",
    [
        lambda tx: tx.commit(), lambda tx: tx.rollback(), lambda tx: tx.close(), lambda tx: tx.reset(),
        lambda tx: tx.invalidate(), lambda tx: tx.execute(text("ROLLBACK")),
        lambda tx: tx.execute(text("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")),
        connection_commits, connection_rolls_back, begins_a_block, uses_it_as_a_block, leaves_a_savepoint,
        catches_a_flush,
    ],
)  # fmt: skip
@pytest.mark.parametrize("grouped", [True, False])
async def test_a_handler_cannot_end_the_transaction_of_its_delivery(here, queue, sql, runtime_url, form, act, grouped):
    ran = []

    @consumer(Placed, name="billing.orders", retry=AT_ONCE, group=grouped)
    async def bill(event, delivery):
        await form.adds(delivery.tx, event.order, delivery.attempt)
        if delivery.attempt == 1 and event.order == "1":
            ran.append(event.order)
            await act(delivery.tx)

    await run(here, queue, runtime_url, form, bill, count=3)
    rows = await sql.fetch("SELECT name, attempt FROM public.effect ORDER BY name")
    assert [tuple(row) for row in rows] == [("0", 1), ("1", 2), ("2", 1)]
    assert ran
    reasons = [signal.reason for signal in here.heard.all(DeliveryDelayed)]
    assert len(reasons) == 1


@pytest.mark.sabotage
@pytest.mark.parametrize("form", ["sessions, psycopg"], indirect=True)
async def test_a_commit_that_got_through_would_commit_what_fails_after_it(
    here, queue, sql, runtime_url, form, monkeypatch
):
    monkeypatch.setattr(handed_session, "guarded", lambda kind: kind)
    monkeypatch.setattr(sessions, "guarded", lambda kind: kind)
    monkeypatch.setattr(handed_session, "_refuse_commit", lambda pooled: pooled.driver_connection and pooled.commit())

    @consumer(Placed, name="billing.orders", retry=AT_ONCE, group=False)
    async def bill(event, delivery):
        if delivery.attempt == 1:
            await form.adds(delivery.tx, event.order, delivery.attempt)
            await delivery.tx.commit()
            raise RuntimeError

    queue.put(body("1"))
    own = transactions(here, runtime_url, form)
    async with here.consuming(bill, queue.intake(), transactions=own, retries=True):
        await until(lambda: len(queue.acked) == 1)
    assert await sql.fetchval("SELECT count(*) FROM public.effect WHERE attempt = 1") == 1


async def test_over_its_time_limit_a_handler_is_cut_off_and_charged(here, queue, sql, runtime_url, form):
    @consumer(Placed, name="billing.orders", retry=AT_ONCE, max_runtime=seconds(0.3))
    async def bill(event, delivery):
        await form.adds(delivery.tx, event.order, delivery.attempt)
        if event.order == "1" and delivery.attempt == 1:
            await delivery.tx.execute(
                text("SELECT pg_sleep(60)") if "Session" in type(delivery.tx).__name__ else "SELECT pg_sleep(60)"
            )

    await run(here, queue, runtime_url, form, bill, count=4)
    rows = await sql.fetch("SELECT name, attempt FROM public.effect ORDER BY name")
    assert [tuple(row) for row in rows] == [("0", 1), ("1", 2), ("2", 1), ("3", 1)]


async def test_a_killed_connection_is_replaced_and_nothing_is_lost(here, queue, sql, runtime_url, form, mode):
    killed = []

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def bill(event, delivery):
        await form.adds(delivery.tx, event.order, 1)
        if event.order == CULPRIT and not killed:
            killed.append(event.order)
            kill = "SELECT pg_terminate_backend(pg_backend_pid())"
            await delivery.tx.execute(text(kill) if isinstance(delivery.tx, AsyncSession) else kill)

    await run(here, queue, runtime_url, form, bill)
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == COUNT
    assert await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome = 'handled'") == COUNT


@pytest.fixture
async def blocking(runtime_url):
    engine = create_engine(address(runtime_url, "psycopg"))
    yield Sessions(sessionmaker(engine))
    engine.dispose()


@pytest.mark.parametrize("kind", ["def"], indirect=True)
async def test_a_plain_function_has_a_session_on_its_thread(here, queue, sql, runtime_url, blocking):
    kinds = []

    @consumer(Placed, name="billing.orders", retry=AT_ONCE, on=blocking)
    def bill(event, delivery):
        kinds.append(isinstance(delivery.tx, Session))
        delivery.tx.add(Effect(name=event.order, amount=1, attempt=delivery.attempt))
        within(delivery.tx).publish(OrderPlaced(order=event.order, amount=1))
        if event.order == CULPRIT and delivery.attempt == 1:
            raise RuntimeError

    for number in range(COUNT):
        queue.put(body(f"{number}"))
    own = blocking.transactions(runtime_url, here.owner, size=8, name="billing.orders")
    async with here.consuming(bill, queue.intake(), transactions=own, retries=True):
        await here.settled(COUNT, result=DeliveryResult.OK)
    await once_each(sql)
    assert all(kinds)
    assert await sql.fetchval("SELECT count(*) FROM event") == COUNT


async def a_plain_error_leaves_nothing(here, queue, sql, url, on):
    seen, loop = [], asyncio.get_running_loop()

    @consumer(Placed, name="billing.orders", retry=AT_ONCE, group=False, on=on)
    def bill(event, delivery):
        if delivery.attempt == 1:
            delivery.tx.add(Effect(name=event.order, amount=1, attempt=1))
            within(delivery.tx).publish(OrderPlaced(order=event.order, amount=1))
            raise RuntimeError
        seen.append(asyncio.run_coroutine_threadsafe(left(sql), loop).result(10))

    queue.put(body("1"))
    own = on.transactions(url, here.owner, size=8, name="billing.orders")
    async with here.consuming(bill, queue.intake(), transactions=own, retries=True):
        await here.settled(1, result=DeliveryResult.OK)
    assert seen == [(0, 0, 0)]


@pytest.mark.parametrize("kind", ["def"], indirect=True)
async def test_a_plain_functions_error_leaves_neither_inbox_row_nor_write(here, queue, sql, runtime_url, blocking):
    await a_plain_error_leaves_nothing(here, queue, sql, runtime_url, blocking)


@pytest.mark.sabotage
@pytest.mark.parametrize("kind", ["def"], indirect=True)
async def test_without_the_rollback_a_plain_functions_error_would_leave_them(
    here, queue, sql, runtime_url, blocking, monkeypatch
):
    monkeypatch.setattr(sessions._SessionSeat, "rollback", sessions._SessionSeat.commit)
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(10):
            await a_plain_error_leaves_nothing(here, queue, sql, runtime_url, blocking)
    assert (await left(sql))[:2] == (1, 1)


@pytest.mark.parametrize("kind", ["def"], indirect=True)
@pytest.mark.parametrize(
    "act",
    [
        lambda tx: tx.commit(),
        lambda tx: tx.rollback(),
        lambda tx: tx.execute(text("COMMIT")),
        lambda tx: tx.connection().commit(),
    ],
)
async def test_a_plain_function_cannot_end_it(here, queue, sql, runtime_url, blocking, act):
    @consumer(Placed, name="billing.orders", retry=AT_ONCE, on=blocking)
    def bill(event, delivery):
        delivery.tx.add(Effect(name=event.order, amount=1, attempt=delivery.attempt))
        if delivery.attempt == 1:
            act(delivery.tx)

    queue.put(body("1"))
    own = blocking.transactions(runtime_url, here.owner, size=8, name="billing.orders")
    async with here.consuming(bill, queue.intake(), transactions=own, retries=True):
        await here.settled(1, result=DeliveryResult.OK)
    rows = await sql.fetch("SELECT name, attempt FROM public.effect")
    assert [tuple(row) for row in rows] == [("1", 2)]


def test_sessions_need_one_engine_of_a_driver_that_fits(runtime_url):
    engine = create_engine(address(runtime_url, "psycopg"))
    asynchronous = create_async_engine(address(runtime_url, "psycopg"))
    for wrong in (async_sessionmaker(), async_sessionmaker(binds={Effect: asynchronous}), sessionmaker(engine)):
        with pytest.raises(UsageError, match=r"async_sessionmaker\(engine\).*PR101"):
            AsyncSessions(wrong)
    for wrong in (sessionmaker(), sessionmaker(engine, binds={Effect: engine})):
        with pytest.raises(UsageError, match=r"sessionmaker\(engine\).*PR101"):
            Sessions(wrong)
    with pytest.raises(UsageError, match="not by 'sqlite'"):
        Sessions(sessionmaker(create_engine("sqlite://")))
