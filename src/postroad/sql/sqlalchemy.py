"""How pipelines run on SQLAlchemy's connections: on the driver's own connection below them, in the same transaction."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.util import await_only
from typing_extensions import override

from postroad.errors import UsageError
from postroad.sql.drive import AsyncHand, Rows, SyncHand

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect

    from postroad.sql.statement import Statement

ASYNCPG: Final = "asyncpg"
PSYCOPG: Final = "psycopg"
ASYNC_PSYCOPG: Final = "psycopg_async"


class AwaitingHand(SyncHand):
    """Runs statements on an asynchronous driver's connection for code inside SQLAlchemy's greenlet."""

    __slots__ = ("_hand",)

    def __init__(self, hand: AsyncHand) -> None:
        """Work with `hand`."""
        self._hand = hand

    @override
    def fetch(self, statement: Statement) -> Rows:
        """See `SyncHand.fetch`."""
        fetching: Awaitable[Rows] = self._hand.fetch(statement)
        return await_only(fetching)


def driver_of(dialect: Dialect) -> str:
    """The driver below: one of the three that pipelines run on.

    Raises:
        UsageError: PR107, it is another.
    """
    driver = dialect.driver if dialect.name == "postgresql" else dialect.name
    if driver in {PSYCOPG, ASYNC_PSYCOPG}:
        return ASYNC_PSYCOPG if dialect.is_async else PSYCOPG
    if driver != ASYNCPG:
        message = f"postroad.sqlalchemy works on PostgreSQL by psycopg or asyncpg, not by {driver!r}"
        raise UsageError("PR107", f"{message}; make the engine of postgresql+psycopg:// or postgresql+asyncpg://")
    return driver


def async_hand(driver: str, raw: Any) -> AsyncHand:
    """The hand for an asynchronous driver's own connection."""
    if driver == ASYNCPG:
        from postroad.sql.asyncpg import AsyncpgHand

        return AsyncpgHand(raw)
    from postroad.sql.psycopg import AsyncPsycopgHand

    return AsyncPsycopgHand(raw)


def sync_hand(driver: str, raw: Any) -> SyncHand:
    """The hand for any driver's own connection, in blocking code or in the greenlet."""
    if driver == PSYCOPG:
        from postroad.sql.psycopg import PsycopgHand

        return PsycopgHand(raw)
    return AwaitingHand(async_hand(driver, raw))


def in_autocommit(connection: Connection) -> bool:
    """Whether each statement on `connection` would stand alone."""
    pooled = connection.connection
    driver = driver_of(connection.dialect)
    return bool(getattr(pooled.dbapi_connection, "autocommit", False)) and not _open(driver, pooled.driver_connection)


def hand_within(connection: Connection) -> SyncHand:
    """The hand for the transaction that is open on `connection`, or that its first statement opens.

    asyncpg's is begun by SQLAlchemy, before the first statement that it sends itself: where there was none, one is
    sent, which costs a round trip.
    """
    driver = driver_of(connection.dialect)
    if not connection.in_transaction():
        connection.begin()  # As any statement would; else nobody would commit.
    raw: Any = connection.connection.driver_connection
    if driver == ASYNCPG and not _open(driver, raw):
        connection.exec_driver_sql("SELECT 1")
    return sync_hand(driver, raw)


def _open(driver: str, raw: Any) -> bool:
    """Whether the server has a transaction open, as far as the last answer told."""
    if driver == ASYNCPG:
        return bool(raw.is_in_transaction())
    from psycopg.pq import TransactionStatus

    return raw.info.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}
