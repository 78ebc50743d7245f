"""The demo's consumer service with its inbox switched off: every delivery counts as fresh."""

from __future__ import annotations

from postroad.demo.punctuality import app
from tests.consume.sabotage import switch_inbox_off

switch_inbox_off()

__all__ = ["app"]
