"""Django set up for tests, once in a process; each test says which database is its `default`."""

from __future__ import annotations

from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

import django
from django import VERSION
from django.conf import settings
from django.db import connections, models

if not settings.configured:
    settings.configure(
        INSTALLED_APPS=["postroad.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}, "other": {}},
        USE_TZ=True,
        ROOT_URLCONF="django_site",
        SECRET_KEY="not a secret",
        ALLOWED_HOSTS=["*"],
    )
    django.setup()

urlpatterns = []


class Gate(models.Model):  # noqa: DJ008 - nobody reads it
    """A table of the author's: ``CREATE TABLE gate (id int PRIMARY KEY)``."""

    class Meta:
        app_label = "gates"
        db_table = "gate"
        managed = False


class Effect(models.Model):  # noqa: DJ008 - nobody reads it
    """The table of effects of the consume room's tests."""

    name = models.TextField(primary_key=True)
    amount = models.IntegerField()
    attempt = models.IntegerField()

    class Meta:
        app_label = "gates"
        db_table = "effect"
        managed = False


class Number(models.Model):  # noqa: DJ008 - nobody reads it
    """The table of numbers of the work room's tests."""

    number = models.IntegerField(primary_key=True)

    class Meta:
        app_label = "gates"
        db_table = "number"
        managed = False


def database(url, **given):
    parts = urlsplit(url)
    place = {
        "ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""), "HOST": parts.hostname or "", "PORT": parts.port or "",
        "OPTIONS": {name: values[0] for name, values in parse_qs(parts.query).items()},
    }  # fmt: skip
    return {**place, **given}


@contextmanager
def databases(**each):
    """These are DATABASES for a while."""
    connections.close_all()
    for alias in [*connections.settings]:
        _forget(alias)
    before, connections.settings = connections.settings, connections.configure_settings(each)
    try:
        yield
    finally:
        connections.close_all()
        for alias, given in each.items():
            if given.get("OPTIONS", {}).get("pool") and VERSION >= (5, 1):
                connections[alias].close_pool()
            _forget(alias)
        connections.settings = before


def _forget(alias):
    if hasattr(connections._connections, alias):
        del connections[alias]
