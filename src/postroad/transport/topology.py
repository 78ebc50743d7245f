"""The exchanges, queues and bindings that publishing and consuming need; pure values, nothing is declared here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Self

from postroad.errors import UsageError

DEAD_LETTER_EXCHANGE: Final = "postroad.dlx"
DELIVERY_LIMIT: Final = 10_000
"""Never none: the default of 20 loses messages that were given back often; without a limit they go to the back."""

_LONGEST: Final = 255  # AMQP 0-9-1, section 4.2.5.3: a short string.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RESERVED: Final = "amq."  # RabbitMQ refuses to declare these.


def events_exchange(producer: str) -> str:
    """The topic exchange to which a producer publishes; the right to write there is ownership."""
    return f"{producer}.events"


def replay_exchange(producer: str) -> str:
    """The direct exchange through which a producer's events go to one consumer alone."""
    return f"{producer}.replay"


def dead_letter_queue(consumer: str) -> str:
    """Where the broker puts what it takes out of a consumer's queue by itself."""
    return f"{consumer}.dlq"


def owner_of(event_type: str) -> str:
    """The producer that owns an event type: its first segment."""
    return event_type.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Difference:
    """What the transport lacks, and what to do about it. `kind` is exchange, queue or subscription."""

    kind: str
    name: str
    problem: str
    remedy: str

    @property
    def line(self) -> str:
        """All of it on one line."""
        return f"{self.kind} {self.name!r} {self.problem}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange. One that is not `owned` is declared only where it is missing: its owner has the last word."""

    name: str
    kind: str
    owned: bool = True


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue with every argument that decides loss; arguments cannot be changed later (406).

    One that is not `owned` is never declared: it must stand, however its owner wants it.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    owned: bool = True


@dataclass(frozen=True, slots=True)
class Binding:
    """What leads from an exchange to a queue."""

    exchange: str
    queue: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything that must stand on the broker, in the order in which it can be declared."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        publishes: Iterable[str] = (),
        consumers: Iterable[tuple[str, Sequence[str]]] = (),
        single_active: Collection[str] = (),
        standing: Iterable[str] = (),
    ) -> Self:
        """The topology of an App: names of producers, consumers with the event types they subscribe to.

        A queue is bound to **every** version of its types (``<type>.*``): the consumer refuses a version, not the
        binding, so that a producer's new version is never lost on an old consumer. A consumer brings the exchanges
        of the owners of its types, so that the order of deploys does not matter. Consumers in `single_active` get
        one active instance at a time. Queues that are `standing` are another's: read, and neither declared nor bound.

        Raises:
            UsageError: a name has characters that a routing key gives a meaning, or is too long.
        """
        own = list(dict.fromkeys(publishes))
        subscriptions = list(consumers)
        foreign = {owner_of(name): None for _, types in subscriptions for name in types if owner_of(name) not in own}
        exchanges = [exchange for producer in own for exchange in _producer(producer, owned=True)]
        exchanges += [exchange for producer in foreign for exchange in _producer(producer, owned=False)]
        if subscriptions:
            exchanges.append(Exchange(DEAD_LETTER_EXCHANGE, "direct", owned=False))
        queues: list[Queue] = []
        bindings: list[Binding] = []
        for consumer, types in subscriptions:
            queues += _queues(consumer, single=consumer in single_active)
            bindings += _bindings(consumer, types)
        queues += [Queue(name, owned=False) for name in dict.fromkeys(standing)]
        topology = cls(tuple(exchanges), tuple(queues), tuple(bindings))
        topology._check()
        return topology

    def _check(self) -> None:
        for kind, name in [
            *(("exchange", exchange.name) for exchange in self.exchanges),
            *(("queue", queue.name) for queue in self.queues if queue.owned),
            *(("routing key", binding.routing_key.removesuffix(".*")) for binding in self.bindings),
        ]:
            if len(name) > _LONGEST - 2 or not _NAME.fullmatch(name) or name.startswith(_RESERVED):
                raise UsageError(
                    "PR101",
                    f"{kind} {name!r} cannot be declared: use at most {_LONGEST - 2} letters, digits, dots, dashes and"
                    f" underscores, the first a letter or digit, not beginning with {_RESERVED!r}",
                )

    def as_json(self) -> dict[str, Any]:
        """Plain values, for `json.dumps`."""
        return {
            "exchanges": [
                {"name": exchange.name, "type": exchange.kind, "owned": exchange.owned} for exchange in self.exchanges
            ],
            "queues": [
                {"name": queue.name, "arguments": dict(queue.arguments), "owned": queue.owned} for queue in self.queues
            ],
            "bindings": [
                {"exchange": binding.exchange, "queue": binding.queue, "routing_key": binding.routing_key}
                for binding in self.bindings
            ],
        }

    def to_markdown(self) -> str:
        """Three tables, for documentation."""
        exchanges = [(exchange.name, exchange.kind, "" if exchange.owned else "yes") for exchange in self.exchanges]
        queues = [
            (queue.name, "<br>".join(f"{name}: {value}" for name, value in queue.arguments.items()) or "another's")
            for queue in self.queues
        ]
        bindings = [(binding.exchange, binding.routing_key, binding.queue) for binding in self.bindings]
        return "\n".join(
            [
                *_table(("Exchange", "Type", "Another's"), exchanges),
                *_table(("Queue", "Arguments"), queues),
                *_table(("From", "Routing key", "To"), bindings),
            ]
        ).rstrip("\n")


def _producer(name: str, *, owned: bool) -> tuple[Exchange, Exchange]:
    return (
        Exchange(events_exchange(name), "topic", owned=owned),
        Exchange(replay_exchange(name), "direct", owned=owned),
    )


def _queues(consumer: str, *, single: bool) -> tuple[Queue, Queue]:
    arguments: dict[str, Any] = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": DEAD_LETTER_EXCHANGE,
        "x-dead-letter-routing-key": consumer,
        # At least once needs reject-publish: with drop-head RabbitMQ falls back to at most once without a word.
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-delivery-limit": DELIVERY_LIMIT,
    }
    if single:
        arguments["x-single-active-consumer"] = True
    # What lies in the dead letter queue stays there: no exchange after it, no age.
    last = {"x-queue-type": "quorum", "x-overflow": "reject-publish", "x-delivery-limit": DELIVERY_LIMIT}
    return (
        Queue(consumer, MappingProxyType(arguments)),
        Queue(dead_letter_queue(consumer), MappingProxyType(last)),
    )


def _bindings(consumer: str, types: Sequence[str]) -> list[Binding]:
    owners = dict.fromkeys(owner_of(name) for name in types)
    return [
        *(Binding(events_exchange(owner_of(name)), consumer, f"{name}.*") for name in dict.fromkeys(types)),
        *(Binding(replay_exchange(owner), consumer, consumer) for owner in owners),
        Binding(DEAD_LETTER_EXCHANGE, dead_letter_queue(consumer), consumer),
    ]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    lines = [head, tuple("---" for _ in head), *rows]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""]
