"""The board of a soak without its inbox, for a sabotage: every delivery counts as fresh."""

from road.apps import without
from soak.service import board

without.no_inbox()

__all__ = ["board"]
