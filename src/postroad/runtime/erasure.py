"""Erasing a person's data: the events of one key, in every table of this database that keeps bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroad.audit import Act, record
from postroad.errors import UsageError
from postroad.outbox import erase as log
from postroad.runtime.operations import connected
from postroad.runtime.quarantine_acts import check_reason
from postroad.sql import drive, migrations
from postroad.sql.asyncpg import AsyncpgHand
from postroad.work import erase as work

if TYPE_CHECKING:
    from postroad.runtime.settings import Settings
    from postroad.sql import Pipeline


@dataclass(frozen=True, slots=True)
class Redacted:
    """How many events are (or would be) tombstones: in the log, in work, in quarantine.

    `unsent` of the log's wait in the outbox, and `running` of work's are in a worker's memory at this moment.
    `subject` is what the audit names the key by: a hash of it.
    """

    log: int
    work: int
    quarantine: int
    unsent: int
    running: int
    subject: str


async def redact(
    settings: Settings, key: str, *, reason: str, by: str, producer: str | None = None, dry_run: bool = False
) -> Redacted:
    """Put a tombstone of the same id in place of every event of `key`, as `by`; of one `producer`, or of all.

    One transaction, with its entry in the audit. Safe to repeat: what is a tombstone has no key any more. It reads the
    whole log. Other databases that the events went to, brokers' queues and the effects of handlers are not reached.

    Raises:
        AccessRefused: the role may not, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away.
        UsageError: PR107, the key or the reason is empty, or not valid.
    """
    check_reason(reason)
    if not key or "\0" in key or not key.isprintable():
        raise UsageError("PR107", "--key is the key of events, as they were published with it: one printable line")
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        pipeline = _redacted(settings.schema, key, producer, by=by, reason=reason, dry_run=dry_run)
        async with connection.transaction():
            return await drive(pipeline, AsyncpgHand(connection))


def _redacted(
    schema: str, key: str, producer: str | None, *, by: str, reason: str, dry_run: bool
) -> Pipeline[Redacted]:  # fmt: skip
    events, unsent = yield from log.erase(schema, key, producer=producer, dry_run=dry_run)
    rows, running, kept = yield from work.erase(schema, key, producer=producer, by=by, dry_run=dry_run)
    subject = f"key sha256:{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if not dry_run:
        after = {"log": events, "work": rows, "quarantine": kept, "unsent": unsent, "producer": producer}
        act = Act(
            by=by, act="event.redact", subject=subject, items=events + rows + kept, reason=reason, after=after
        )  # fmt: skip
        yield from record(schema, act)
    return Redacted(events, rows, kept, unsent, running, subject)
