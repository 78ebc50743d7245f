"""Postroad's step 0004_jobs."""

from typing import ClassVar

from postroad.django.migrations import Step


class Migration(Step):
    """See `Step`."""

    dependencies: ClassVar = [("postroad", "0003_installation")]
