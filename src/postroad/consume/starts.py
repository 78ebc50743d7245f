"""Starts of redelivered messages that nothing has answered: the table `starts`, by which a killer is found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from postroad.consume.inbox import QUERIES, Claim
from postroad.failures import FailureClass, Verdict

if TYPE_CHECKING:
    from uuid import UUID

    from postroad.sql.drive import Transactions
    from postroad.sql.statement import Pipeline

SHARED: Final = 2
"""With so many unanswered starts a message runs alone in its process."""

MOST: Final = 4
"""With so many it is not started any more."""

KEPT_FOR: Final = timedelta(days=7)
"""Older ones are of messages that were purged or went another way; one that still comes is counted anew."""

CODE: Final = "PR511"
_BATCH: Final = 5000


@dataclass(frozen=True, slots=True)
class Begun:
    """What came of noting a start: whether it was `noted`.

    `claim` says whether an outcome stands, or another process has the message open. `unanswered` counts the starts by
    processes other than this one, which lives.
    """

    claim: Claim
    noted: bool
    unanswered: int


def begin(schema: str, consumer: str, key: UUID, process: UUID, *, most: int) -> Pipeline[Begun]:
    """Note that `process` starts message `key`, unless `most` starts stand unanswered; commit it before the handler.

    One statement, which waits for nobody. What is open in another process is busy, and nothing is noted: its start is
    about to be answered. Where an outcome stands, it answers what stands here.
    """
    (row,) = yield QUERIES.statement("start", schema, consumer, key, process, most)
    unanswered, noted = int(row["unanswered"]), bool(row["noted"])
    if row["standing"] is not None:
        yield from answered(schema, consumer, key)
        return Begun(Claim.DUPLICATE, noted=False, unanswered=unanswered)
    if not row["had"] or (not noted and unanswered < most):  # The latter: another was noted at this moment.
        return Begun(Claim.BUSY, noted=False, unanswered=unanswered)
    return Begun(Claim.FRESH, noted, unanswered)


def answered(schema: str, consumer: str, key: UUID) -> Pipeline[None]:
    """Remove every start of message `key`; run it in the transaction of its outcome."""
    yield QUERIES.statement("answered", schema, consumer, key)


def expire(schema: str, *, now: datetime) -> Pipeline[int]:
    """Delete a batch of starts older than `KEPT_FOR`; how many."""
    rows = yield QUERIES.statement("expire_starts", schema, now - KEPT_FOR, _BATCH)
    return len(rows)


def crashed(unanswered: int) -> Verdict:
    """Why a message is not started any more."""
    reason = f"it was started {unanswered} times, and each time its process died before it had an outcome"
    return Verdict(
        failure=FailureClass.QUARANTINE, code=CODE, reason=reason, error_type="crash", fingerprint="crash"
    )  # fmt: skip


class Starts:
    """The starts that one consumer's process has noted.

    What ends without an outcome (given back, interrupted, the database away) did not kill the process: its start is
    taken back, at once or, where that cannot be done then, by the next `take_back`. Only a dead process leaves one.
    """

    def __init__(self, transactions: Transactions[Any], *, schema: str, consumer: str, process: UUID) -> None:
        """Nothing was started."""
        self._transactions = transactions
        self._schema = schema
        self._consumer = consumer
        self._process = process
        self._owed: set[UUID] = set()

    async def begin(self, key: UUID, *, most: int) -> Begun:
        """See the function, in a transaction of its own. Where nobody knows whether it committed, it is taken back."""
        try:
            async with self._transactions.begin() as unit:
                begun = await unit.drive(begin(self._schema, self._consumer, key, self._process, most=most))
        except BaseException:
            self.void(key)
            raise
        self._owed.discard(key)
        return begun

    def void(self, key: UUID) -> None:
        """What this process has noted of `key` is to be taken back; asks nobody."""
        self._owed.add(key)

    async def take_back(self) -> None:
        """Remove what is to be taken back; what cannot be now stays owed. Repeating is harmless."""
        owed = sorted(self._owed)
        if not owed:
            return
        async with self._transactions.begin() as unit:
            await unit.drive(self._removed(owed))
        self._owed.difference_update(owed)

    def _removed(self, keys: list[UUID]) -> Pipeline[None]:
        yield QUERIES.statement("take_back", self._schema, self._consumer, keys, self._process)
