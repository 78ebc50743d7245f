"""A queue of another owner is looked at for what we need of it, and not judged by what we would have declared."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from postroad.clock import minutes
from postroad.consume import Delivery, consumer, consumer_of
from postroad.events import Subscription
from postroad.runtime.declarations import topology_of
from postroad.runtime.doctor.managed import judge
from postroad.transport.amqp.management import Rights, Seen, SeenQueue
from postroad.transport.topology import Binding


class Booking(BaseModel):
    seat: str


@consumer(
    Subscription("bookings.booking.made", version=1, model=Booking), name="board.bookings", queue="HOST.OUT",
    bind=False, max_runtime=minutes(20), prefetch=8, concurrency=8,
)  # fmt: skip
async def note(event: Booking, delivery: Delivery[Any]) -> None: ...


def look(**changed: Any) -> dict[str, list[tuple[str, str]]]:
    queue = SeenQueue("HOST.OUT", durable=False, arguments={"x-max-length": 1, **changed}, policy={"message-ttl": 5})
    seen = Seen(
        version="4.0.5", queues={"HOST.OUT": queue}, exchanges={}, between=frozenset(), consumed=frozenset(),
        bindings=frozenset({Binding("OLD", "HOST.OUT", "#")}), rights=Rights("^$", "^$", "^$", ()),
    )  # fmt: skip
    found: dict[str, list[tuple[str, str]]] = {}
    for one in judge(topology_of([], [consumer_of(note)]), seen, consumers=[consumer_of(note)]):
        found.setdefault(one.name, []).append((str(one.severity), one.found))
    return found


def test_its_arguments_bindings_and_policies_are_its_owners_business() -> None:
    found = look()
    for name in ("queue.arguments", "queue.delivery-limit", "queue.policy", "topology.foreign", "topology.bindings"):
        assert [severity for severity, _ in found[name]] == ["ok"], name


def test_the_right_to_read_it_and_its_time_out_are_ours() -> None:
    found = look(**{"x-consumer-timeout": 60_000})
    assert ("error", "lacking read on 'HOST.OUT'") in found["broker.rights"]
    assert [severity for severity, _ in found["queue.consumer-timeout"]] == ["error"]
