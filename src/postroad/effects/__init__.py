"""Acts outside the database that happen at most once: their ledger, and the look-up of outcomes that nobody knows."""

from postroad.effects.effect import Effect, effect
from postroad.effects.outcome import Absent, Done, EffectAttempt, Found, Refused, Unknown

__all__ = ["Absent", "Done", "Effect", "EffectAttempt", "Found", "Refused", "Unknown", "effect"]
