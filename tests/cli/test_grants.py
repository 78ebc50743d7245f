"""`postroad grants`: what it prints is enough for the App, and everything else is refused."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pika
import pytest
from pika import exceptions

from postroad.asyncpg import within
from postroad.runtime.exits import Exit
from postroad.testing.process import wait_until
from postroad.transport.permissions import BrokerUser
from runtime.processes import Running, import_app, postroad

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres, Rabbit

KINDS = [str(kind) for kind in BrokerUser]


def printed(*options: str, **settings: str) -> Any:
    done = postroad("grants", "orders:app", "--json", *options, **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def users(rabbit: Rabbit, vhost: str) -> dict[str, str]:
    """The App's users with what was printed for them, applied by rabbitmqctl: their URLs, by what they are."""
    name = vhost.rpartition("/")[2]
    urls = {}
    for each in printed("--vhost", name)["broker"]:
        urls[each["role"]] = rabbit.add_user(each["user"], "pw", vhost=name, configure="", write="", read="")
        words = shlex.split(each["command"])
        assert words[0] == "rabbitmqctl"
        rabbit.ctl(*words[1:])
    return urls


@pytest.fixture
def stands(vhost: str, users: dict[str, str]) -> None:
    """The App's topology, applied by its deployer, and another producer's."""
    done = postroad("topology", "apply", "orders:app", POSTROAD_BROKER_URL=users["deployer"])
    assert done.returncode == 0, done.stderr
    with pika.BlockingConnection(pika.URLParameters(vhost)) as connection:
        channel = connection.channel()
        channel.exchange_declare("payments.events", "topic", durable=True)
        channel.queue_declare("payments.queue", durable=True)
        channel.queue_bind("payments.queue", "payments.events", "#")


# --- enough ---------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_the_app_runs_as_the_printed_roles_and_users(
    users: dict[str, str], stands: None, vhost: str, postgres: Postgres, empty_database: str
) -> None:
    name, mark = empty_database.rpartition("/")[2], uuid4().hex[:8]
    roles = {kind: f"{kind}_{mark}" for kind in ("owner", "runtime", "author")}
    for role in roles.values():
        postgres.add_role(role)
    given = printed(*(word for kind, role in roles.items() for word in (f"--{kind}-role", role)))
    sql = {each["role"]: each["sql"] for each in given["database"]}
    owner = postgres.url(name, roles["owner"])
    assert postroad("migrate", POSTROAD_DATABASE_URL=owner).returncode == Exit.REFUSED
    postgres.execute(sql["owner"], database=name)
    done = postroad("migrate", POSTROAD_DATABASE_URL=owner)
    assert done.returncode == 0, done.stderr
    asyncio.run(run(owner, sql["runtime"], sql["author"]))
    postgres.execute("CREATE TABLE booked (number int)", database=name)
    postgres.execute(f"GRANT INSERT ON booked TO {roles['runtime']}", database=name)
    runtime = {"POSTROAD_DATABASE_URL": postgres.url(name, roles["runtime"]), "POSTROAD_TOPOLOGY": "verify"}
    dispatcher = Running("orders:app", "--only", "dispatch", POSTROAD_BROKER_URL=users["dispatcher"], **runtime)
    consumer = Running("orders:app", "--only", "consume,work", POSTROAD_BROKER_URL=users["consumer"], **runtime)
    with dispatcher, consumer:
        dispatcher.ready()
        consumer.ready()
        asyncio.run(stage(postgres.url(name, roles["author"]), 5))
        until(lambda: postgres.execute("SELECT count(*) FROM booked", database=name)[0][0] == "5")
        assert dispatcher.stop() < 10
        assert consumer.stop() < 10
    spy(vhost)
    with Running("orders:app", POSTROAD_BROKER_URL=users["process"], POSTROAD_VOUCH="on", **runtime) as both:
        both.ready()
        asyncio.run(stage(postgres.url(name, roles["author"]), 5))
        until(lambda: postgres.execute("SELECT count(*) FROM booked", database=name)[0][0] == "10")
    assert vouched_for(vhost) == ["orders-process"] * 5


def spy(url: str) -> None:
    """Keep a copy of what the App publishes, as somebody who may."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare("spy", durable=True)
        channel.queue_bind("spy", "orders.events", "#")


def vouched_for(url: str) -> list[str | None]:
    """The users that the broker vouches for on those copies."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel, users = connection.channel(), []
        while (properties := channel.basic_get("spy", auto_ack=True)[1]) is not None:
            users.append(properties.user_id)
        return users


async def run(url: str, *scripts: str) -> None:
    connection = await asyncpg.connect(url)
    for script in scripts:
        await connection.execute(script)
    await connection.close()


async def stage(url: str, count: int) -> None:
    booked = import_app("orders").OrderBooked
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        for number in range(count):
            await within(connection).publish(booked(number=number))
    await connection.close()


def until(condition: Callable[[], bool]) -> None:
    assert wait_until(condition)


# --- and nothing more -----------------------------------------------------------------------------------------------


def publish(exchange: str, routing_key: str) -> Callable[[Any], None]:
    def act(channel: Any) -> None:
        channel.confirm_delivery()
        channel.basic_publish(exchange, routing_key, b"forged")

    return act


