"""Erasing a person's data: the events of one key, and what was made of them, wherever this database keeps bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroad.audit import Act, record
from postroad.effects import operate as effects
from postroad.errors import UsageError
from postroad.outbox import erase as log
from postroad.outbox import replay
from postroad.reconcile import store as drift
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
    `effects` lose their command, and `in_doubt` keep it until there is an outcome. `jobs` name the key: they are
    cancelled, and their requests erased, where that was asked for. Rows of `drift` under the key are deleted,
    and `replays` that are not done forget it.
    `subject` is the audit's name for the key: a hash.
    """

    log: int
    work: int
    quarantine: int
    unsent: int
    running: int
    effects: int
    in_doubt: int
    jobs: int
    drift: int
    replays: int
    subject: str


async def redact(
    settings: Settings, key: str, *, reason: str, by: str, producer: str | None = None, jobs: bool = False,
    dry_run: bool = False,
) -> Redacted:  # fmt: skip
    """Put a tombstone of the same id in place of every event of `key`, as `by`; of one `producer`, or of all.

    The commands of effects that are the key's or name it go, too, but those that a look-up still needs; with `jobs` so
    do the requests of jobs that name it, which are cancelled. Both only where no `producer` is named: they have none.

    One transaction, with its entry in the audit. Safe to repeat: what is a tombstone has no key any more. It reads the
    whole log. Other databases that the events went to, brokers' queues and what handlers wrote are not reached.

    Raises:
        AccessRefused: the role may not, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away.
        UsageError: PR107, the key or the reason is empty, or not valid, or `jobs` goes with a producer.
    """
    if jobs and producer is not None:
        raise UsageError("PR107", "--jobs: a job has no producer; leave --producer out, or --jobs")
    check_reason(reason)
    if not key or "\0" in key or not key.isprintable():
        raise UsageError("PR107", "--key is the key of events, as they were published with it: one printable line")
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        pipeline = _redacted(
            settings.schema, key, producer, by=by, reason=reason, jobs=jobs, dry_run=dry_run
        )  # fmt: skip
        async with connection.transaction():
            return await drive(pipeline, AsyncpgHand(connection))


def _redacted(
    schema: str, key: str, producer: str | None, *, by: str, reason: str, jobs: bool, dry_run: bool
) -> Pipeline[Redacted]:  # fmt: skip
    events, unsent = yield from log.erase(schema, key, producer=producer, dry_run=dry_run)
    rows, running, kept = yield from work.erase(schema, key, producer=producer, by=by, dry_run=dry_run)
    commands = in_doubt = named = busy = drifted = replays = 0
    if producer is None:
        commands, in_doubt = yield from effects.erase(schema, key, dry_run=dry_run)
        drifted = yield from drift.erase(schema, key, dry_run=dry_run)
        replays = yield from replay.erase(schema, key, dry_run=dry_run)
        named, busy = yield from work.erase_jobs(schema, key, by=by, reason=reason, dry_run=dry_run or not jobs)
    subject = f"key sha256:{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    done = Redacted(
        events, rows, kept, unsent, running + busy, commands, in_doubt, named, drifted, replays, subject
    )  # fmt: skip
    if not dry_run:
        after = {
            "log": events, "work": rows, "quarantine": kept, "effects": commands, "jobs": named if jobs else 0,
            "drift": drifted, "replays": replays, "unsent": unsent, "producer": producer,
        }  # fmt: skip
        items = events + rows + kept + commands + drifted + replays + (named if jobs else 0)
        act = Act(by=by, act="event.redact", subject=subject, items=items, reason=reason, after=after)
        yield from record(schema, act)
    return done
