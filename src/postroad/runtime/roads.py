"""The transport of a process: which one its settings name, and what has to stand on it before it carries anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.consume.leftovers import Leftovers, LeftoversWatch
from postroad.errors import TopologyError
from postroad.runtime.operations import tls_of
from postroad.runtime.settings import Role, TopologyMode, Vouch, is_postgres
from postroad.transport.amqp import AmqpSettings, AmqpTransport
from postroad.transport.postgres import PostgresTransport
from postroad.transport.topology import replay_exchange

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from postroad.consume import Attempts
    from postroad.owner import Service
    from postroad.runtime.declarations import Declarations
    from postroad.runtime.process import Database, Ground, Process
    from postroad.runtime.settings import Settings
    from postroad.sql.manager import Manager
    from postroad.work.claimer import Claimer
    from postroad.work.lane import Handler

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
            standing = {queue.name for queue in topology.queues if not queue.owned}
            remedy = "its owner declares it" if standing >= {one.name for one in lacking} else remedy
            owner = "the broker" if isinstance(road, AmqpTransport) else "the database"
            raise TopologyError("PR205", f"{owner} lacks {names}; {remedy}")
    if dispatches and isinstance(road, AmqpTransport):
        for producer in declared.producers:
            await road.prove_user(replay_exchange(producer.name))


def delivery_handlers(ground: Ground, attempts: Sequence[Attempts], manager: Manager) -> Mapping[str, Handler]:
    """What a claimer runs of deliveries, by queue: those that its consumers take, where `work` carries events.

    Where a broker does by now, what is left there, too.
    """
    road, roles = ground.transport, ground.settings.roles
    if isinstance(road, PostgresTransport) and Role.CONSUME in roles:
        for one in attempts:
            road.intake(one.consumer.name, prefetch=one.consumer.prefetch)
        return road.handlers()
    if Role.WORK not in roles or is_postgres(ground.settings.broker_url):
        return {}
    left = [Leftovers(one, manager=manager, signals=ground.signals, clock=ground.clock) for one in attempts]
    return {one.queue: one for one in left}


def attached(ground: Ground, claimer: Claimer, queues: Collection[str], manager: Manager) -> list[Service]:
    """Let the transport have its `claimer`, which runs the deliveries in `queues`; a service that goes with that."""
    if isinstance(ground.transport, PostgresTransport):
        ground.transport.attach(claimer)
        return []
    return [LeftoversWatch(claimer, queues, manager=manager)] if queues else []
