"""The doctor on the broker over AMQP alone."""

from __future__ import annotations

import asyncio

import pytest

from postroad.runtime.doctor import examine_broker, examine_management
from postroad.runtime.doctor.broker import judge_dead, judge_user, judge_version
from postroad.runtime.doctor.managed import NEEDS_API
from postroad.runtime.operations import apply_topology
from postroad.runtime.settings import Settings
from postroad.testing.servers import free_port
from postroad.transport.amqp.admin import Session
from postroad.transport.amqp.connection import Address, AmqpSettings
from runtime.doctor.patients import SUBJECT, by_name, severity


@pytest.mark.parametrize(
    ("server", "judgement"),
    [
        ("RabbitMQ 3.10.8", "ok"), ("RabbitMQ 4.0.5", "ok"), ("RabbitMQ 4.1.0-rc.1", "ok"), ("RabbitMQ 4.3.5", "ok"),
        ("RabbitMQ 3.9.29", "error"), ("RabbitMQ 3.13.2", "warning"), ("RabbitMQ 4.3.1", "warning"),
        ("RabbitMQ 5.0.0", "warning"), ("LavinMQ 2.0", "warning"), ("", "warning"),
    ],
)  # fmt: skip
def test_the_brokers_version_is_judged(server, judgement):
    assert judge_version(server).severity == judgement


@pytest.mark.parametrize(
    ("url", "judgement"),
    [
        ("amqp://orders:x@127.0.0.1/", "ok"), ("amqp://guest:x@localhost/", "note"),
        ("amqp://orders:x@mq.internal/", "warning"), ("amqps://orders:x@mq.internal/", "ok"),
        ("amqps://guest:x@mq.internal/", "warning"),
    ],
)  # fmt: skip
def test_guest_and_plain_connections_are_told(url, judgement):
    assert judge_user(Address.of(url)).severity == judgement


def look(url: str) -> dict[str, str]:
    found = asyncio.run(examine_broker(Settings(broker_url=url), SUBJECT))
    return {name: severity(rows[:1]) for name, rows in by_name(found).items()}


def test_a_broker_that_is_away_is_an_error():
    assert look(f"amqp://guest:x@127.0.0.1:{free_port()}/") == {"broker": "error"}


@pytest.mark.parametrize("lacking", ["exchange", "queue"])
def test_what_does_not_exist_is_an_error_also_the_dead_letter_exchange(vhost, lacking):
    asyncio.run(apply_topology(Settings(broker_url=vhost), SUBJECT.topology, by="ada"))
    assert look(vhost) == {
        "broker": "ok", "broker.version": "ok", "broker.user": "note", "topology": "ok", "queue.dead-letters": "ok",
    }  # fmt: skip
    asyncio.run(_call(vhost, f"{lacking}_delete", {"exchange": "postroad.dlx", "queue": "orders.book.dlq"}[lacking]))
    assert look(vhost)["topology"] == "error"


async def _call(vhost, method, *arguments, **options):
    async with Session(Address.of(vhost), AmqpSettings()) as session:
        return await session.call(method, *arguments, **options)


def test_what_the_broker_took_out_of_a_queue_is_warned_of():
    (finding,) = judge_dead({"a.dlq": 0, "b.dlq": 3})
    assert (finding.severity, finding.found) == ("warning", "3 in 'b.dlq'")


def test_without_the_management_url_each_check_that_needs_it_is_not_checked_by_name():
    found = examine_management(Settings(broker_url="amqp://guest:x@127.0.0.1/"), SUBJECT)
    assert [one.name for one in found] == [check.name for check in NEEDS_API]
    assert {str(one.severity) for one in found} == {"not checked"}


def test_a_management_api_that_is_away_leaves_its_checks_not_checked_and_tells_no_password():
    url = f"http://guest:hush@127.0.0.1:{free_port()}"
    found = examine_management(Settings(broker_url="amqp://guest:x@127.0.0.1/", management_url=url), SUBJECT)
    assert {str(one.severity) for one in found} == {"not checked"}
    assert all("PR302" in one.found and "hush" not in one.found for one in found)
