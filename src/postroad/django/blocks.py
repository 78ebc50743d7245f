"""Handlers' transactions as ``atomic`` blocks of Django's, each on a thread with its own connection of Django's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.db import DatabaseError, close_old_connections, connections, reset_queries, transaction

from postroad.clock import SYSTEM_CLOCK
from postroad.django.alias import connection_of
from postroad.django.door import DEFAULT, Within
from postroad.errors import Unavailable
from postroad.sql.drive import SyncHand, ended_by_handler
from postroad.sql.guard import check
from postroad.sql.threads import ThreadTransactions, Wire

if TYPE_CHECKING:
    import psycopg

    from postroad.owner import Owner

_NEST: Final = "with transaction.atomic():"


class Atomic:
    """``on=Atomic()``: ``def`` handlers and jobs run in ``transaction.atomic()`` on Django's own connections.

    What they write by the ORM commits with the inbox row; ``delivery.tx`` is the block as a `Within`. Nested
    ``atomic()`` blocks are savepoints; to end or close the outer one is refused, in raw SQL too (PR111), and so is to
    commit it after an error that was caught without a block around it. What ``on_commit`` was given runs after the
    commit; what it raises is logged by Django, and the delivery is handled all the same.

    Before and after each block Django's rules for old connections hold (``CONN_MAX_AGE``, ``CONN_HEALTH_CHECKS``), for
    all databases of the thread. With the default age of 0 every delivery connects anew: set one. At the time limit, or
    when a lease is lost, the connection is cut from outside, so that nothing of the block can be committed.

    The database must be the App's own, and hold Postroad's tables: a process does not start with any other (PR101).
    """

    threaded: ClassVar[bool] = True

    def __init__(self, *, using: str = DEFAULT) -> None:
        """Of the database `using`, an alias of ``DATABASES``."""
        self._using = using

    def transactions(self, url: str, owner: Owner, *, size: int, name: str) -> ThreadTransactions[Within]:  # noqa: ARG002
        """See `Form.transactions`.

        Raises:
            UsageError: PR107, there is no such database, or it is not PostgreSQL; PR108, its driver is psycopg2.
        """
        connection_of(self._using)
        return ThreadTransactions(owner, partial(_BlockSeat, self._using), size=size, name=name)


class _BlockSeat:
    """Implements `Seat`: Django's connection of this thread, from the begin of a block to its end."""

    usable = False
    """Each block begins by `open`."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._connection: Any = None
        self._block: Any = None
        self._raw: psycopg.Connection[Any] | None = None
        self._wire: Wire | None = None
        self._watched: object = None
        self._cut = False

    @property
    def lost(self) -> bool:
        return self._cut or (self._raw is not None and self._raw.closed)

    @property
    def intact(self) -> bool:
        from psycopg.pq import TransactionStatus

        raw = self._raw
        return raw is not None and not self.lost and raw.info.transaction_status is not TransactionStatus.IDLE

    @property
    def hand(self) -> SyncHand:
        from postroad.sql.psycopg import PsycopgHand

        assert self._raw is not None
        return PsycopgHand(self._raw)

    @contextmanager
    def lent(self) -> Iterator[Within]:
        with self._connection.execute_wrapper(_look):
            yield Within(self._using, SYSTEM_CLOCK)

    def open(self) -> None:
        if self._block is not None:
            self._drop()  # A block that was lost: nobody ended it.
        self._cut = False
        reset_queries()
        close_old_connections()
        block = transaction.atomic(using=self._using)
        try:
            block.__enter__()
        except Exception as error:
            kind = type(error.__cause__ or error).__name__
            message = (
                f"no connection to the database {self._using!r} of DATABASES ({kind}); see that Django can connect"
            )
            raise Unavailable("PR301", message) from error
        self._block, self._connection = block, connections[self._using]
        raw = self._raw = self._connection.connection
        self._wire = Wire(raw.fileno())
        self._watch(raw)

    def _watch(self, raw: Any) -> None:
        """Have the server end what it still runs for us, should we be cut."""
        from postroad.sql.threaded import WATCH

        if raw is not self._watched:
            raw.pgconn.exec_(WATCH)
            self._watched = raw

    def commit(self) -> None:
        from postroad.sql.psycopg import refuse_failed

        connection, raw = self._connection, self._raw
        assert raw is not None
        try:
            if connection.closed_in_transaction or connection.savepoint_ids or not self.intact:
                raise ended_by_handler()  # noqa: TRY301 - what ends here is undone below
            connection.validate_no_broken_transaction()
            refuse_failed(raw.info.transaction_status)
            raw.commit()  # By the driver: should it fail, Django would connect anew.
        except BaseException:
            self._drop()
            raise
        connection.run_on_commit = [(blocks, act, True) for blocks, act, _ in connection.run_on_commit]
        self._leave(None)

    def rollback(self) -> None:
        if self._block is None or self._raw is None:
            return
        try:
            self._raw.rollback()
        except Exception:  # noqa: BLE001 - a connection that cannot is closed, which rolls back as well
            self._drop()
        else:
            self._leave(RuntimeError("rolled back"))

    def cut(self) -> None:
        self._cut = True
        if self._wire is not None:
            self._wire.cut()

    def close(self) -> None:
        if self._block is not None:
            self._drop()
        connections.close_all()

    def _leave(self, error: Exception | None) -> None:
        """Tell Django, which finds the transaction ended, and sends nothing; then close what has become too old."""
        block, wire = self._block, self._wire
        self._block = self._wire = self._raw = None
        if wire is not None:
            wire.close()
        block.__exit__(None if error is None else type(error), error, None)
        close_old_connections()

    def _drop(self) -> None:
        """Close the connection, and have Django forget it, in whatever state it takes it to be."""
        connection, raw, wire = self._connection, self._raw, self._wire
        self._block = self._wire = self._raw = self._connection = None
        if wire is not None:
            wire.close()
        if raw is not None:
            raw.close()
        with suppress(DatabaseError):
            connection.close()  # Where there is a pool, it is told.
        with suppress(AttributeError):
            del connections[self._using]


def _look(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001, PLR0917 - Django's
    from postroad.sql.handed import text_of

    check(text_of(sql), nest=_NEST)
    return execute(sql, params, many, context)
