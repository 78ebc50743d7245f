"""The installed app: it takes POSTROAD_SCHEMA from the settings, and registers the system checks."""

from __future__ import annotations

import os

from django.apps import AppConfig
from django.conf import settings
from typing_extensions import override


class PostroadConfig(AppConfig):  # type: ignore[misc] # Django ships no types.
    """``INSTALLED_APPS = ["postroad.django", ...]``: migrations, ``manage.py postroad`` and system checks."""

    name = "postroad.django"
    label = "postroad"
    verbose_name = "Postroad"

    @override
    def ready(self) -> None:
        """Give POSTROAD_SCHEMA of the settings to whatever in this process reads the environment, which wins."""
        from postroad.django import checks  # noqa: F401 - registers them

        schema = getattr(settings, "POSTROAD_SCHEMA", None)
        if schema is not None:
            os.environ.setdefault("POSTROAD_SCHEMA", str(schema))
