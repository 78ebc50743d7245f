"""A service that sends parcels and keeps the board of them, in one process."""

from __future__ import annotations

from postroad.runtime.app import App
from road.apps.board import see
from road.apps.parcels import parcels

app = App("whole", publishes=[parcels], consumers=[see])
