"""The session that a handler is handed: a transaction of ours is open below it, and stays ours to end."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from postroad.errors import UsageError
from postroad.sql.guard import check

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_KEY: Final = "postroad"
_NEST: Final = "begin_nested()"
FINAL: Final[dict[str, Any]] = {"close_resets_only": False, "autobegin": True, "twophase": False}
"""A session is its handler's alone: used after it, it raises."""

_KINDS: Final[dict[type[Any], type[Any]]] = {}


class Watch:
    """What became of a connection's transaction in the hands of handlers."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.savepoint = False
        self.rolled_back = False
        self.closing = False


class Handing:
    """An engine's twin for handlers: same pool and options, but a transaction is ours to begin and to end.

    SQLAlchemy takes the connections for ones in autocommit. What it still sends at the end of a transaction, that of
    a session above all, is not sent: a commit is refused, and a rollback is noted.
    """

    def __init__(self, engine: Engine) -> None:
        """Of `engine`."""
        self.engine = engine
        self.ready = False

    def prepare(self) -> None:
        """Make the twin; call it once the engine has connected, which tells its dialect about the server."""
        if self.ready:
            return
        twin: Any = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        twin.dialect = dialect = copy.copy(self.engine.dialect)
        dialect.do_commit = _refuse_commit  # type: ignore[assignment]
        dialect.do_rollback = _note_rollback  # type: ignore[assignment]
        event.listen(twin, "before_cursor_execute", _look)
        self.engine, self.ready = twin, True


def _refuse_commit(_: Any) -> None:
    _refuse("a commit")


def _note_rollback(pooled: Any) -> None:
    watch = pooled.info.get(_KEY)
    if watch is not None and not watch.closing:
        watch.rolled_back = True


def _look(connection: Connection, _cursor: Any, text: str, *_: Any) -> None:
    if check(text, nest=_NEST):
        connection.info[_KEY].savepoint = True


def watched(connection: Connection) -> Watch:
    """Begin to watch `connection`, for one transaction."""
    watch = connection.info[_KEY] = Watch()
    return watch


def finish(session: Session, *, watch: Watch) -> None:
    """Send what the handler left pending; refuse what would not be written as it thinks."""
    if session.in_nested_transaction():
        _refuse("begin_nested() without its end")
    session.flush()
    if watch.rolled_back:
        _refuse("a rollback, or the caught error of a flush,")


def drop(session: Session, *, connection: Connection, watch: Watch) -> None:
    """End the session. It sends nothing but, after an error, the rollback to a savepoint that was left open."""
    watch.closing = True
    try:
        with suppress(SQLAlchemyError):
            Session.close(session)
        with suppress(SQLAlchemyError):
            connection.rollback()  # What a refused commit leaves of SQLAlchemy's transaction.
    finally:
        watch.closing = False


def guarded(kind: type[Any]) -> type[Any]:
    """The author's class of sessions, without the ends of a transaction."""
    if kind not in _KINDS:
        _KINDS[kind] = type(kind.__name__, (_Guarded, kind), {"__module__": kind.__module__})
    return _KINDS[kind]


class _Guarded:
    """Before a session's own methods."""

    def begin(self, nested: bool = False) -> Any:  # noqa: FBT001, FBT002 - SQLAlchemy's
        """Refused, but for savepoints."""
        if not nested:
            _refuse("begin()")
        return super().begin(nested=nested)  # type: ignore[misc]

    def commit(self) -> NoReturn:
        """Refused."""
        _refuse("commit()")

    def rollback(self) -> NoReturn:
        """Refused."""
        _refuse("rollback()")

    def prepare(self) -> NoReturn:
        """Refused."""
        _refuse("prepare()")

    def close(self) -> NoReturn:
        """Refused."""
        _refuse("close()")

    def reset(self) -> NoReturn:
        """Refused."""
        _refuse("reset()")

    def invalidate(self) -> NoReturn:
        """Refused."""
        _refuse("invalidate()")


def _refuse(what: str) -> NoReturn:
    remedy = "it commits with the inbox when the handler returns; raise an error to roll back, or nest begin_nested()"
    raise UsageError("PR111", f"{what} is refused on the session of a delivery: {remedy}")
