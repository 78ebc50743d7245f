"""Checks of the broker that need its management API: bindings, arguments, policies, time-outs, rights, orphans."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import minutes
from postroad.errors import PostroadError
from postroad.runtime.doctor import checks
from postroad.runtime.doctor.upkeep import span
from postroad.runtime.operations import tls_of
from postroad.runtime.settings import is_postgres
from postroad.transport.amqp.compare import differences
from postroad.transport.amqp.connection import Address
from postroad.transport.amqp.management import matches, read_vhost
from postroad.transport.topology import DELIVERY_LIMIT, Topology

if TYPE_CHECKING:
    from postroad.consume.consumer import Consumer
    from postroad.runtime.doctor.findings import Check, Finding
    from postroad.runtime.doctor.subject import Subject
    from postroad.runtime.settings import Settings
    from postroad.transport.amqp.management import Seen, SeenQueue

NEEDS_API: Final = (
    checks.BROKER_RIGHTS, checks.BINDINGS, checks.FOREIGN, checks.EXCHANGES, checks.ORPHANS, checks.ARGUMENTS,
    checks.LIMIT, checks.TIMEOUT, checks.POLICY,
)  # fmt: skip
_KINDS: Final = {"binding": checks.BINDINGS, "exchange": checks.EXCHANGES, "argument": checks.ARGUMENTS}
_SMALL: Final = 100
_DEFAULT_TIMEOUT: Final = minutes(30)
_DEFAULT_LIMIT: Final = 20
_DLQ: Final = ".dlq"


def examine_management(settings: Settings, subject: Subject | None) -> list[Finding]:
    """Look at the broker through POSTROAD_MANAGEMENT_URL, with plain blocking calls. Changes nothing.

    What was not looked at is *not checked*, each by its name.
    """
    if is_postgres(settings.broker_url):
        return []
    if settings.management_url is None:
        return _unseen("POSTROAD_MANAGEMENT_URL is not set, and AMQP does not show it")
    if subject is None:
        return _unseen("no App was given")
    if not settings.broker_url:
        return _unseen("POSTROAD_BROKER_URL is not set: it names virtual host and user")
    try:
        address = Address.of(settings.broker_url)
        tls = tls_of(settings)
        seen = read_vhost(settings.management_url, vhost=address.vhost, user=address.user, tls=tls)
    except PostroadError as error:
        return _unseen(str(error))
    return judge(subject.topology, seen, consumers=subject.consumers)


def judge(topology: Topology, seen: Seen, *, consumers: Iterable[Consumer[Any]]) -> list[Finding]:
    """What a virtual host as `seen` means for an App. Pure."""
    known = [consumer for consumer in consumers if consumer.takes_from in seen.queues]
    queues = [seen.queues[queue.name] for queue in topology.queues if queue.owned and queue.name in seen.queues]
    return [
        *judge_rights(topology, seen),
        *_differences(topology, seen),
        *_or_ok(checks.ORPHANS, _orphans(topology, seen), "none"),
        *_or_ok(checks.LIMIT, (one for queue in queues for one in _limit(queue, seen.version)), "as declared"),
        *(judge_timeout(consumer, seen.queues[consumer.takes_from]) for consumer in known),
        *_or_ok(checks.POLICY, (one for queue in queues for one in _policy(queue)), "none that lose messages"),
    ]


def _unseen(why: str) -> list[Finding]:
    return [check.not_checked(why) for check in NEEDS_API]


def _or_ok(check: Check, found: Iterable[Finding], well: str) -> list[Finding]:
    return list(found) or [check.ok(well)]


def _differences(topology: Topology, seen: Seen) -> Iterator[Finding]:
    found = differences(topology, seen)
    for kind, check in _KINDS.items():
        told = (check.error(f"{one.name} {one.problem}") for one in found if one.kind == kind)
        yield from _or_ok(check, told, "as declared")
    strangers = (checks.FOREIGN.warning(f"{one.name}") for one in found if one.kind == "foreign binding")
    yield from _or_ok(checks.FOREIGN, strangers, "none")
    for exchange in topology.exchanges:
        stands = seen.exchanges.get(exchange.name)
        if stands is not None and stands.policy is None:
            yield checks.EXCHANGES.not_checked(f"policies on {exchange.name}: the API's user needs the tag policymaker")


def orphans(topology: Topology, seen: Seen) -> Iterator[tuple[str, str]]:
    """Queues that nobody consumes, and what they are. Pure."""
    declared = {queue.name for queue in topology.queues}
    owned = {exchange.name for exchange in topology.exchanges if exchange.owned}
    fed = {one.queue: one.exchange for one in seen.bindings if one.exchange in owned}
    for name in sorted(set(seen.queues) - declared - seen.consumed):
        if name in fed:
            yield name, f"gets events from {fed[name]} and has no consumer"
        elif name.endswith(_DLQ) and name.removesuffix(_DLQ) not in seen.queues:
            yield name, "is the dead letter queue of a queue that is gone"


def _orphans(topology: Topology, seen: Seen) -> Iterator[Finding]:
    for name, what in orphans(topology, seen):
        yield checks.ORPHANS.warning(f"queue {name!r} {what}")


# --- limits and time-outs ---------------------------------------------------------------------------------------------


def smaller(queue: SeenQueue, name: str) -> int | None:
    """A number in effect: the smaller of argument and policy, as RabbitMQ resolves them; None where there is none."""
    given = [queue.arguments.get(f"x-{name}"), (queue.policy or {}).get(name)]
    numbers = [value for value in given if isinstance(value, int)]
    return min(numbers, default=None)


def _limit(queue: SeenQueue, version: str) -> Iterator[Finding]:
    limit = smaller(queue, "delivery-limit")
    if limit is None:
        old = version.startswith("3.")  # Before 4.0 there is no default.
        told = "none" if old else f"the broker's default of {_DEFAULT_LIMIT}"
        yield checks.LIMIT.error(f"queue {queue.name!r}: {told}")
    elif limit < _SMALL:
        yield checks.LIMIT.error(f"queue {queue.name!r}: {'none' if limit < 0 else limit}")
    elif limit < DELIVERY_LIMIT:
        yield checks.LIMIT.warning(f"queue {queue.name!r}: {limit}, declared {DELIVERY_LIMIT}")


def longest_hold(consumer: Consumer[Any]) -> timedelta:
    """How long a delivery may be unacked: until all that was prefetched before it has had its whole time."""
    return consumer.max_runtime * math.ceil(consumer.prefetch / consumer.concurrency)


def judge_timeout(consumer: Consumer[Any], queue: SeenQueue) -> Finding:
    """Whether the broker waits for a consumer's ack as long as its handlers may take."""
    hold, given = longest_hold(consumer), smaller(queue, "consumer-timeout")
    needs = f"max_runtime {span(consumer.max_runtime.total_seconds())}, {span(hold.total_seconds())} with the prefetch"
    if given is None:
        if hold >= _DEFAULT_TIMEOUT:
            return checks.TIMEOUT.warning(f"queue {queue.name!r}: 30 minutes by default, but {needs}")
        why = "the node's own (30 minutes by default) is not shown by the API"
        return checks.TIMEOUT.not_checked(f"queue {queue.name!r}: {why}; needed: {needs}")
    timeout = timedelta(milliseconds=given)
    told = f"queue {queue.name!r}: {span(timeout.total_seconds())}; {needs}"
    if timeout <= consumer.max_runtime:
        return checks.TIMEOUT.error(told)
    return checks.TIMEOUT.warning(told) if timeout <= hold else checks.TIMEOUT.ok(told)


