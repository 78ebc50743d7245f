"""The check of the installation: whether this database is the one that its broker knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.errors import PostroadError
from postroad.runtime import adoption
from postroad.runtime.doctor import checks
from postroad.runtime.settings import is_postgres

if TYPE_CHECKING:
    from postroad.runtime.doctor.findings import Finding
    from postroad.runtime.settings import Settings


async def examine_installation(settings: Settings) -> list[Finding]:
    """Look at what binds the database to the broker. Changes nothing."""
    if not settings.broker_url:
        return [checks.INSTALLATION.not_checked("POSTROAD_BROKER_URL is not set")]
    if is_postgres(settings.broker_url):
        return [checks.INSTALLATION.ok("no broker to be bound to")]
    try:
        bound = await adoption.examine(settings)
    except PostroadError as error:
        return [checks.INSTALLATION.not_checked(str(error))]
    if bound.doubt:
        return [checks.INSTALLATION.error(bound.doubt)]
    if bound.bound_to is None:
        return [checks.INSTALLATION.ok("bound to no broker yet; the first process binds it")]
    return [checks.INSTALLATION.ok(f"bound to {bound.bound_to}")]
