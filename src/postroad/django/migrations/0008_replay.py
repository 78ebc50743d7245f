"""Postroad's step 0008_replay."""

from typing import ClassVar

from postroad.django.migrations import Step


class Migration(Step):
    """See `Step`."""

    dependencies: ClassVar = [("postroad", "0007_schedules")]
