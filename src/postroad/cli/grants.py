"""``postroad grants``."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from postroad.cli import show
from postroad.cli.load import HELP, load

if TYPE_CHECKING:
    from postroad.runtime.app import App
    from postroad.sql.migrations import Roles

_USED_BY: Final = {
    "owner": "`postroad migrate`, in a deploy",
    "runtime": "`postroad run` and the other commands; after `migrate`",
    "author": "whoever publishes and does nothing else; after `migrate`",
    "deployer": "`postroad topology apply`, in a deploy",
    "dispatcher": "a process that only dispatches",
    "consumer": "a process that only consumes",
    "process": "a process that does both",
}


def grants(
    reference: Annotated[str, typer.Argument(metavar="MODULE:APP", help=HELP)],
    *,
    owner_role: Annotated[str, typer.Option(help="The role that migrates.")] = "postroad_owner",
    runtime_role: Annotated[
        str, typer.Option(envvar="POSTROAD_RUNTIME_ROLE", help="The role that processes use.")
    ] = "postroad_runtime",
    author_role: Annotated[
        str, typer.Option(envvar="POSTROAD_AUTHOR_ROLE", help="The role that only publishes.")
    ] = "postroad_author",
    vhost: Annotated[str, typer.Option(help="The virtual host.")] = "/",
    json: show.AsJson = False,
) -> None:
    """Print the least rights (least privilege) that an App needs: of its database roles, and of its broker's users.

    Nothing is granted, and nothing needs to run: give the SQL to psql and the lines with rabbitmqctl to whoever
    administers the broker. Users and roles with passwords are made by you.
    """
    from postroad.sql.migrations import Roles

    app = load(reference)
    schema = os.environ.get("POSTROAD_SCHEMA") or "postroad"
    database = _database(Roles(owner=owner_role, runtime=runtime_role, author=author_role), schema)
    broker = _broker(app, vhost)
    notes = _notes(app)
    if json:
        show.document({"schema": schema, "database": database, "vhost": vhost, "broker": broker, "notes": notes})
        return
    for role in database:
        show.line(f"-- {role['name']}: {role['used_by']}\n{role['sql']}\n")
    for user in broker:
        show.line(f"# {user['user']}: {user['used_by']}\n{user['command']}")
    for note in notes:
        show.line(f"# {note}")


def _database(roles: Roles, schema: str) -> list[dict[str, str]]:
    from postroad.sql.migrations import grants_of

    texts = grants_of(schema, roles)
    return [
        {"role": kind, "name": getattr(roles, kind), "used_by": _USED_BY[kind], "sql": sql}
        for kind, sql in texts.items()
    ]


def _broker(app: App, vhost: str) -> list[dict[str, Any]]:
    from postroad.transport.permissions import permissions

    found = []
    for kind, right in permissions(app.topology).items():
        user = f"{app.name}-{kind}"
        words = ["rabbitmqctl", "set_permissions", "-p", vhost, user, right.configure, right.write, right.read]
        found.append(
            {
                "role": str(kind), "user": user, "used_by": _USED_BY[kind],
                "configure": right.configure, "write": right.write, "read": right.read, "command": shlex.join(words),
            }
        )  # fmt: skip
    return found


def _notes(app: App) -> list[str]:
    from postroad.transport.permissions import foreign

    names = foreign(app.topology)
    if not names:
        return []
    return [f"their own producers' deploys must declare {', '.join(names)} first; no user above may"]
