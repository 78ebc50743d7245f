"""Checks of the broker as far as AMQP shows it: reach, version, user, what exists, and dead letters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from postroad.errors import PostroadError
from postroad.runtime.doctor import checks
from postroad.runtime.doctor.database import nearby
from postroad.runtime.operations import tls_of
from postroad.runtime.settings import is_postgres
from postroad.transport.amqp.admin import Session, depths, verify
from postroad.transport.amqp.connection import Address, AmqpSettings
from postroad.transport.topology import dead_letter_queue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroad.runtime.doctor.findings import Finding
    from postroad.runtime.doctor.subject import Subject
    from postroad.runtime.settings import Settings

OLDEST: Final = (3, 10)
NEWEST: Final = 4
_FAULTY: Final = (
    ((3, 13, 0), (3, 13, 3), "counts deaths wrongly and may drop in dead-letter cycles; use 3.13.3 or newer"),
    ((4, 2, 0), (4, 2, 7), "may misdirect commands of at-least-once dead-lettering; use 4.2.7 or newer"),
    ((4, 3, 0), (4, 3, 5), "may stop dead-lettering and commit too early; use 4.3.5 or newer"),
)
"""Releases whose notes speak of loss in what we rely on: from, up to but not including, and why."""


async def examine_broker(settings: Settings, subject: Subject | None = None) -> list[Finding]:
    """Look at the broker over AMQP: what it is, and what it lacks of the App's topology. Changes nothing."""
    if subject is not None and subject.without_broker(settings):
        return [checks.BROKER.ok("none is needed: the App neither sends nor takes events")]
    if not settings.broker_url:
        return [checks.BROKER.not_checked("POSTROAD_BROKER_URL is not set")]
    if is_postgres(settings.broker_url):
        return [checks.BROKER.ok("none: the database carries events")]
    try:
        address = Address.of(settings.broker_url)
        found = [judge_user(address)]
        async with Session(address, AmqpSettings(tls=tls_of(settings))) as session:
            server = session.server
            if subject is not None:
                found += await _topology(session, subject)
    except PostroadError as error:
        return [checks.BROKER.error(str(error))]
    if subject is None:
        found += [checks.TOPOLOGY.not_checked("no App was given"), checks.DEAD.not_checked("no App was given")]
    return [checks.BROKER.ok("reachable"), judge_version(server), *found]


def judge_user(address: Address) -> Finding:
    """What the URL says: which user, and whether passwords and payloads can be read on the way."""
    wrong = ["the user is guest"] if address.user == "guest" else []
    if all(nearby(host) for host in address.hosts):
        return checks.BROKER_USER.note(wrong[0]) if wrong else checks.BROKER_USER.ok(address.user)
    if address.url.startswith("amqp:"):
        wrong.append("the connection leaves the machine and is not encrypted")
    return checks.BROKER_USER.warning(", ".join(wrong)) if wrong else checks.BROKER_USER.ok(address.user)


def judge_version(server: str) -> Finding:
    """What the broker's own words about itself mean, such as ``RabbitMQ 4.0.5``."""
    numbers = re.fullmatch(r"RabbitMQ (\d+)\.(\d+)(?:\.(\d+))?.*", server)
    if numbers is None:
        return checks.BROKER_VERSION.warning(f"{server or 'unknown'}: only RabbitMQ is tested")
    version = (int(numbers[1]), int(numbers[2]), int(numbers[3] or 0))
    if version[:2] < OLDEST:
        return checks.BROKER_VERSION.error(server)
    if version[0] > NEWEST:
        return checks.BROKER_VERSION.warning(f"{server}, newer than what is tested")
    for first, fixed, why in _FAULTY:
        if first <= version < fixed:
            return checks.BROKER_VERSION.warning(f"{server} {why}")
    return checks.BROKER_VERSION.ok(server)


async def _topology(session: Session, subject: Subject) -> list[Finding]:
    lacking = await verify(session, subject.topology)
    found = [checks.TOPOLOGY.error(f"{one.kind} {one.name!r} {one.problem}") for one in lacking]
    names = [dead_letter_queue(one.name) for one in subject.consumers if one.queue is None]
    return [*(found or [checks.TOPOLOGY.ok("exchanges and queues exist")]), *judge_dead(await depths(session, names))]


def judge_dead(held: Mapping[str, int]) -> list[Finding]:
    """What lies in the dead letter queues, by name."""
    found = [checks.DEAD.warning(f"{count} in {name!r}") for name, count in held.items() if count]
    return found or [checks.DEAD.ok("none")]