ELSEWHERE: dict[str, Callable[[Any], Any]] = {
    "publish to another producer's exchange": publish("payments.events", "payments.payment.taken.v1"),
    "publish to another's queue by the default exchange": publish("", "payments.queue"),
    "publish to its own queue by the default exchange": publish("", "orders.book"),
    "read another's queue": lambda channel: channel.basic_get("payments.queue"),
    "consume another's queue": lambda channel: channel.basic_consume("payments.queue", print),
    "empty another's queue": lambda channel: channel.queue_purge("payments.queue"),
    "delete another's queue": lambda channel: channel.queue_delete("payments.queue"),
    "delete another's exchange": lambda channel: channel.exchange_delete("payments.events"),
    "declare a queue": lambda channel: channel.queue_declare("mine"),
    "declare a queue without a name": lambda channel: channel.queue_declare("", exclusive=True),
    "declare an exchange": lambda channel: channel.exchange_declare("mine", "fanout"),
    "listen to another's exchange": lambda channel: channel.queue_bind("orders.book", "payments.events", "#"),
    "feed another's queue": lambda channel: channel.queue_bind("payments.queue", "orders.events", "#"),
    "lead another's events to its own exchange": (
        lambda channel: channel.exchange_bind("orders.events", "payments.events", "#")
    ),
}
DEPLOYS: dict[str, Callable[[Any], Any]] = {
    "bind its own queue": lambda channel: channel.queue_bind("orders.book", "orders.events", "#"),
    "unbind its own queue": lambda channel: channel.queue_unbind("orders.book", "orders.replay", "orders.book"),
    "delete its own queue": lambda channel: channel.queue_delete("orders.book"),
    "delete its own exchange": lambda channel: channel.exchange_delete("orders.events"),
    "declare its own queue": lambda channel: channel.queue_declare("orders.book", durable=True),
}
READS: dict[str, Callable[[Any], Any]] = {
    "read its own queue": lambda channel: channel.basic_get("orders.book"),
    "empty its own queue": lambda channel: channel.queue_purge("orders.book"),
}
WRITES: dict[str, Callable[[Any], Any]] = {"publish to its own exchange": publish("orders.events", "nobody.listens")}
REFUSED = {
    "deployer": {**ELSEWHERE, **WRITES},
    "dispatcher": {**ELSEWHERE, **DEPLOYS, **READS},
    "consumer": {**ELSEWHERE, **DEPLOYS, **WRITES},
    "process": {**ELSEWHERE, **DEPLOYS},
}


def outcomes(url: str, acts: dict[str, Callable[[Any], Any]]) -> dict[str, int]:
    """What the broker answers to each: 403, or 0 where it did it."""
    codes = {}
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        for name, act in acts.items():
            try:
                act(connection.channel())
                codes[name] = 0
            except exceptions.ChannelClosedByBroker as error:
                codes[name] = error.reply_code
            except exceptions.UnroutableError:
                codes[name] = 0
    return codes


@pytest.mark.parametrize("kind", KINDS)
def test_everything_else_is_refused(kind: str, users: dict[str, str], stands: None, vhost: str) -> None:
    codes = outcomes(users[kind], REFUSED[kind])
    assert {name for name, code in codes.items() if code != 403} == set()
    with pika.BlockingConnection(pika.URLParameters(vhost)) as connection:  # And nothing happened.
        for queue in ("payments.queue", "orders.book"):
            assert connection.channel().queue_declare(queue, passive=True).method.message_count == 0


@pytest.mark.sabotage
def test_with_the_rights_of_guest_all_of_it_would_be_done(stands: None, vhost: str) -> None:
    codes = outcomes(vhost, {**ELSEWHERE, **WRITES})
    assert 403 not in codes.values()


def test_what_is_its_own_is_not_refused(users: dict[str, str], stands: None) -> None:
    assert set(outcomes(users["dispatcher"], WRITES).values()) == {0}
    assert set(outcomes(users["consumer"], READS).values()) == {0}
    assert set(outcomes(users["process"], {**READS, **WRITES}).values()) == {0}


# --- the command ----------------------------------------------------------------------------------------------------


def test_it_prints_lines_for_psql_and_a_shell() -> None:
    done = postroad("grants", "orders:app", "--runtime-role", "app", "--vhost", "the shop", POSTROAD_SCHEMA="mail")
    assert done.returncode == 0, done.stderr
    assert 'GRANT USAGE ON SCHEMA "mail" TO "app";' in done.stdout
    patterns = r"'^postroad\.installation\..*$' '^$'"
    assert f"rabbitmqctl set_permissions -p 'the shop' orders-consumer {patterns}" in done.stdout


def test_each_user_of_the_document_has_its_three_patterns() -> None:
    content = printed()
    assert [each["role"] for each in content["broker"]] == KINDS
    by_role = {each["role"]: each for each in content["broker"]}
    assert by_role["consumer"]["read"] == r"^(orders\.book|orders\.book\.dlq|postroad\.installation\..*)$"
    assert by_role["dispatcher"]["write"] == r"^(orders\.events|orders\.replay)$"
    assert content["notes"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nowhere:app",), Exit.USAGE, "nowhere"),
        (("orders:app", "--owner-role", 'x"; DROP SCHEMA y'), Exit.USAGE, "role name"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], code: Exit, words: str) -> None:
    done = postroad("grants", *arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (code, "", 1)
    assert words in done.stderr
