"""The faults that the demo deals out, each once its victim holds work that is not settled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from postroad.demo.fleet import Fleet, Member, Role
from postroad.testing.servers import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.testing.servers import RabbitNode

ARMED_AFTER: Final = 5


class Fault(StrEnum):
    """What is done to the road; the names are those of the report."""

    CONSUMER_KILLS = "consumer_kills"
    DISPATCHER_KILLS = "dispatcher_kills"
    CRASHES_BEFORE_ACK = "crashes_between_commit_and_ack"
    CRASHES_BEFORE_DELETE = "crashes_between_confirm_and_delete"
    BROKER_RESTARTS = "broker_restarts"
    DATABASE_RESTARTS = "database_restarts"
    SCHEDULER_KILLS = "scheduler_kills"
    """Beside the plan: whoever has just planned the daily reports."""


PLAN: Final = (
    Fault.CONSUMER_KILLS, Fault.DISPATCHER_KILLS, Fault.CRASHES_BEFORE_ACK, Fault.CONSUMER_KILLS,
    Fault.CRASHES_BEFORE_DELETE, Fault.BROKER_RESTARTS, Fault.DISPATCHER_KILLS, Fault.CONSUMER_KILLS,
    Fault.DISPATCHER_KILLS,
)  # fmt: skip
WITHOUT_BROKER: Final = tuple(Fault.DATABASE_RESTARTS if fault is Fault.BROKER_RESTARTS else fault for fault in PLAN)
_KILLS = {Fault.CONSUMER_KILLS: Role.CONSUMER, Fault.DISPATCHER_KILLS: Role.DISPATCHER}
_ARMED = {
    Fault.CRASHES_BEFORE_ACK: (Role.CONSUMER, "committed"),
    Fault.CRASHES_BEFORE_DELETE: (Role.DISPATCHER, "confirmed"),
}


@dataclass(frozen=True, slots=True)
class Gate:
    """A fault, and after how many lines it is due: the author waits there until it was dealt."""

    fault: Fault
    at: int


def gates(lines: int, plan: Sequence[Fault] = PLAN) -> list[Gate]:
    """The plan, spread evenly over a file of so many lines."""
    share = lines / (len(plan) + 1)
    return [Gate(fault, int(share * number)) for number, fault in enumerate(plan, start=1)]


class Chaos:
    """Deals the faults of a plan one after the other."""

    def __init__(self, fleet: Fleet, carrier: RabbitNode | PostgresServer, lines: int) -> None:
        """Prepare the plan for a file of `lines` lines; `carrier` is what the events travel over, to be restarted."""
        self._fleet = fleet
        self._carrier = carrier
        plan = WITHOUT_BROKER if isinstance(carrier, PostgresServer) else PLAN
        self._gates = gates(lines, plan)
        self._armed: Member | None = None
        self.dealt: Counter[Fault] = Counter(dict.fromkeys((*plan, Fault.SCHEDULER_KILLS), 0))

    @property
    def next_gate(self) -> Gate | None:
        """The fault that is due next; None once all were dealt."""
        return self._gates[0] if self._gates else None

    def give_up(self) -> None:
        """Deal no more faults: the file ended before all of them could be."""
        self._gates.clear()

    def step(self, staged: int) -> bool:
        """Deal the next fault if it is due and its victim holds work; whether one was dealt."""
        gate = self.next_gate
        if gate is None or staged < self._opens(gate) or not self._deal(gate.fault):
            return False
        self.dealt[gate.fault] += 1
        self._gates.pop(0)
        return True

    def kill_scheduler(self) -> bool:
        """Kill whoever has planned occurrences, once; whether that is done."""
        if not self.dealt[Fault.SCHEDULER_KILLS]:
            self.dealt[Fault.SCHEDULER_KILLS] += self._fleet.kill_scheduler()
        return self.dealt[Fault.SCHEDULER_KILLS] > 0

    def _opens(self, gate: Gate) -> int:
        """Watching begins well before the gate, while the author still stages."""
        return gate.at * 2 // 3 if gate.fault in _KILLS else gate.at // 2

    def _deal(self, fault: Fault) -> bool:
        if fault in {Fault.BROKER_RESTARTS, Fault.DATABASE_RESTARTS}:
            return self._restart()
        if fault in _KILLS:
            return any(self._fleet.kill_while_holding(member) for member in self._fleet.members(_KILLS[fault]))
        return self._crash(*_ARMED[fault])

    def _restart(self) -> bool:
        before = self._carrier.pid
        self._carrier.restart()
        return self._carrier.pid != before

    def _crash(self, role: Role, point: str) -> bool:
        """Arm one process at its first call; dealt once the operating system reports its death by its own hand."""
        if self._armed is None:
            self._armed = self._fleet.replace(self._fleet.members(role)[0], crash=f"{point}:{ARMED_AFTER}")
        if self._armed.process.poll() is None:
            return False
        crashed = self._fleet.gauges()[self._armed.process.pid].crashes == 1
        self._armed = None
        return crashed
