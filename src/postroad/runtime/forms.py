"""Whether ``on=`` gives handlers transactions in the App's own database, where their inbox and work are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import seconds
from postroad.errors import PostroadError, Unavailable, UsageError
from postroad.runtime.executor import Tasks
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.statement import Statement

if TYPE_CHECKING:
    from datetime import timedelta

    from postroad.consume.consumer import Consumer
    from postroad.runtime.process import Ground
    from postroad.sql import Pipeline
    from postroad.sql.drive import Form, Transactions
    from postroad.work.job import Job

_LET_GO: Final = seconds(2)
_LARGEST: Final = 2**63 - 1
_LOCK: Final = "SELECT pg_advisory_xact_lock($1)"
_TRY: Final = "SELECT pg_try_advisory_xact_lock($1) AS free"


async def check_forms(ground: Ground, handled: Iterable[Consumer[Any] | Job[Any]], *, within: timedelta) -> None:
    """Open a transaction of each ``on=`` of these once, and refuse one that is not in the App's database.

    A lock that ours has taken is free for nobody else in the same database of the same running server, whatever the
    address, the role and the pooler; in a copy, a replica or any other it is.

    Raises:
        Unavailable: PR301, one of them cannot be opened `within` that time.
        UsageError: PR101, one leads to another database.
    """
    forms: dict[int, tuple[str, Form[Any]]] = {}
    for one in handled:
        if one.on is not None:
            forms.setdefault(id(one.on), (one.name, one.on))
    tasks = Tasks(ground.signals)  # Their threads and connections are for the check alone.
    try:
        for name, form in forms.values():
            transactions = form.transactions(ground.settings.database_url, tasks, size=1, name=name)
            await _check(name, transactions, ground, within=within)
    finally:
        await tasks.cancel(within=_LET_GO)
        await tasks.join(within=_LET_GO)


async def _check(name: str, transactions: Transactions[Any], ground: Ground, *, within: timedelta) -> None:
    assert ground.database is not None
    key, begin = ground.holder.int & _LARGEST, ground.database.manager.transaction
    try:
        async with asyncio.timeout(within.total_seconds()), transactions.begin() as theirs, begin() as ours:
            await AsyncpgHand(ours).fetch(Statement(_LOCK, (key,)))
            free = await theirs.drive(_is_free(key))
    except PostroadError:
        raise
    except Exception as error:
        message = f"on= of {name!r} gives no transaction ({type(error).__name__}); see that it can connect"
        raise Unavailable("PR301", message) from error
    if free:
        message = f"on= of {name!r} leads to another database than POSTROAD_DATABASE_URL, where its inbox and work are"
        raise UsageError("PR101", f"{message}; connect both to the same")


def _is_free(key: int) -> Pipeline[bool]:
    rows = yield Statement(_TRY, (key,))
    return bool(rows[0]["free"])
