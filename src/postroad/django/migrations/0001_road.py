"""Postroad's step 0001_road."""

from postroad.django.migrations import Step


class Migration(Step):
    """See `Step`."""
