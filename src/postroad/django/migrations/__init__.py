"""Postroad's numbered migrations as Django's: ``manage.py migrate`` brings the schema up to this release.

Each file stands for the step of its name. The first that runs applies all that are missing, by `postroad migrate`'s own
function and on a connection of its own, so that it does not matter which of the two ran before. None can be taken back.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, ClassVar

from django.db import migrations

from postroad.django.alias import url_of
from postroad.outbox.publish import default_schema


def _bring(_: Any, editor: Any) -> None:
    """Migrate the database that Django migrates; one that is not PostgreSQL is passed over."""
    if editor.connection.vendor != "postgresql":
        return
    from postroad.sql.migrations import Roles, migrate

    runtime, author = (os.environ.get(f"POSTROAD_{kind}_ROLE") or None for kind in ("RUNTIME", "AUTHOR"))
    roles = Roles(runtime=runtime, author=author)
    asyncio.run(migrate(url_of(editor.connection.alias), schema=default_schema(), roles=roles))


class Step(migrations.Migration):  # type: ignore[misc] # Django ships no types.
    """One of them."""

    atomic = False
    operations: ClassVar[list[Any]] = [migrations.RunPython(_bring)]
