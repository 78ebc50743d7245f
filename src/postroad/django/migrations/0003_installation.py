"""Postroad's step 0003_installation."""

from typing import ClassVar

from postroad.django.migrations import Step


class Migration(Step):
    """See `Step`."""

    dependencies: ClassVar = [("postroad", "0002_keep")]
