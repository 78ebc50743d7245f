"""What the broker's users of an App need, as RabbitMQ's three patterns; pure values, nothing is granted here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from postroad.transport.topology import DEAD_LETTER_EXCHANGE

if TYPE_CHECKING:
    from postroad.transport.topology import Topology

_SPECIAL: Final = re.compile(r"[^\w-]")
_MARKS: Final = r"postroad\.installation\..*"
NOTHING: Final = "^$"
"""The pattern that no name matches. RabbitMQ takes an empty text for the same."""


class BrokerUser(StrEnum):
    """Who logs in to the broker for an App."""

    DEPLOYER = "deployer"
    """``postroad topology apply``, in a deploy."""
    DISPATCHER = "dispatcher"
    """A process of the role dispatch."""
    CONSUMER = "consumer"
    """A process of the role consume."""
    PROCESS = "process"
    """A process of both roles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """Patterns of names on one virtual host, anchored at both ends."""

    configure: str = NOTHING
    write: str = NOTHING
    read: str = NOTHING


def permissions(topology: Topology) -> dict[BrokerUser, Permission]:
    """The least that each user of an App needs, name by name; other Apps' exchanges and queues are in none.

    Source: RabbitMQ's access control guide. Publishing takes write on the exchange, consuming read on the queue,
    binding write on the queue and read on the exchange; declaring takes configure, and for a queue with a dead letter
    exchange read on the queue and write on that exchange. The default exchange (``amq.default``), which leads into any
    queue, is never granted. Configure on an exchange is also the right to delete it: an exchange of another producer
    must stand before (`foreign`).

    Every process has what tells its database from a copy: marks and a name, whose ids are drawn by the databases, so
    that the pattern takes in those of other Apps. Who spoils theirs can silence them, never make them send.
    """
    own = [exchange.name for exchange in topology.exchanges if exchange.owned]
    queues = [queue.name for queue in topology.queues if queue.owned]
    standing = [queue.name for queue in topology.queues if not queue.owned]
    last = [DEAD_LETTER_EXCHANGE] if queues else []
    sources = [binding.exchange for binding in topology.bindings]
    marks = _pattern([], also=_MARKS)
    writes, reads = _pattern(own), _pattern([*queues, *standing], also=_MARKS)
    return {
        BrokerUser.DEPLOYER: Permission(
            configure=_pattern([*own, *queues, *last]),
            write=_pattern([*queues, *last]),
            read=_pattern([*queues, *sources, *standing]),
        ),
        BrokerUser.DISPATCHER: Permission(configure=marks, write=writes, read=marks),
        BrokerUser.CONSUMER: Permission(configure=marks, read=reads),
        BrokerUser.PROCESS: Permission(configure=marks, write=writes, read=reads),
    }


def foreign(topology: Topology) -> list[str]:
    """The exchanges of other producers, which their own deploys declare."""
    return [one.name for one in topology.exchanges if not one.owned and one.name != DEAD_LETTER_EXCHANGE]


def _pattern(names: Iterable[str], *, also: str = "") -> str:
    """Our names have only dots that need a backslash (`Topology`); those of another's queue may have anything."""
    known = [*(_SPECIAL.sub(r"\\\g<0>", name) for name in dict.fromkeys(names)), *filter(None, [also])]
    if not known:
        return NOTHING
    return f"^{known[0]}$" if len(known) == 1 else f"^({'|'.join(known)})$"
