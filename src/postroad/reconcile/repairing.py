"""Repairs what has drifted, a bounded number of keys a run; a batch and its row of the audit are one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from postroad.audit import Act, record
from postroad.errors import UsageError
from postroad.failures import Rules, classify
from postroad.reconcile import store
from postroad.reconcile.merge import Kind
from postroad.reconcile.reconciliation import Drift
from postroad.reconcile.resend import Resend
from postroad.signals.catalog import DriftRepaired
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand

if TYPE_CHECKING:
    from postroad.reconcile.ground import Ground
    from postroad.reconcile.reconciliation import Reconciliation
    from postroad.reconcile.store import Taken, Total
    from postroad.sql.asyncpg import Connection

BATCH: Final = 50
_LONGEST_FAILURE: Final = 300
_RULES: Final = Rules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """Which open drift is meant: of a kind, of a key, or all; at most `limit` of it, up to the row `last`."""

    kind: str | None = None
    key: str | None = None
    limit: int
    last: int


@dataclass(frozen=True, slots=True)
class Repaired:
    """How far a repair has come: keys about which something was done, whose repair failed, and that were left.

    `left` are extra ones where events are sent again: none can take them away. `refused` are all, where a job met more
    than the limit. Whether it helped, the next comparison says.
    """

    done: int = 0
    failed: int = 0
    left: int = 0
    refused: int = 0
    stopped: bool = False


async def preview(ground: Ground, name: str, *, kind: str | None = None, key: str | None = None) -> Sequence[Total]:
    """What a repair would touch, by kind. Changes nothing."""
    return await ground.manager.run(store.preview(ground.schema, name, kind=kind, key=key))


def check_repair(what: Reconciliation) -> None:
    """Refuse one that declares no repair.

    Raises:
        UsageError: PR107, it does not.
    """
    if what.repair is None:
        raise UsageError("PR107", f"reconciliation {what.name!r} declares no repair; give it repair=...")


async def mend(ground: Ground, what: Reconciliation) -> Repaired:
    """Repair all that has drifted, or nothing where that is more than the limit."""
    found = await preview(ground, what.name)
    count = sum(each.count for each in found)
    if count > what.limit:
        ground.signals.emit(DriftRepaired(what.name, 0, 0, count))
        return Repaired(refused=count)
    last = max((each.last for each in found), default=0)
    return await repair(ground, what, Picked(limit=what.limit, last=last), reason=None)


async def repair(
    ground: Ground, what: Reconciliation, picked: Picked, *, reason: str | None, stop: asyncio.Event | None = None,
    told: Callable[[Repaired], None] = lambda _: None,
) -> Repaired:  # fmt: skip
    """Repair what is `picked`, in the order in which it was found, until `stop` is set.

    Killed or stopped, it has repaired whole batches, and the same call goes on with the rest; what somebody else
    repairs at the moment is passed over. A key whose repair raises stays open, and the others go on.

    Raises:
        UsageError: PR107, it declares no repair.
        Unavailable: the database is away.
    """
    check_repair(what)
    stop, after, sum_, seen = stop or asyncio.Event(), 0, Repaired(), 0
    act = _Act(ground, what, picked, reason)
    while seen < picked.limit:
        if stop.is_set():
            sum_ = replace(sum_, stopped=True)
            break
        taken, batch = await act.batch(after, min(BATCH, picked.limit - seen))
        if not taken:
            break
        after, seen = taken[-1].id, seen + len(taken)
        sum_ = Repaired(sum_.done + batch.done, sum_.failed + batch.failed, sum_.left + batch.left)
        told(sum_)
    ground.signals.emit(DriftRepaired(what.name, sum_.done, sum_.failed, sum_.left))
    return sum_


@dataclass(frozen=True, slots=True)
class _Act:
    """A repair at work."""

    ground: Ground
    what: Reconciliation
    picked: Picked
    reason: str | None

    async def batch(self, after: int, limit: int) -> tuple[Sequence[Taken], Repaired]:
        """Take a batch and repair it, in one transaction."""
        ground, picked, repair = self.ground, self.picked, self.what.repair
        taking = store.take(
            ground.schema, self.what.name, kind=picked.kind, key=picked.key, after=after, last=picked.last, limit=limit
        )
        later: Callable[[], Any] | None = None
        async with ground.manager.transaction() as tx:
            hand = AsyncpgHand(tx)
            taken = await drive(taking, hand)
            if not taken:
                return taken, Repaired()
            done, failed, one_by_one = [], 0, [*taken]
            if isinstance(repair, Resend):
                one_by_one = [one for one in taken if one.kind is Kind.EXTRA] if repair.extra else []
                again = [one for one in taken if one.kind is not Kind.EXTRA]
                later = await repair.prepare(ground, tx, [one.key for one in again])
                done = [one.id for one in again]
            for one in one_by_one:
                good = await self._one(tx, one)
                done += [one.id] if good else []
                failed += not good
            result = Repaired(len(done), failed, len(taken) - len(done) - failed)
            await drive(store.repaired(ground.schema, done), hand)
            await drive(record(ground.schema, self._entry(taken, result)), hand)
        if later is not None:
            await later()
        return taken, result

    async def _one(self, tx: Connection, one: Taken) -> bool:
        """Run the author's function for one, in a savepoint of its own; whether it went well."""
        repair = self.what.repair
        function = repair.extra if isinstance(repair, Resend) else repair
        assert function is not None
        drift = Drift(
            reconciliation=self.what.name, key=one.key, kind=one.kind, expected=one.expected, found=one.found,
            since=one.since, tx=tx, ground=self.ground,
        )  # fmt: skip
        try:
            async with tx.transaction():
                await function(drift)
        except Exception as error:
            if tx.is_closed():
                raise
            verdict = classify(error, rules=_RULES, attempt=1)
            told = f"{verdict.error_type}: {verdict.reason}"[:_LONGEST_FAILURE]
            await drive(store.failed(self.ground.schema, one.id, told), AsyncpgHand(tx))
            return False
        return True

    def _entry(self, taken: Sequence[Taken], result: Repaired) -> Act:
        after = {"first": taken[0].id, "last": taken[-1].id, "failed": result.failed, "left": result.left}
        return Act(
            by=self.ground.by, act="drift.repair", subject=self.what.name, items=result.done, reason=self.reason,
            before={kind: sum(one.kind == kind for one in taken) for kind in Kind}, after=after,
        )  # fmt: skip
