"""Named SQL, the pipelines that yield it, and the hands that run it."""

from postroad.sql.drive import AsyncHand, Rows, Transactions, Unit, drive
from postroad.sql.statement import Call, Pipeline, Queries, Statement, Step, queries, render

__all__ = [
    "AsyncHand",
    "Call",
    "Pipeline",
    "Queries",
    "Rows",
    "Statement",
    "Step",
    "Transactions",
    "Unit",
    "drive",
    "queries",
    "render",
]
