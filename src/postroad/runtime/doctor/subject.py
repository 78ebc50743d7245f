"""What the doctor is asked about, and where its patience ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from postroad.clock import hours, minutes, seconds
from postroad.effects.ledger import CONNECTIONS as LEDGER
from postroad.runtime.doctor.checks import SETTINGS
from postroad.runtime.settings import Role, Settings
from postroad.runtime.wires_work import threaded

if TYPE_CHECKING:
    from postroad.consume.consumer import Consumer
    from postroad.runtime.declarations import Declarations
    from postroad.runtime.doctor.findings import Finding
    from postroad.transport.topology import Topology

_HEARTBEAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From where on a finding is a warning."""

    days_ahead: int = 7
    vacuum_age: timedelta = minutes(15)
    vacuum_transactions: int = 1_000_000
    """For transactions of other roles, whose age in time only pg_read_all_stats shows."""
    dead_rows: int = 100_000
    writer_age: timedelta = seconds(30)
    waiting_age: timedelta = minutes(5)
    orphan_age: timedelta = minutes(1)
    """For ready rows of a queue that the App does not declare, and for what a schedule should have started."""
    look_up_age: timedelta = minutes(15)
    """For effects that the App does not declare; those that it does say it themselves."""
    key_left: timedelta = hours(1)


@dataclass(frozen=True, slots=True)
class Subject:
    """An App to be looked at: its declarations, and how many pooled connections a process of given settings opens."""

    declarations: Declarations
    pooled: Callable[[Settings], int]

    @property
    def topology(self) -> Topology:
        """What must stand on the broker."""
        return self.declarations.topology()

    @property
    def consumers(self) -> tuple[Consumer[Any], ...]:
        """The App's consumers."""
        return self.declarations.consumers

    @property
    def queues(self) -> frozenset[str]:
        """The queues of work that a process of this App runs: its jobs', and the retries of its consumers."""
        return frozenset(self.declarations.queues) | {consumer.name for consumer in self.consumers}

    def without_broker(self, settings: Settings) -> bool:
        """Whether no broker is set, and none is needed."""
        return not settings.broker_url and not self.declarations.events

    def bill(self, settings: Settings) -> Mapping[str, int]:
        """Connections to the database of one process: for each role alone, and for all that `settings` name."""
        alone = {str(role): frozenset({role}) for role in Role if role in settings.roles}
        cases = {**alone, "together": settings.roles}
        return {
            name: self._threads(roles)
            + (settings.pool_size or self.pooled(replace(settings, roles=roles)))
            + (LEDGER if self.declarations.effects and Role.WORK in roles else 0)
            + _HEARTBEAT
            for name, roles in cases.items()
        }

    def _threads(self, roles: frozenset[Role]) -> int:
        """The connections of ``def`` handlers and jobs: one for each thread, beside the pool."""
        jobs = threaded(self.declarations.queues) if Role.WORK in roles else 0
        if not roles & {Role.CONSUME, Role.WORK}:
            return jobs
        return jobs + sum(consumer.concurrency for consumer in self.consumers if consumer.threaded)


def examine_settings(settings: Settings) -> list[Finding]:
    """Look at the environment: variables that look like settings and are none."""
    if not settings.strangers:
        return [SETTINGS.ok("every variable is known")]
    return [SETTINGS.warning(f"{name} is not a setting") for name in settings.strangers]
