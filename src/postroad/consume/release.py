"""The release of a delivery from quarantine: it becomes a retry of its consumer, which owns the inbox mark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from postroad.consume import inbox
from postroad.errors import UsageError
from postroad.work import release as work

if TYPE_CHECKING:
    from postroad.sql import Pipeline
    from postroad.work.release import Quarantined


def released(schema: str, row: Quarantined, *, by: str) -> Pipeline[int]:
    """Turn `row` (a delivery or dead letter, locked) into a ready row of `work` and resolve it, or neither; the new id.

    The mark stays *quarantined* until the retry turns it into something else, so that redeliveries meanwhile are
    duplicates. What was handled in the meantime ends as a duplicate: nothing takes effect twice.

    Raises:
        UsageError: PR112, nothing vouches for its identity, or a row of `work` is open for it.
    """
    if row.key is None and not row.legacy:
        message = f"row {row.id} of quarantine has no message key ({row.code}): nothing vouches for its identity"
        raise UsageError("PR112", f"{message}; the sender must publish it anew")
    work_id = yield from work.back_to_work(schema, row.id, by=by)
    if not work_id:
        message = f"row {row.id} of quarantine: a retry of the same message is open in {row.queue!r} already"
        raise UsageError("PR112", message)
    if row.key is not None:
        yield from inbox.ensure(schema, [(row.queue, UUID(row.key), row.code)])
    return work_id


def all_released(schema: str, ids: Sequence[int], *, by: str) -> Pipeline[list[work.Made]]:
    """The same for each of `ids`, deliveries and jobs, in order of id; those that became rows of `work`.

    What cannot be released stays as it is: nothing vouches for it, or a row of `work` is open for its key.
    """
    made = yield from work.all_to_work(schema, ids, by=by)
    yield from inbox.ensure(
        schema, [(row.queue, UUID(row.key), row.code) for row in made if row.kind != "job" and row.key is not None]
    )
    return made
