"""The author's door for Django, its handlers' transactions, and an installed app that brings the schema along."""

from __future__ import annotations

from postroad.django.blocks import Atomic
from postroad.django.door import Within, within
from postroad.outbox.publish import Publish
from postroad.work.enqueue import Enqueue, Enqueued

__all__ = ["Atomic", "Enqueue", "Enqueued", "Publish", "Within", "within"]
