"""The board of a soak that acks what it takes before it has handled it, for a sabotage."""

from road.apps import without
from soak.service import board

without.no_late_ack()

__all__ = ["board"]
