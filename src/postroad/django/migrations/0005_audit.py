"""Postroad's step 0005_audit."""

from typing import ClassVar

from postroad.django.migrations import Step


class Migration(Step):
    """See `Step`."""

    dependencies: ClassVar = [("postroad", "0004_jobs")]
