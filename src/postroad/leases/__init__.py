"""Durable leases with fencing tokens: one mechanism for shards, workers, the scheduler and long operations."""

from postroad.leases.keeper import Keeper
from postroad.leases.lease import Lease
from postroad.leases.store import FENCE, Lapsed, advance, expired, fence, lapsed, living, prune

__all__ = ["FENCE", "Keeper", "Lapsed", "Lease", "advance", "expired", "fence", "lapsed", "living", "prune"]
