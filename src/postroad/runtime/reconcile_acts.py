"""What an operator may do with reconciliations, without any printing: list, run, look at drift, repair it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from postroad.clock import SYSTEM_CLOCK
from postroad.errors import PostroadError, UsageError
from postroad.reconcile import checking, lag, repairing, store
from postroad.reconcile.built_in import built_in
from postroad.reconcile.ground import Ground
from postroad.runtime.doctor.managed import orphans
from postroad.runtime.executor import safe_reason
from postroad.runtime.operations import blamed, connected, tls_of
from postroad.runtime.resources import living
from postroad.runtime.settings import is_postgres
from postroad.signals import Signals
from postroad.sql import drive, migrations
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.manager import Manager
from postroad.transport.amqp.admin import Session, depths
from postroad.transport.amqp.compare import differences
from postroad.transport.amqp.connection import Address, AmqpSettings
from postroad.transport.amqp.management import read_vhost
from postroad.transport.postgres import store as subscriptions
from postroad.transport.postgres.transport import besides, subscriptions_in

if TYPE_CHECKING:
    from postroad.reconcile.checking import Checked
    from postroad.reconcile.lag import Lag
    from postroad.reconcile.reconciliation import Reconciliation
    from postroad.reconcile.repairing import Picked, Repaired
    from postroad.reconcile.store import Drifted, Listed, Total
    from postroad.runtime.app import App
    from postroad.runtime.settings import Settings

_CONNECTIONS: Final = 5
_OURS: Final = "postroad reconcile"


@dataclass(frozen=True, slots=True)
class Known:
    """A reconciliation that can be run: what is declared, and what the database has of it (None: it never ran)."""

    name: str
    settle_seconds: float
    limit: int
    repairs: bool
    row: Listed | None


async def reconciliations(settings: Settings, app: App | None) -> Sequence[Known]:
    """Those of `app` and the built-in ones, by name.

    Raises:
        AccessRefused: the role may not, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away. Every act here raises these three.
    """
    all_ = await declared(settings, app)
    async with _hand(settings) as hand:
        rows = {row.name: row for row in await drive(store.listed(settings.schema), hand)}
    known = [
        Known(one.name, one.settle.total_seconds(), one.limit, one.repair is not None, rows.get(one.name))
        for one in all_
    ]
    return sorted(known, key=lambda one: one.name)


async def declared(settings: Settings, app: App | None) -> tuple[Reconciliation, ...]:
    """What can be run: that of `app`, and the built-in ones, but for those that it declares itself."""
    if app is None:
        return built_in((), owned=(), strays=None)
    owned = {producer.name for producer in app.declarations.producers}
    if is_postgres(settings.broker_url):  # It joins Apps of one database.
        owned |= {item.owner for one in app.declarations.consumers for item in one.subscriptions}
    strays = await _strays(settings, app)
    own = app.declarations.reconciliations
    names = {one.name for one in own}
    ours = built_in(app.declarations.consumers, owned=owned, strays=strays)
    return (*own, *(one for one in ours if one.name not in names))


async def run(
    settings: Settings, app: App | None, *, by: str, only: Collection[str] = (), anew: bool = False,
    settle: timedelta | None = None, stop: asyncio.Event | None = None,
    told: Callable[[str, int], None] = lambda _name, _compared: None,
) -> list[Checked]:  # fmt: skip
    """Compare what `only` names, or everything; see `postroad.reconcile.checking.check`.

    `settle` replaces the declared waiting time. The App's ``lifespan`` makes its live objects for as long as it takes.

    Raises:
        UsageError: PR107, a name is not known, or a stream of the author's failed.
    """
    chosen = _chosen(await declared(settings, app), only)
    if settle is not None:
        chosen = [replace(one, settle=settle) for one in chosen]
    async with _ground(settings, app, by=by) as ground:
        return await checking.check_all(ground, chosen, anew=anew, stop=stop, told=told)


async def drift(
    settings: Settings, *, name: str | None, kind: str | None, state: str, limit: int
) -> Sequence[Drifted]:  # fmt: skip
    """What differs, oldest first; `state` is open, suspected, repaired or resolved.

    Raises:
        UsageError: PR107, nothing of that name has run here.
    """
    async with _hand(settings) as hand:
        if name is not None and name not in {one.name for one in await drive(store.listed(settings.schema), hand)}:
            message = f"no reconciliation {name!r} has run here; see `postroad reconcile list`, or run it first"
            raise UsageError("PR107", message)
        return await drive(store.drift(settings.schema, name=name, kind=kind, state=state, limit=limit), hand)


async def preview(settings: Settings, name: str, *, kind: str | None, key: str | None) -> Sequence[Total]:
    """What a repair would touch, by kind. Changes nothing."""
    async with _hand(settings) as hand:
        return await drive(store.preview(settings.schema, name, kind=kind, key=key), hand)


async def check_repair(settings: Settings, app: App, name: str) -> None:
    """Refuse what could not be repaired, before anything is counted.

    Raises:
        UsageError: PR107, the name is not known, or it declares no repair.
    """
    (what,) = _chosen(await declared(settings, app), [name])
    repairing.check_repair(what)


async def repair(
    settings: Settings, app: App, name: str, picked: Picked, *, by: str, reason: str | None,
    stop: asyncio.Event | None = None, told: Callable[[Repaired], None] = lambda _: None,
) -> Repaired:  # fmt: skip
    """Repair what is `picked` of `name`, as `by`; see `postroad.reconcile.repairing.repair`.

    Raises:
        UsageError: PR107, the name is not known, or it declares no repair.
    """
    (what,) = _chosen(await declared(settings, app), [name])
    async with _ground(settings, app, by=by) as ground:
        return await repairing.repair(ground, what, picked, reason=reason, stop=stop, told=told)


async def lags(settings: Settings, app: App) -> Sequence[Lag]:
    """How far each consumer of `app` is behind, by name; what the broker or another database holds, as far as it shows.

    Raises:
        UsageError: PR107, the App has no consumers.
    """
    consumers = sorted(app.declarations.consumers, key=lambda one: one.name)
    if not consumers:
        raise UsageError("PR107", f"App {app.name!r} has no consumers: nothing of it can be behind")
    here, owned = is_postgres(settings.broker_url), {producer.name for producer in app.declarations.producers}
    waiting: Mapping[str, int] = {}
    if settings.broker_url and not here:
        address = Address.of(settings.broker_url)
        async with Session(address, AmqpSettings(tls=tls_of(settings))) as session:
            waiting = await depths(session, [one.takes_from for one in consumers])
    found = []
    async with _hand(settings) as hand:
        for one in consumers:
            logged = here or {item.owner for item in one.subscriptions} <= owned
            queue = None if here else waiting.get(one.takes_from)
            behind = lag.lag(
                settings.schema, one, logged=logged, queue=queue, here=here, now=SYSTEM_CLOCK.now()
            )  # fmt: skip
            found.append(await drive(behind, hand))
    return found


def _chosen(all_: Sequence[Reconciliation], only: Collection[str]) -> list[Reconciliation]:
    known = {one.name: one for one in all_}
    strange = [name for name in only if name not in known]
    if strange:
        text = f"there is no reconciliation {strange[0]!r} here; see `postroad reconcile list MODULE:APP`"
        raise UsageError("PR107", text)
    return [known[name] for name in dict.fromkeys(only)] if only else list(all_)


async def _strays(settings: Settings, app: App) -> Callable[[], Sequence[tuple[str, str]]] | None:
    """What stands on the transport without a declared consumer; None where nobody can see it."""
    if not settings.broker_url or (settings.management_url is None and not is_postgres(settings.broker_url)):
        return None
    if is_postgres(settings.broker_url):
        async with _hand(settings) as hand:
            standing = await drive(subscriptions.subscriptions(settings.schema), hand)
        found = [(f"{one.kind} {one.name}", one.problem) for one in besides(subscriptions_in(app.topology), standing)]
        return lambda: found
    return partial(_on_broker, settings, app)


def _on_broker(settings: Settings, app: App) -> Sequence[tuple[str, str]]:
    """What stands on the broker without a declared consumer. Blocks: for commands alone."""
    address = Address.of(settings.broker_url)
    assert settings.management_url is not None
    seen = read_vhost(settings.management_url, vhost=address.vhost, user=address.user, tls=tls_of(settings))
    foreign = [one for one in differences(app.topology, seen) if one.kind == "foreign binding"]
    left = [(f"queue {name}", what) for name, what in orphans(app.topology, seen)]
    return [*left, *((f"binding {one.name}", one.problem) for one in foreign)]


@asynccontextmanager
async def _ground(settings: Settings, app: App | None, *, by: str) -> AsyncIterator[Ground]:
    """A small pool, and the App's live objects; what code of the author's raises comes out as one line."""
    async with _hand(settings):
        pass
    with blamed(settings, settings.database_url):
        manager = await Manager.open(settings.database_url, schema=settings.schema, size=_CONNECTIONS, name=_OURS)
    try:
        async with living(None if app is None else app.lifespan) as resources:
            yield Ground(
                manager=manager, resources=resources, signals=Signals(), clock=SYSTEM_CLOCK, by=by
            )  # fmt: skip
    except PostroadError:
        raise
    except Exception as error:
        text = f"a stream, a repair or the lifespan of the App raised {type(error).__name__}: {safe_reason(error)}"
        raise UsageError("PR107", f"{text}; what was compared so far is kept") from error
    finally:
        await manager.close()


@asynccontextmanager
async def _hand(settings: Settings) -> AsyncIterator[AsyncpgHand]:
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        yield AsyncpgHand(connection)
