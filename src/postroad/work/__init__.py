"""The one table of claimable work, and what lies beside it: quarantine, and what is finished."""

from postroad.work.store import (
    ClaimedRow,
    Depth,
    Kept,
    delay,
    delay_again,
    finish,
    give_back,
    list_quarantine,
    quarantine,
    quarantine_claimed,
    quarantine_state,
)
from postroad.work.wire import Wire

__all__ = [
    "ClaimedRow",
    "Depth",
    "Kept",
    "Wire",
    "delay",
    "delay_again",
    "finish",
    "give_back",
    "list_quarantine",
    "quarantine",
    "quarantine_claimed",
    "quarantine_state",
]