def _policy(queue: SeenQueue) -> Iterator[Finding]:
    if queue.policy is None:
        why = "policies, time-outs and limits by policy: the API's user needs the tag policymaker"
        yield checks.POLICY.not_checked(f"queue {queue.name!r}: {why}")
        return
    for name in ("message-ttl", "expires"):
        if name in queue.policy:
            yield checks.POLICY.error(f"queue {queue.name!r} has {name} {queue.policy[name]}")
    for name in ("max-length", "max-length-bytes"):
        if name in queue.policy:
            yield checks.POLICY.note(f"queue {queue.name!r} has {name} {queue.policy[name]}")


# --- rights ---------------------------------------------------------------------------------------------------------


def judge_rights(topology: Topology, seen: Seen) -> list[Finding]:
    """Whether the user may do what its process does, and no more than that.

    Source: RabbitMQ's access control guide: consuming takes *read* on the queue, publishing *write* on the exchange;
    patterns are searched for, and an empty one matches nothing.
    """
    rights = seen.rights
    if rights is None:
        return [checks.BROKER_RIGHTS.not_checked("the API's user needs the tag administrator, or the user has none")]
    own = [exchange.name for exchange in topology.exchanges if exchange.owned]
    foreign = [exchange.name for exchange in topology.exchanges if exchange.name.endswith(".events")]
    lacking = [f"read on {queue.name!r}" for queue in topology.queues if not _may(rights.read, queue.name)]
    lacking += [f"write on {name!r}" for name in own if not _may(rights.write, name)]
    beyond = [f"may write to {name!r}" for name in foreign if name not in own and _may(rights.write, name)]
    beyond += ["may write to any exchange"] if not beyond and _may(rights.write, "some-other.events") else []
    beyond += [f"has the tag {tag}" for tag in rights.tags if tag == "administrator"]
    found = [checks.BROKER_RIGHTS.error(f"lacking {', '.join(lacking)}")] if lacking else []
    found += [checks.BROKER_RIGHTS.note(f"the user {' and '.join(beyond)}")] if beyond else []
    return found or [checks.BROKER_RIGHTS.ok("its own queues and exchanges")]


def _may(pattern: str, name: str) -> bool:
    return bool(pattern) and matches(pattern, name)
