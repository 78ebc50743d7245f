"""``manage.py postroad``: the command line of Postroad, on a database of the settings."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, ClassVar, Final

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from postroad.django.alias import url_of
from postroad.django.door import DEFAULT
from postroad.errors import PostroadError

_USAGE: Final = 2


class Command(BaseCommand):  # type: ignore[misc] # Django ships no types.
    """Runs `postroad ...` where Django is set up already, so that an App's handlers may use models."""

    help = (
        "Postroad's own commands, where Django is set up: `manage.py postroad run shop.app:app`. The database is "
        "POSTROAD_DATABASE_URL, else `default` of DATABASES. Django's options come before the command."
    )
    requires_system_checks: ClassVar[list[str]] = []

    @override
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The database, and all the rest as it is."""
        parser.add_argument("--database", help="An alias of DATABASES, whatever POSTROAD_DATABASE_URL says.")
        parser.add_argument("words", nargs=argparse.REMAINDER, metavar="command", help="As after `postroad`.")

    @override
    def handle(self, *_: Any, words: list[str], database: str | None, **__: Any) -> None:
        """Run it; ends the process with its exit code, where that is not 0.

        Raises:
            CommandError: the settings do not tell the database.
            SystemExit: as `postroad` would.
        """
        from postroad.cli.commands import execute

        try:
            if database is not None or not os.environ.get("POSTROAD_DATABASE_URL"):
                os.environ["POSTROAD_DATABASE_URL"] = url_of(database or DEFAULT)
        except PostroadError as error:
            raise CommandError(str(error), returncode=_USAGE) from error
        code = execute(words)
        if code:
            sys.exit(code)
