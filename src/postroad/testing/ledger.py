"""What a test reads of the road: what was published, what waits, what lies in quarantine, typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from typing_extensions import override

from postroad.errors import UsageError
from postroad.events import as_subscription
from postroad.events.envelope import CONTENT_TYPE, Envelope, decode
from postroad.events.event_type import event_type_of
from postroad.outbox.publish import default_schema
from postroad.sql import Pipeline, Statement, drive_sync, queries
from postroad.sql.drive import Rows, SyncHand
from postroad.work.job import Job, job_of
from postroad.work.wire import Wire, headers_from_json

if TYPE_CHECKING:
    from postroad.consume.consumer import Consumer

E = TypeVar("E")
A = TypeVar("A")

QUERIES: Final = queries("postroad.testing", "ledger.sql")
_PARAMETER: Final = re.compile(r"\$\d+")
_COMMENT: Final = re.compile(r"^--.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Published(Generic[E]):
    """An event in the log, read as its class, with the envelope that travels."""

    event: E
    envelope: Envelope

    @property
    def key(self) -> str | None:
        """The key that keeps events of one thing in order."""
        return self.envelope.key


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob(Generic[A]):
    """A job that waits, with its request; `state` is scheduled, ready or running, `key` what makes it unique."""

    request: A
    run_at: datetime
    state: str
    queue: str
    key: str | None
    priority: int
    attempt: int
    """How many attempts have failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined(Generic[E]):
    """What lies open in quarantine. `payload` is the event or request, None where it cannot be read as such."""

    payload: E | None = field(repr=False)
    reason_class: str
    code: str
    error_type: str
    reason: str
    attempt: int


# --- the pipelines ------------------------------------------------------------------------------------------------


def published(schema: str, kind: type[E]) -> Pipeline[list[Published[E]]]:
    """The committed events of one class, in the order in which they were staged."""
    declared = event_type_of(kind)
    reader = as_subscription(kind)
    rows = yield QUERIES.statement("published", schema, declared.type, declared.version)
    found = []
    for row in rows:
        envelope = decode(bytes(row["envelope"]), content_type=CONTENT_TYPE, headers={})
        found.append(Published(reader.decode(envelope.data), envelope))
    return found


def enqueued(schema: str, job: Job[A]) -> Pipeline[list[OpenJob[A]]]:
    """The open rows of a job."""
    rows = yield QUERIES.statement("enqueued", schema, job.name)
    return [
        OpenJob(
            request=job.adapter.validate_json(bytes(row["body"])), run_at=row["run_at"], state=row["state"],
            queue=row["queue"], key=row["key"], priority=row["priority"], attempt=row["attempt"],
        )
        for row in rows
    ]  # fmt: skip


def quarantined(schema: str, owner: Consumer[Any] | Job[Any]) -> Pipeline[list[Quarantined[Any]]]:
    """What lies open in quarantine of a consumer or job."""
    queue, name = (owner.queue, owner.name) if isinstance(owner, Job) else (owner.name, "")
    rows = yield QUERIES.statement("quarantined", schema, queue, name)
    return [
        Quarantined(
            payload=_payload(owner, row), reason_class=row["class"], code=row["code"], error_type=row["error_type"],
            reason=row["reason"], attempt=row["attempt"],
        )
        for row in rows
    ]  # fmt: skip


def advance(schema: str, by: timedelta) -> Pipeline[None]:
    """Bring whatever waits nearer by that much."""
    for name in ("advance_work", "advance_outbox", "advance_quarantine"):
        yield QUERIES.statement(name, schema, by)


def _payload(owner: Any, row: Mapping[str, Any]) -> Any:
    wire = Wire(
        body=bytes(row["body"]), content_type=row["content_type"], headers=headers_from_json(row["headers"]),
        event_type=row["event_type"],
    )  # fmt: skip
    try:
        if hasattr(owner, "adapter"):
            return owner.adapter.validate_json(wire.body)
        envelope = decode(wire.body, content_type=wire.content_type, headers=wire.headers)
        return owner.types[envelope.type].decode(envelope.data, version=envelope.version)
    except Exception:  # noqa: BLE001 - why it cannot be read is what its reason says
        return None


# --- on a connection of the author's ------------------------------------------------------------------------------


def published_on(connection: Any, kind: type[E], *, schema: str | None = None) -> list[Published[E]]:
    """The events of one class that `connection` sees: its own open transaction's too.

    For tests that never commit, such as Django's `TestCase`. `connection` is any blocking one of the DB-API
    (PEP 249): psycopg's, or ``django.db.connection``. It needs SELECT on the log.

    Raises:
        UsageError: PR109, `kind` is not declared by a producer; PR107, `connection` has no cursor.
    """
    return drive_sync(published(schema or default_schema(), kind), _CursorHand(connection))


def enqueued_on(connection: Any, job: Callable[[A, Any], Any], *, schema: str | None = None) -> list[OpenJob[A]]:
    """The open rows of a job that `connection` sees: its own open transaction's too; see `published_on`.

    Raises:
        UsageError: PR101, `job` is not declared; PR107, `connection` has no cursor.
    """
    return drive_sync(enqueued(schema or default_schema(), job_of(job)), _CursorHand(connection))


class _CursorHand(SyncHand):
    """Runs statements through a cursor of the DB-API, whose parameters are ``%s``."""

    def __init__(self, connection: Any) -> None:
        if not callable(getattr(connection, "cursor", None)):
            kind = type(connection).__name__
            raise UsageError("PR107", f"{kind} has no cursor(); give a blocking connection, as psycopg's or Django's")
        self._connection = connection

    @override
    def fetch(self, statement: Statement) -> Rows:
        """See `SyncHand.fetch`. Every parameter stands once, in order."""
        with self._connection.cursor() as cursor:
            cursor.execute(_PARAMETER.sub("%s", _COMMENT.sub("", statement.text)), statement.args)
            names = [column[0] for column in cursor.description]
            return [row if isinstance(row, dict) else dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
