"""An App with a reconciliation of two tables, for the commands."""

from __future__ import annotations

import os

from postroad.clock import seconds
from postroad.reconcile import Drift, Reconciliation, pages
from postroad.runtime.app import App

SAYS = "SELECT key, amount::text FROM {} WHERE key > $1 ORDER BY key LIMIT $2"


async def put_right(drift: Drift) -> None:
    if os.environ.get("LEDGERS_FAIL") == drift.key:
        raise ValueError("hush")
    await drift.tx.execute("DELETE FROM applied WHERE key = $1", drift.key)
    await drift.tx.execute("INSERT INTO applied SELECT * FROM booked WHERE key = $1", drift.key)


ledgers = Reconciliation(
    "ledgers.applied", authority=pages(SAYS.format("booked")), projection=pages(SAYS.format("applied")),
    repair=put_right, settle=seconds(0.1),
)  # fmt: skip
broken = Reconciliation(
    "ledgers.broken", authority=pages("SELECT * FROM nowhere WHERE $1 > $2"), projection=pages(SAYS.format("applied"))
)  # fmt: skip
app = App("ledgers", reconciliations=[ledgers])
app_broken = App("ledgers.broken", reconciliations=[broken])
