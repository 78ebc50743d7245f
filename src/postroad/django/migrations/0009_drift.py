"""Postroad's step 0009_drift."""

from typing import ClassVar

from postroad.django.migrations import Step


class Migration(Step):
    """See `Step`."""

    dependencies: ClassVar = [("postroad", "0008_replay")]
