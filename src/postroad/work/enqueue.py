"""Enqueueing: a job and its request become a row of `work`, in the author's transaction."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from postroad.errors import UsageError
from postroad.events.cause import current_cause
from postroad.sql.authoring import parts, told
from postroad.sql.statement import Pipeline, queries
from postroad.work.job import LETTERS, QUEUE, Job, job_of

if TYPE_CHECKING:
    from collections.abc import Mapping

A = TypeVar("A")

QUERIES: Final = queries("postroad.work", "enqueue.sql")

MOST_KEY: Final = 255
"""The longest unique key, in bytes of UTF-8, that a row holds as it is given."""
_LONG: Final = "sha256:"
_KEEPABLE: Final = re.compile("[^\x00\ud800-\udfff]*")
_PRIORITIES: Final = range(-(2**15), 2**15)
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Enqueue(Generic[A]):
    """A job, its request and its options, for `enqueue_many`; the options are those of `enqueue`."""

    job: Callable[[A, Any], Any]
    request: A
    run_at: datetime | None = None
    priority: int = 0
    queue: str | None = None
    unique: str | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of an enqueue: the number of its row, and whether there is one.

    `new` is False where a job with the same unique key is open already: nothing was written, and `id` is None. Who
    enqueues may not read rows, so that the other's number cannot be told.
    """

    id: int | None
    new: bool


class NewJob(NamedTuple):
    """One row to write: its columns, in the order of the statement's parameters."""

    queue: str
    key: str | None
    name: str
    body: bytes
    headers: str
    run_at: datetime | None
    priority: int


def prepare(
    job: Callable[[A, Any], Any],
    request: A,
    *,
    run_at: datetime | None = None,
    priority: int = 0,
    queue: str | None = None,
    unique: str | None = None,
) -> NewJob:
    """The row of one enqueue; everything about it is checked here, before anything is sent.

    Raises:
        UsageError: PR101, `job` is not declared; PR107, the request does not fit it or an option is not valid; PR106,
            the request is over its limit. No text shows a value of the request, or a unique key.
    """
    declared = job_of(job)
    if type(priority) is not int or priority not in _PRIORITIES:
        raise _refused(declared.name, "priority is not a whole number from -32,768 to 32,767 (lower runs first)")
    given: object = queue  # Untyped code may hand in anything.
    if given is not None and not (isinstance(given, str) and QUEUE.fullmatch(given)):
        raise _refused(declared.name, f"queue is not {LETTERS}")
    if unique is not None and not isinstance(unique, str):
        raise _refused(declared.name, "unique is not text")
    if unique == "":
        raise _refused(declared.name, "unique is empty; give a key, or leave it out")
    return NewJob(
        queue or declared.queue,
        None if unique is None else unique_key(unique),
        declared.name,
        encode(declared, request),
        json.dumps(_headers()),
        None if run_at is None else _utc(declared.name, run_at),
        priority,
    )


def prepare_many(given: Sequence[Enqueue[Any]]) -> list[NewJob]:
    """`prepare` for each in order.

    Raises:
        UsageError: one of them is not valid.
    """
    rows = []
    for one in given:
        found: object = one  # Untyped code may hand in anything.
        if not isinstance(found, Enqueue):
            message = f"enqueue_many takes Enqueue(job, request, ...) values, not {type(found).__name__}"
            raise UsageError("PR107", message)
        row = prepare(
            one.job, one.request, run_at=one.run_at, priority=one.priority, queue=one.queue, unique=one.unique
        )
        rows.append(row)
    return rows


def enqueue(schema: str, rows: Sequence[NewJob]) -> Pipeline[list[Enqueued]]:
    """Write `rows` to `work` in their order: one statement, whether one row or many; what became of each.

    Only beyond 2,000 rows or 8 MiB is it several. Nothing is read, and nothing but INSERT and the sequence's USAGE is
    needed. Without unique keys it waits for nobody. A row whose key another open transaction has just written waits
    until that one has ended, and is new if it rolled back.

    Raises:
        AccessRefused: PR303, the connection's role may not enqueue.
        SchemaError: PR202, Postroad's tables are not in this database.
    """
    done: list[Enqueued] = []
    try:
        for part in parts(rows, _size):
            columns = map(list, zip(*part, strict=True))
            found = yield replace(QUERIES.statement("enqueue", schema, *columns), answered=True)
            done += [Enqueued(row["id"] if row["new"] else None, row["new"]) for row in found]
    except Exception as error:
        refusal = told(schema, error, act="enqueue")
        if refusal is None:
            raise
        raise refusal from error
    return done


