"""What an App declares, checked as a whole before anything runs."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from postroad.consume import consumer_of
from postroad.effects import Effect
from postroad.errors import PostroadError, SettingsError, UsageError
from postroad.events import Producer
from postroad.runtime.declared_reconciliations import compared
from postroad.runtime.declared_schedules import double_schedules, scheduled
from postroad.runtime.settings import is_postgres
from postroad.transport.topology import Topology
from postroad.work.job import job_of

if TYPE_CHECKING:
    import asyncio

    from postroad.consume.consumer import Consumer
    from postroad.owner import Readiness
    from postroad.reconcile import Reconciliation
    from postroad.runtime.settings import Settings
    from postroad.schedules.schedule import Schedule
    from postroad.work.job import Job

    Background = Callable[[asyncio.Event, Readiness], Awaitable[None]]

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
RESERVED: Final = frozenset(
    "dispatcher transport work maintain health keeper main pulse leftovers schedule effects".split()  # noqa: SIM905
)
_ARGUMENTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """Everything that an App was given, found to be consistent."""

    name: str
    producers: tuple[Producer, ...]
    consumers: tuple[Consumer[Any], ...]
    jobs: tuple[Job[Any], ...] = ()
    schedules: tuple[Schedule, ...] = ()
    effects: tuple[Effect[Any], ...] = ()
    """Those that the App names, and those of its consumers."""
    reconciliations: tuple[Reconciliation, ...] = ()

    @classmethod
    def of(
        cls, name: str, *, publishes: Iterable[object], consumers: Iterable[Callable[..., Any]], lifespan: object,
        jobs: Iterable[Callable[..., Any]] = (), schedules: Iterable[Schedule] = (), effects: Iterable[object] = (),
        reconciliations: Iterable[object] = (),
    ) -> Declarations:  # fmt: skip
        """Check the whole set.

        Raises:
            UsageError: one error with every problem: PR104 where a name is declared twice, else PR101.
        """
        problems: list[str] = [] if _NAME.fullmatch(name) else [_bad_name("App", name)]
        producers, wrong = _producers(publishes)
        found, undeclared = _consumers(consumers)
        work, idle = _jobs(jobs)
        planned, homeless = scheduled(schedules, work)
        acts, strange = _effects(effects, found)
        books, twice, odd = compared(reconciliations)
        doubles = [*_doubles(producers, found), *_double_jobs(work), *double_schedules(planned), *_double_effects(acts),
                   *twice]  # fmt: skip
        problems += [*wrong, *undeclared, *idle, *homeless, *strange, *odd]
        problems += [*doubles, *_unknown_versions(producers, found), *_lifespan(lifespan)]
        problems += [*_discord(work), *_shared_names(work, found), *_shared_queues(found)]
        problems += [] if doubles else _topology(producers, found)
        if problems:
            raise UsageError("PR104" if doubles else "PR101", f"App {name!r}: {'; '.join(problems)}")
        return cls(
            name=name, producers=tuple(producers), consumers=tuple(found), jobs=tuple(work), schedules=tuple(planned),
            effects=tuple(acts), reconciliations=books,
        )  # fmt: skip

    @property
    def handled(self) -> tuple[Consumer[Any] | Job[Any], ...]:
        """Everything that has rows of work run: consumers, for their retries, and jobs."""
        return (*self.consumers, *self.jobs)

    @property
    def events(self) -> bool:
        """Whether it sends or takes events, for which there must be a transport."""
        return bool(self.producers or self.consumers)

    @property
    def queues(self) -> dict[str, tuple[Job[Any], ...]]:
        """The jobs by their queue."""
        names = dict.fromkeys(job.queue for job in self.jobs)
        return {name: tuple(job for job in self.jobs if job.queue == name) for name in names}

    def topology(self) -> Topology:
        """What must stand on the broker for this App."""
        return topology_of(self.producers, self.consumers)


def check_background(name: str, function: object, *, taken: Iterable[str]) -> None:
    """Refuse a background service that could not run.

    Raises:
        UsageError: PR104, the name is taken; PR101, it is not valid, or `function` is not ``async def f(stop, ready)``.
    """
    if name in RESERVED or name in taken:
        raise UsageError("PR104", f"background service {name!r}: the name is taken; choose another")
    if not _NAME.fullmatch(name):
        raise UsageError("PR101", _bad_name("background service", name))
    if not (inspect.iscoroutinefunction(function) and len(inspect.signature(function).parameters) == _ARGUMENTS):
        raise UsageError("PR101", f"background service {name!r} is not 'async def f(stop, ready)'")


def check_schemas(declarations: Declarations, settings: Settings) -> None:
    """Refuse a producer that stages into another schema than the one that this process dispatches from.

    Raises:
        SettingsError: its events would wait for ever.
    """
    for producer in declarations.producers:
        if producer.schema is not None and producer.schema != settings.schema:
            message = f"producer {producer.name!r} stages in schema {producer.schema!r}, but POSTROAD_SCHEMA is"
            raise SettingsError("PR201", f"{message} {settings.schema!r}; set it to {producer.schema!r}")


def check_queues(declarations: Declarations, settings: Settings) -> None:
    """Refuse a consumer on a queue of RabbitMQ where there is no RabbitMQ.

    Raises:
        SettingsError: POSTROAD_BROKER_URL is ``postgres:``.
    """
    legacy = [one for one in declarations.consumers if one.queue is not None]
    if legacy and is_postgres(settings.broker_url):
        message = f"consumer {legacy[0].name!r} takes from queue {legacy[0].queue!r} of RabbitMQ"
        raise SettingsError("PR201", f"{message}, but POSTROAD_BROKER_URL is 'postgres:'; set it to amqp://...")


def topology_of(producers: Sequence[Producer], consumers: Sequence[Consumer[Any]]) -> Topology:
    """The exchanges, queues and bindings of these declarations."""
    return Topology.of(
        publishes=[producer.name for producer in producers],
        consumers=[(one.name, [item.type for item in one.subscriptions]) for one in consumers if one.queue is None],
        standing=[one.queue for one in consumers if one.queue is not None],
    )


def _bad_name(what: str, name: str) -> str:
    return f"{what} name {name!r} must be 1 to 63 of a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"


def _producers(publishes: Iterable[object]) -> tuple[list[Producer], list[str]]:
    given, problems = _listed("publishes", publishes, of="Producer values")
    strangers = dict.fromkeys(type(item).__name__ for item in given if not isinstance(item, Producer))
    problems += [f"publishes holds {name}, not a Producer" for name in strangers]
    return [item for item in given if isinstance(item, Producer)], problems


def _listed(option: str, given: object, *, of: str) -> tuple[list[Any], list[str]]:
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return list(given), []
    return [], [f"{option} is {type(given).__name__}, not a list of {of}"]


def _consumers(functions: Iterable[Callable[..., Any]]) -> tuple[list[Consumer[Any]], list[str]]:
    found: list[Consumer[Any]] = []
    listed, problems = _listed("consumers", functions, of="functions decorated with @consumer")
    for function in listed:
        try:
            found.append(consumer_of(function))
        except UsageError as error:
            problems.append(error.message)
    return found, problems


def _jobs(functions: Iterable[Callable[..., Any]]) -> tuple[list[Job[Any]], list[str]]:
    found: list[Job[Any]] = []
    listed, problems = _listed("jobs", functions, of="functions decorated with @job")
    for function in listed:
        try:
            found.append(job_of(function))
        except UsageError as error:
            problems.append(error.message)
    return found, problems


def _effects(given: Iterable[object], consumers: Sequence[Consumer[Any]]) -> tuple[list[Effect[Any]], list[str]]:
    """The effects that are named anywhere, each once."""
    listed, problems = _listed("effects", given, of="effects")
    strangers = dict.fromkeys(type(item).__name__ for item in listed if not isinstance(item, Effect))
    problems += [f"effects holds {name}, not an effect" for name in strangers]
    named = [item for item in listed if isinstance(item, Effect)]
    return [*dict.fromkeys([*named, *(one for consumer in consumers for one in consumer.effects)])], problems


def _double_effects(effects: Sequence[Effect[Any]]) -> list[str]:
    counts = Counter(effect.name for effect in effects)
    return [f"effect {name!r} is declared twice; rename one" for name, count in counts.items() if count > 1]


def _double_jobs(jobs: Sequence[Job[Any]]) -> list[str]:
    counts = Counter(job.name for job in jobs)
    return [f"job {name!r} is declared twice; rename one" for name, count in counts.items() if count > 1]


def _discord(jobs: Sequence[Job[Any]]) -> list[str]:
    """Jobs of one queue share its slots: they must agree on how many there are."""
    agreed: dict[str, Job[Any]] = {}
    problems = []
    for job in jobs:
        first = agreed.setdefault(job.queue, job)
        if (job.concurrency, job.fleet) != (first.concurrency, first.fleet):
            problems.append(
                f"jobs {first.name!r} and {job.name!r} share queue {job.queue!r}, but not its concurrency and fleet; "
                "give both the same, or one of them a queue of its own"
            )
    return problems


def _shared_names(jobs: Sequence[Job[Any]], consumers: Sequence[Consumer[Any]]) -> list[str]:
    taken = {consumer.name for consumer in consumers}
    return [
        f"job {job.name!r} waits in queue {job.queue!r}, where that consumer's retries wait; choose another"
        for job in jobs
        if job.queue in taken
    ]


def _shared_queues(consumers: Sequence[Consumer[Any]]) -> list[str]:
    """Consumers on one queue would each get a part of it."""
    counts = Counter(consumer.takes_from for consumer in consumers)
    names = {consumer.takes_from: [one.name for one in consumers if one.takes_from == consumer.takes_from]
             for consumer in consumers if consumer.queue is not None}  # fmt: skip
    return [
        f"consumers {', '.join(map(repr, names[queue]))} take from queue {queue!r}, so each would get a part of it"
        for queue in names
        if counts[queue] > 1
    ]


def _doubles(producers: Sequence[Producer], consumers: Sequence[Consumer[Any]]) -> list[str]:
    problems = [
        f"producer {name!r} is published twice"
        for name, count in Counter(p.name for p in producers).items()
        if count > 1
    ]
    for name, count in Counter(consumer.name for consumer in consumers).items():
        if count > 1:
            places = ", ".join(_place(consumer) for consumer in consumers if consumer.name == name)
            problems.append(f"consumer {name!r} is declared twice ({places}); rename one")
    return problems


def _place(consumer: Consumer[Any]) -> str:
    return f"{consumer.function.__module__}.{consumer.function.__qualname__}"


def _unknown_versions(producers: Sequence[Producer], consumers: Sequence[Consumer[Any]]) -> list[str]:
    """A consumer of our own producer's type that our own producer does not declare would wait for ever."""
    declared = {(event.type, event.version) for producer in producers for event in producer.events}
    owned = {producer.name for producer in producers}
    return [
        f"consumer {consumer.name!r} reads {item.type} v{item.version}, which producer {item.owner!r} does not declare"
        for consumer in consumers
        for item in consumer.subscriptions
        if item.owner in owned and (item.type, item.version) not in declared
    ]


def _lifespan(lifespan: object) -> list[str]:
    if lifespan is None or inspect.isasyncgenfunction(lifespan):
        return []
    return ["lifespan is not an async generator function ('async def' with one 'yield')"]


def _topology(producers: Sequence[Producer], consumers: Sequence[Consumer[Any]]) -> list[str]:
    try:
        topology_of(producers, consumers)
    except PostroadError as error:
        return [error.message]
    return []
