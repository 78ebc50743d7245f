"""The transport of a process: which one its settings name, and what has to stand on it before it carries anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.errors import TopologyError
from postroad.runtime.operations import tls_of
from postroad.runtime.settings import TopologyMode, Vouch, is_postgres
from postroad.transport.amqp import AmqpSettings, AmqpTransport
from postroad.transport.postgres import PostgresTransport
from postroad.transport.topology import replay_exchange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from postroad.consume.consumer import Consumer
    from postroad.runtime.declarations import Declarations
    from postroad.runtime.process import Database, Process
    from postroad.runtime.settings import Settings
    from postroad.transport.postgres.intake import PostgresIntake

AnyTransport = AmqpTransport | PostgresTransport


def road_of(process: Process, database: Database | None, *, name: str) -> AnyTransport:
    """The transport that POSTROAD_BROKER_URL names, for the App `name`."""
    settings = process.settings
    if is_postgres(settings.broker_url):
        assert database is not None  # whoever needs a road has a role, and with it a database
        return PostgresTransport(
            database.manager, owner=process.tasks, signals=process.signals, chance=process.chance
        )  # fmt: skip
    return AmqpTransport(
        settings.broker_url, owner=process.tasks, signals=process.signals, clock=process.clock,
        chance=process.chance,
        settings=AmqpSettings(name=name, tls=tls_of(settings), vouch=settings.vouch is Vouch.ON),
    )  # fmt: skip


async def prepare(road: AnyTransport, settings: Settings, declared: Declarations, *, dispatches: bool) -> None:
    """Verify or apply the topology, and prove what publishes claim.

    Raises:
        SettingsError: the broker does not vouch for the user that publishes are to name.
        TopologyError: the transport lacks something, or has it otherwise.
    """
    topology = declared.topology()
    if settings.topology is TopologyMode.APPLY:
        await road.apply(topology)
    else:
        lacking = await road.verify(topology)
        if lacking:
            names = ", ".join(f"{one.kind} {one.name!r}" for one in lacking)
            remedy = "run `postroad topology apply MODULE:APP` in the deploy, or set POSTROAD_TOPOLOGY=apply"
            owner = "the broker" if isinstance(road, AmqpTransport) else "the database"
            raise TopologyError("PR205", f"{owner} lacks {names}; {remedy}")
    if dispatches and isinstance(road, AmqpTransport):
        for producer in declared.producers:
            await road.prove_user(replay_exchange(producer.name))


def delivery_handlers(road: object, consumers: Iterable[Consumer[Any]]) -> Mapping[str, PostgresIntake]:
    """What a claimer runs for `road` besides: the deliveries of `consumers`, where they are rows of work."""
    if not isinstance(road, PostgresTransport):
        return {}
    for consumer in consumers:
        road.intake(consumer.name, prefetch=consumer.prefetch)
    return road.handlers()