def unique_key(given: str) -> str:
    """The key that a row holds: as given where it is short and PostgreSQL can hold it, else its SHA-256.

    Different keys stay different, whatever they are made of: what looks like such a sum is summed up itself.
    """
    encoded = given.encode("utf-8", "surrogatepass")
    if len(encoded) <= MOST_KEY and _KEEPABLE.fullmatch(given) and not given.startswith(_LONG):
        return encoded.decode()
    return _LONG + sha256(encoded).hexdigest()


def encode(job: Job[A], request: A) -> bytes:
    """The request as JSON, written as its type is declared, and read once as the worker will read it.

    Pydantic writes an instance of another class too, by the fields that it shares: what is read tells.

    Raises:
        UsageError: PR107, it does not fit the declared type; PR106, it is longer than `max_bytes`. No value is shown.
    """
    try:
        body = job.adapter.dump_json(request, by_alias=True, warnings="error")
        fits = len(body) > job.max_bytes or _is_like(request, job.adapter.validate_json(body))
    except Exception as error:  # noqa: BLE001 - the author's own serializers and validators run here
        _check_class(job, request)
        # Without its cause: the foreign text quotes the request.
        problem = f"the request, of type {_type_of(request)}, does not fit: {misfit(job, error)}"
        raise _refused(job.name, problem) from None
    if not fits:
        _check_class(job, request)
        raise _refused(job.name, f"the request, of type {_type_of(request)}, would be read as another type")
    if len(body) > job.max_bytes:
        message = f"a request of job {job.name} has {len(body)} bytes, its limit is {job.max_bytes}"
        raise UsageError("PR106", f"{message}; enqueue a reference, or raise max_bytes")
    return body


def _check_class(job: Job[Any], request: object) -> None:
    """Say so where the request is of another class than the job takes: all else follows from that."""
    takes = getattr(job.adapter, "_type", None)  # pydantic has no public name for it
    if isinstance(takes, type) and not isinstance(request, takes):
        raise UsageError("PR107", f"enqueue: {job.name} takes {takes.__qualname__}, not {_type_of(request)}") from None


def misfit(job: Job[Any], error: Exception) -> str:
    """What is wrong with a request: declared fields and kinds of problems, never a value."""
    if not isinstance(error, ValidationError):
        return type(error).__name__
    known = set(_fields(job))
    details = error.errors(include_url=False, include_context=False, include_input=False)
    named = [
        f"{next((part for part in item['loc'][:1] if part in known), 'a value')}: {item['type']}"
        for item in details[:_MOST_NAMED]
    ]
    more = f" and {len(details) - _MOST_NAMED} more" if len(details) > _MOST_NAMED else ""
    return f"{', '.join(named)}{more}"


def _fields(job: Job[Any]) -> Iterator[str]:
    try:
        schema: Mapping[str, Any] = job.adapter.json_schema(by_alias=True)
    except Exception:  # noqa: BLE001 - a type that has no JSON Schema has no names to tell
        return
    place = schema.get("$ref", "").rpartition("/")[2]
    yield from schema.get("$defs", {}).get(place, schema).get("properties", ())


def _headers() -> dict[str, str]:
    """What it was caused by, inside a handler, a job or a web request."""
    cause = current_cause()
    if cause is None:
        return {}
    causation = {} if cause.causation is None else {"causation": cause.causation}
    return {"correlation": cause.correlation, **causation}


def _utc(name: str, moment: object) -> datetime:
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise _refused(name, "run_at is not a time with a zone; give an aware datetime")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise _refused(name, "run_at lies outside of the years 1 to 9999 in UTC") from None


def _refused(name: str, problem: str) -> UsageError:
    return UsageError("PR107", f"enqueue of {name}: {problem}")


def _is_like(request: object, read: object) -> bool:
    return isinstance(request, type(read)) or not (isinstance(read, BaseModel) or is_dataclass(read))


def _type_of(request: object) -> str:
    return f"{request.__qualname__} (the class itself)" if isinstance(request, type) else type(request).__qualname__


def _size(row: NewJob) -> int:
    return len(row.body)
