"""Advisory locks by a name: their keys, what a name may be, and the lock of a transaction."""

from __future__ import annotations

import hashlib
import unicodedata
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Final, Protocol

from postroad.clock import seconds
from postroad.errors import LeaseHeld, UsageError
from postroad.sql.statement import Pipeline, Statement

LONGEST_NAME: Final = 200
LONGEST_WAIT: Final = timedelta(days=1)
LONGEST_WAIT_INSIDE: Final = seconds(30)
"""A transaction that waits keeps vacuum from its rows."""

_CONTROL: Final = frozenset({"Cc", "Cs"})
_TRY_INSIDE: Final = "SELECT pg_try_advisory_xact_lock($1) AS had"
_LOCK_INSIDE: Final = "SELECT pg_advisory_xact_lock($1)"
_TIMEOUT: Final = "SELECT current_setting('lock_timeout') AS was, set_config('lock_timeout', $1, true)"
_TOO_LONG: Final = "55P03"


class SessionLocks(Protocol):
    """Where a `Manager` gets locks of sessions from."""

    def hold(self, name: str, *, wait: timedelta | None = None) -> AbstractAsyncContextManager[None]:
        """Hold the lock `name` for the block."""
        ...


def checked_name(what: str, name: str) -> str:
    """Return `name` if a person could have meant it as the name of a `what`.

    Raises:
        UsageError: PR107, it is no text, empty, longer than 200 characters, with blanks around it or control
            characters in it.
    """
    given: object = name
    if not isinstance(given, str):
        shown = type(given).__name__
    elif 0 < len(name) <= LONGEST_NAME and name == name.strip() and not _controls(name):
        return name
    else:
        shown = f"{name[:40]!a}"
    message = f"{shown} is not the name of a {what}: give 1 to {LONGEST_NAME} characters, no blanks around, no controls"
    raise UsageError("PR107", message)


def _controls(name: str) -> bool:
    return any(unicodedata.category(letter) in _CONTROL for letter in name)


def checked_duration(what: str, value: timedelta, *, least: timedelta, most: timedelta) -> timedelta:
    """Return `value` if it is a duration from `least` to `most`.

    Raises:
        UsageError: PR107, it is not.
    """
    given: object = value
    if isinstance(given, timedelta) and least <= given <= most:
        return given
    message = f"{what}={value!r} is not a duration from {least} to {most}; write it as seconds(60)"
    raise UsageError("PR107", message)


def checked_wait(wait: timedelta | None, *, most: timedelta = LONGEST_WAIT) -> float:
    """The seconds of `wait`; None is none at all.

    Raises:
        UsageError: PR107, it is no duration, negative, or longer than `most`: nobody waits for ever.
    """
    if wait is None:
        return 0.0
    return checked_duration("wait", wait, least=timedelta(0), most=most).total_seconds()


def key_of(schema: str, name: str) -> int:
    """The 64 bits that stand for `name` among the advisory locks of a database; another schema's are others."""
    digest = hashlib.sha256(f"postroad.lock\0{schema}\0{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def locked(schema: str, name: str, *, wait: timedelta | None = None) -> Pipeline[None]:
    """Lock `name` until the transaction ends that this runs in; works behind a transaction pooler, too.

    The server queues those who wait, in order. After a wait in vain the transaction is over, as after any error of a
    statement; without `wait` it may go on. Names are one's with those of session locks.

    Raises:
        LeaseHeld: PR402, another transaction or session has it.
        UsageError: PR107, the name or `wait` (30 s at most) is not valid.
    """
    key = key_of(schema, checked_name("lock", name))
    patience = checked_wait(wait, most=LONGEST_WAIT_INSIDE)
    if not patience:
        rows = yield Statement(_TRY_INSIDE, (key,))
        if not rows[0]["had"]:
            raise held(name, patience)
        return
    rows = yield Statement(_TIMEOUT, (f"{max(1, round(patience * 1000))}ms",))
    try:
        yield Statement(_LOCK_INSIDE, (key,))
    except Exception as error:
        if getattr(error, "sqlstate", None) == _TOO_LONG:  # Whatever the driver.
            raise held(name, patience) from error
        raise
    yield Statement(_TIMEOUT, (rows[0]["was"],))


def held(name: str, patience: float) -> LeaseHeld:
    """The error of whoever waited `patience` seconds for the lock `name` in vain."""
    waited = f" (waited {patience:g} s)" if patience else ""
    return LeaseHeld("PR402", f"the lock {name!r} is held by another session{waited}; try later, or give a longer wait")
