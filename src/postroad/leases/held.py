"""What a holder has in hand: its fencing token, and the writes that this token protects."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from postroad.errors import LeaseLost, UsageError
from postroad.failures import Rules, classify
from postroad.leases import store
from postroad.signals.catalog import LateWriteRefused
from postroad.sql import Pipeline, drive, drive_sync
from postroad.sql.asyncpg import AsyncpgHand

if TYPE_CHECKING:
    import psycopg

    from postroad.leases.lease import Lease
    from postroad.signals import Signals
    from postroad.sql import Statement
    from postroad.sql.asyncpg import Connection
    from postroad.sql.manager import Manager

_NO_RULES: Final = Rules()


class HeldLease:
    """A name that is ours for the block. Safe to read from any thread; made by `Leases`."""

    def __init__(self, lease: Lease, name: str, *, schema: str, signals: Signals) -> None:
        """Speak of `lease`, which its holder calls `name`."""
        self.name = name
        self.open = 0
        """How many of its transactions are open."""
        self._lease = lease
        self._schema = schema
        self._signals = signals

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, token={self.token}, held={self.held})"

    @property
    def token(self) -> int:
        """The fencing token: it grows with each taking of the name. Send it to systems that can compare."""
        return self._lease.token

    @property
    def held(self) -> bool:
        """Whether no other process can hold the name now; once False it stays so."""
        return self._lease.held

    def check(self) -> None:
        """Do nothing while the lease is held; call it before every effect outside the database.

        Raises:
            LeaseLost: PR401, it is not; stop at once.
        """
        if not self.held:
            raise self.lost()

    def lost(self) -> LeaseLost:
        """The error that says that it is."""
        return LeaseLost("PR401", f"the lease {self.name!r} (token {self.token}) is no longer held; stop this work")

    def fence(self) -> Pipeline[None]:
        """Put the transaction that runs this under the lease: until it ends nobody else can take the name.

        For other rooms' transactions. Run it before the first write, and keep the transaction shorter than half the
        ttl: while it is open the lease is not renewed, and one that is not renewed is lost.

        Raises:
            LeaseLost: PR401, another has the name, or it is not trusted here; nothing may be written. It is counted.
        """
        yield from self._passing(store.fence_statement(self._schema, [self._lease]))

    def settled(self) -> Pipeline[None]:
        """Give the name up together with the transaction that runs this; it is fenced by that.

        Raises:
            LeaseLost: PR401, another has the name; nothing may be committed. It is counted.
        """
        yield from self._passing(store.release(self._schema, [self._lease]), trusted=True)

    def _passing(self, statement: Statement, *, trusted: bool = False) -> Pipeline[None]:
        rows = (yield statement) if trusted or self.held else ()
        if not rows:
            self._signals.emit(LateWriteRefused("leases", 1))
            raise self.lost()


class AsyncLease(HeldLease):
    """What `Leases.hold` yields."""

    def __init__(self, lease: Lease, name: str, *, manager: Manager, signals: Signals) -> None:
        """Lend connections of `manager`."""
        super().__init__(lease, name, schema=manager.schema, signals=signals)
        self._manager = manager

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Lend a connection inside a transaction that is fenced by this lease; leaving commits, an error rolls back.

        What it writes is written while the name is ours, or not at all, however long the process was stopped before.
        Keep it shorter than half the ttl: see `fence`. If the process stands still in it, the server ends it when it
        has idled for the ttl. Inside, transaction control is refused; ``transaction()`` nests.

        Raises:
            LeaseLost: PR401, the lease was lost before, or the server ended the transaction since; nothing was
                written. It is counted (`LateWriteRefused`).
            Unavailable: the database is away.
            UsageError: PR107, another event loop runs here than the one that the App runs on.
        """
        if asyncio.get_running_loop() is not self._manager.loop:
            message = f"the lease {self.name!r} is used on another event loop; open its transaction on the App's own"
            raise UsageError("PR107", message)
        self.open += 1
        try:
            async with self._manager.transaction() as connection:
                await drive(self.fence(), AsyncpgHand(connection))
                yield connection
        except Exception as error:
            if self.held or not classify(error, rules=_NO_RULES, attempt=1).connection_lost:
                raise
            self._signals.emit(LateWriteRefused("leases", 1))
            raise self.lost() from error
        finally:
            self.open -= 1


class SyncLease(HeldLease):
    """What `Leases.hold_sync` yields: for code on threads, which cannot be cancelled."""

    def __init__(self, lease: Lease, name: str, *, schema: str, signals: Signals) -> None:
        """Nothing is to be cut yet."""
        super().__init__(lease, name, schema=schema, signals=signals)
        self._lock = threading.Lock()
        self._wires: list[socket.socket] = []

    @contextmanager
    def transaction(self, connection: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
        """Begin a transaction on the author's psycopg `connection` that is fenced by this lease.

        Inside another transaction it is a savepoint. When the lease is lost, the connection is cut from outside at
        once: what waits on it gets the driver's error, and nothing more of it is committed.

        Raises:
            LeaseLost: PR401, the lease was lost before; nothing was written. It is counted (`LateWriteRefused`).
        """
        from postroad.sql.psycopg import PsycopgHand  # An extra.

        wire = socket.socket(fileno=os.dup(connection.fileno()))  # A duplicate: surely the right one, and ours.
        try:
            with self._lock:
                self._wires.append(wire)
                self.open += 1
            with connection.transaction():
                drive_sync(self.fence(), PsycopgHand(connection))
                yield connection
        finally:
            with self._lock:
                self._wires.remove(wire)
                self.open -= 1
            wire.close()

    def cut(self) -> None:
        """Cut every connection that is inside `transaction`, from any thread."""
        with self._lock:
            for wire in self._wires:
                with suppress(OSError):
                    wire.shutdown(socket.SHUT_RDWR)
