"""What the doctor's tests look at: an App, findings by name, and sessions that are held open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeAlias

import asyncpg

from postroad.runtime.doctor import Finding, Limits, Subject
from postroad.runtime.wires import Wires
from runtime.processes import import_app

AT_ONCE = Limits(
    vacuum_age=timedelta(0), vacuum_transactions=10**9, writer_age=timedelta(0), waiting_age=timedelta(0)
)  # fmt: skip
orders = import_app("orders")
app, book = orders.app, orders.book
SUBJECT = Subject(app.declarations, Wires(app.declarations, {}).connections)
Examine: TypeAlias = Callable[..., dict[str, list[Finding]]]


def by_name(findings: list[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for one in findings:
        found.setdefault(one.name, []).append(one)
    return found


def severity(findings: list[Finding]) -> str:
    """The severity of the one finding of a check."""
    (finding,) = findings
    return finding.severity


class Held:
    """A session that keeps what its statements opened until the end."""

    def __init__(self, url: str, *statements: str, **settings: str) -> None:
        self._loop = asyncio.new_event_loop()
        connect = asyncpg.connect(url, server_settings={"application_name": "forgotten", **settings})
        self._connection = self._loop.run_until_complete(connect)
        for statement in statements:
            self._loop.run_until_complete(self._connection.execute(statement))

    def close(self) -> None:
        self._loop.run_until_complete(self._connection.close())
        self._loop.close()


@contextmanager
def holding(url: str, *statements: str, **settings: str) -> Iterator[None]:
    held = Held(url, *statements, **settings)
    try:
        yield
    finally:
        held.close()
