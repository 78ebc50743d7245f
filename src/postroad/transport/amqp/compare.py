"""How a virtual host differs from a topology: bindings and arguments, which AMQP itself does not show. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from postroad.transport.topology import Difference

if TYPE_CHECKING:
    from postroad.transport.amqp.management import Seen, SeenExchange
    from postroad.transport.topology import Binding, Exchange, Queue, Topology

APPLY: Final = "run: postroad topology apply MODULE:APP"
LOSING: Final = (
    "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-consumer-timeout",
    "x-single-active-consumer", "x-dead-letter-exchange", "x-dead-letter-routing-key",
)  # fmt: skip
"""Arguments that decide loss and that must not stand where they were not declared."""


def differences(topology: Topology, seen: Seen) -> list[Difference]:
    """How what stands differs from `topology`; what does not exist at all is `admin.verify`'s.

    Kinds are *binding*, *foreign binding*, *argument* and *exchange*.
    """
    return [
        *(one for binding in topology.bindings for one in _missing(binding, seen)),
        *_foreign(topology, seen),
        *(one for exchange in topology.exchanges for one in _exchange(exchange, seen)),
        *(one for queue in topology.queues if queue.owned for one in _arguments(queue, seen)),
    ]


def named(binding: Binding) -> str:
    """A binding on one line."""
    return f"{binding.exchange} -[{binding.routing_key}]-> {binding.queue}"


def _missing(binding: Binding, seen: Seen) -> Iterator[Difference]:
    if binding not in seen.bindings:
        yield Difference("binding", named(binding), "is missing", APPLY)


def _foreign(topology: Topology, seen: Seen) -> Iterator[Difference]:
    """What leads into our queues, or into exchanges that we own, and was not declared."""
    queues = {queue.name for queue in topology.queues if queue.owned}
    owned = {exchange.name for exchange in topology.exchanges if exchange.owned}
    strangers = {one for one in seen.bindings if one.queue in queues} - set(topology.bindings)
    strangers |= {one for one in seen.between if one.queue in owned}
    for one in sorted(strangers, key=named):
        yield Difference("foreign binding", named(one), "is not declared", "unbind it, or declare it")


def _exchange(exchange: Exchange, seen: Seen) -> Iterator[Difference]:
    found = seen.exchanges.get(exchange.name)
    if found is None:
        return
    if found.kind != exchange.kind:
        text = f"is of type {found.kind}, declared {exchange.kind}"
        yield Difference("exchange", exchange.name, text, f"delete it, then {APPLY}")
    if not found.durable:
        text = "is not durable: it is gone with a restart of the broker"
        yield Difference("exchange", exchange.name, text, f"delete it, then {APPLY}")
    alternate = alternate_of(found)
    if alternate:
        text = f"has the alternate exchange {alternate!r}: publishes without a queue count as routed"
        yield Difference("exchange", exchange.name, text, "remove it from argument or policy")


def alternate_of(exchange: SeenExchange) -> str | None:
    """Where an exchange sends what no queue wants; argument beats policy."""
    found: Any = exchange.arguments.get("alternate-exchange") or (exchange.policy or {}).get("alternate-exchange")
    return None if found is None else str(found)


def _arguments(queue: Queue, seen: Seen) -> Iterator[Difference]:
    found = seen.queues.get(queue.name)
    if found is None:
        return
    remedy = f"empty and delete the queue, then {APPLY}"
    if not found.durable:
        yield Difference("argument", queue.name, "is not durable", remedy)
    for name in dict.fromkeys([*queue.arguments, *LOSING]):
        declared, stands = queue.arguments.get(name), found.arguments.get(name)
        if declared != stands:
            yield Difference(
                "argument", queue.name, f"has {name} {_shown(stands)}, declared {_shown(declared)}", remedy
            )


def _shown(value: Any) -> str:
    return "unset" if value is None else repr(value)
