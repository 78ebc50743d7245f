"""Named SQL, the pipelines that yield it, and the hands that run it."""

from postroad.sql.drive import AsyncHand, Form, Rows, SyncHand, Transactions, Unit, drive, drive_sync
from postroad.sql.statement import Call, Pipeline, Queries, Statement, Step, queries, render

__all__ = [
    "AsyncHand",
    "Call",
    "Form",
    "Pipeline",
    "Queries",
    "Rows",
    "Statement",
    "Step",
    "SyncHand",
    "Transactions",
    "Unit",
    "drive",
    "drive_sync",
    "queries",
    "render",
]
