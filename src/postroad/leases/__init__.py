"""Durable leases with fencing tokens: one mechanism for shards, workers, the scheduler and long operations."""

from postroad.leases.held import AsyncLease, HeldLease, SyncLease
from postroad.leases.hold import PREFIX, Leases
from postroad.leases.keeper import Keeper
from postroad.leases.lease import Lease
from postroad.leases.store import (
    FENCE,
    Lapsed,
    Listed,
    advance,
    expired,
    fence,
    interrupt,
    lapsed,
    listed,
    living,
    prune,
)

__all__ = [
    "FENCE",
    "PREFIX",
    "AsyncLease",
    "HeldLease",
    "Keeper",
    "Lapsed",
    "Lease",
    "Leases",
    "Listed",
    "SyncLease",
    "advance",
    "expired",
    "fence",
    "interrupt",
    "lapsed",
    "listed",
    "living",
    "prune",
]
