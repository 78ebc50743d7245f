"""Settings from the environment: read once, checked together, frozen."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from postroad.clock import seconds
from postroad.errors import SettingsError
from postroad.hosts import each_host

PREFIX: Final = "POSTROAD_"
POSTGRES: Final = "postgres:"
"""The broker URL of the transport without a broker."""


class Role(StrEnum):
    """What a process does of an App: given with ``--only`` or POSTROAD_ROLES."""

    DISPATCH = "dispatch"
    CONSUME = "consume"
    WORK = "work"
    SCHEDULE = "schedule"
    MAINTAIN = "maintain"


class LogForm(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class TopologyMode(StrEnum):
    """What a process does with the broker's queues, exchanges and bindings when it starts."""

    VERIFY = "verify"
    APPLY = "apply"


class Vouch(StrEnum):
    """Whether publishes carry the broker's user, so that the broker vouches for it."""

    OFF = "off"
    ON = "on"


ALL_ROLES: Final = frozenset(Role)


class Need(StrEnum):
    """What must be reachable, and therefore set."""

    DATABASE = "database_url"
    BROKER = "broker_url"


def needs_of(roles: frozenset[Role], *, events: bool = True) -> frozenset[Need]:
    """What a process of these roles needs; one without roles needs nothing, one without `events` no broker."""
    broker = {Need.BROKER} if events and roles & {Role.DISPATCH, Role.CONSUME} else set()
    return frozenset(({Need.DATABASE} if roles else set()) | broker)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a process takes from its environment; `SETTINGS` says which variable is which field."""

    database_url: str = field(default="", repr=False)
    direct_url: str = field(default="", repr=False)
    broker_url: str = field(default="", repr=False)
    broker_ca: str | None = None
    broker_cert: str | None = None
    broker_key: str | None = None
    vouch: Vouch = Vouch.OFF
    management_url: str | None = field(default=None, repr=False)
    schema: str = "postroad"
    roles: frozenset[Role] = ALL_ROLES
    topology: TopologyMode = TopologyMode.VERIFY
    grace: timedelta = seconds(25)
    start_timeout: timedelta = seconds(30)
    pool_size: int | None = None
    """At most so many connections; None: what the declarations of the App and its roles need."""
    shard_lease: timedelta = seconds(10)
    worker_lease: timedelta = seconds(30)
    scheduler_lease: timedelta = seconds(15)
    inbox_window: timedelta = timedelta(days=35)
    """How long an inbox remembers what it has handled."""
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    log: LogForm = LogForm.TEXT
    log_level: str = "info"
    strangers: tuple[str, ...] = ()
    """Variables that begin with POSTROAD_ and mean nothing here: worth a warning, no more."""


class _Wrong(ValueError):
    """A value that cannot be used: what it must be."""


def _text(text: str) -> str:
    return text


def _postgres_url(text: str) -> str:
    _parts(text, ("postgresql", "postgres"), "postgresql://user:password@host:5432/name")
    return text


def _broker_url(text: str) -> str:
    if is_postgres(text):
        return text
    if text.startswith(POSTGRES):
        raise _Wrong("names a database; the PostgreSQL transport is `postgres:` alone: it is the database's own")
    _parts(text, ("amqp", "amqps"), f"amqp://user:password@host:5672/vhost, or {POSTGRES} for PostgreSQL alone")
    return text


def is_postgres(broker_url: str) -> bool:
    """Whether the URL names the transport without a broker."""
    return broker_url == POSTGRES


def _http_url(text: str) -> str:
    if len(each_host(text)) > 1:
        raise _Wrong("names several hosts; one is enough, any node or a load balancer before them")
    _parts(text, ("http", "https"), "http://user:password@host:15672")
    return text


def _parts(text: str, schemes: Sequence[str], example: str) -> None:
    # The value itself is never repeated: it may hold a password.
    each = each_host(text)
    for one in each:
        _place(one, schemes, example, several=len(each) > 1)


def _place(text: str, schemes: Sequence[str], example: str, *, several: bool) -> None:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _Wrong(f"cannot be read; it looks like {example}") from None
    if several and not parts.hostname:
        raise _Wrong("names no host before or after a comma; several look like one:5672,two:5672")
    if parts.scheme not in schemes or port == 0 or not (parts.netloc or parts.query):
        raise _Wrong(f"is not a URL of this kind; it looks like {example}")
    if "@" in parts.path + parts.fragment or ("@" in parts.query and "@" not in parts.netloc):
        # The password's rest, behind what ends a host's name: it would be taken for the path, and printed as such.
        raise _Wrong("has an @ behind the host; write / ? # @ : in user and password as %2F %3F %23 %40 %3A")


def _file(text: str) -> str:
    try:
        with Path(text).open("rb"):
            return text
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise _Wrong(f"is {text[:200]!r}; it must be a file that can be read ({why})") from None


def _schema(text: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,54}", text):
        raise _Wrong("must be lower-case letters, digits and underscores, at most 55")
    return text


def _duration(least: float, most: float) -> Callable[[str], timedelta]:
    def read(text: str) -> timedelta:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise _Wrong(f"is {text[:40]!r}; it must be a number of seconds from {least:g} to {most:g}")
        return seconds(value)

    return read


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise _Wrong(f"is {text[:40]!r}; it must be a whole number from {least} to {most}")
        return int(text)

    return read


def _days(least: int, most: int) -> Callable[[str], timedelta]:
    whole = _whole(least, most)
    return lambda text: timedelta(days=whole(text))


def _one_of(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    def read(text: str) -> StrEnum:
        try:
            return kind(text)
        except ValueError:
            raise _Wrong(f"is {text[:40]!r}; it must be one of {', '.join(kind)}") from None

    return read


def read_roles(text: str) -> frozenset[Role]:
    """Roles from a list with commas.

    Raises:
        ValueError: one is unknown; the text says what they are.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name[:40] for name in names if name not in set(Role)]
    if unknown:
        raise _Wrong(f"names {', '.join(map(repr, unknown))}; roles are {', '.join(Role)}")
    return frozenset(map(Role, names))


class _Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable: the field it fills, how it is read, and its line in the documentation."""

    variable: str
    field: str
    read: Callable[[str], Any]
    default: str
    says: str


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("POSTROAD_DATABASE_URL", "database_url", _postgres_url, "required",
            "PostgreSQL, as the runtime role; may be a transaction pooler"),
    Setting("POSTROAD_DIRECT_URL", "direct_url", _postgres_url, "the database URL",
            "the same database past any pooler: heartbeats and session locks"),
    Setting("POSTROAD_BROKER_URL", "broker_url", _broker_url,
            "required to dispatch and consume, unless the App has jobs alone",
            "the transport: amqp:// or amqps:// (RabbitMQ), or `postgres:` (the database, for Apps that share it)"),
    Setting("POSTROAD_BROKER_CA", "broker_ca", _file, "the system's",
            "for amqps://, the authorities that the broker's certificate must come from (PEM)"),
    Setting("POSTROAD_BROKER_CERT", "broker_cert", _file, "not set",
            "for amqps://, the certificate to show to the broker, with its chain (PEM)"),
    Setting("POSTROAD_BROKER_KEY", "broker_key", _file, "in the certificate's file",
            "its private key, not encrypted (PEM)"),
    Setting("POSTROAD_VOUCH", "vouch", _one_of(Vouch), "off",
            "`on`: each publish names the URL's user as `user_id`, and the broker refuses any other"),
    Setting("POSTROAD_MANAGEMENT_URL", "management_url", _http_url, "not set",
            "RabbitMQ's management API, for `topology verify` and `doctor` alone"),
    Setting("POSTROAD_SCHEMA", "schema", _schema, "postroad", "the database schema of Postroad's tables"),
    Setting("POSTROAD_ROLES", "roles", read_roles, "all",
            "what this process does: dispatch, consume, work, schedule, maintain"),
    Setting("POSTROAD_TOPOLOGY", "topology", _one_of(TopologyMode), "verify",
            "at start, `verify` the broker's queues or `apply` them"),
    Setting("POSTROAD_GRACE_SECONDS", "grace", _duration(1, 3600), "25",
            "SIGTERM to exit; keep it below the platform's limit (Kubernetes: 30)"),
    Setting("POSTROAD_START_TIMEOUT", "start_timeout", _duration(0.1, 3600), "30",
            "how long start-up tries to reach database and broker, in seconds"),
    Setting("POSTROAD_POOL_SIZE", "pool_size", _whole(4, 1000), "what the roles need",
            "connections to the database, at most; they are opened as they are needed"),
    Setting("POSTROAD_SHARD_LEASE_SECONDS", "shard_lease", _duration(0.5, 300), "10",
            "lease of an outbox shard; renewed every third of it"),
    Setting("POSTROAD_WORKER_LEASE_SECONDS", "worker_lease", _duration(0.5, 300), "30",
            "lease of a worker process; renewed every third of it"),
    Setting("POSTROAD_SCHEDULER_LEASE_SECONDS", "scheduler_lease", _duration(0.5, 300), "15",
            "lease of the process that plans an App's schedules; renewed every third of it"),
    Setting("POSTROAD_INBOX_DAYS", "inbox_window", _days(7, 3650), "35",
            "how long an inbox remembers what it has handled; older deliveries that it does not know are quarantined"),
    Setting("POSTROAD_HEALTH_PORT", "health_port", _whole(0, 65535), "off",
            "port of /health/live, /health/ready and /metrics; 0 takes a free one and logs it"),
    Setting("POSTROAD_HEALTH_HOST", "health_host", _text, "127.0.0.1",
            "address of that port; 0.0.0.0 opens it to others"),
    Setting("POSTROAD_LOG", "log", _one_of(LogForm), "text", "form of the log on standard error: text or json"),
    Setting("POSTROAD_LOG_LEVEL", "log_level", _one_of(_Level), "info", "debug, info, warning or error"),
)  # fmt: skip
"""Every variable that a running process reads. The page ``docs/running.md`` shows this table; a test compares."""

ELSEWHERE: Final = ("POSTROAD_DEBUG", "POSTROAD_RUNTIME_ROLE", "POSTROAD_AUTHOR_ROLE")
"""Variables that commands read for themselves."""
_PRIVATE: Final = ("POSTROAD_TEST_", "POSTROAD_DEMO_", "POSTROAD_BENCH_")
_MISSING: Final = {
    "POSTROAD_DATABASE_URL": "is not set; give postgresql://user:password@host:5432/name",
    "POSTROAD_BROKER_URL": "is not set; give amqp://user:password@host:5672/vhost, or `postgres:` for PostgreSQL alone",
}


def read_settings(
    environment: Mapping[str, str],
    *,
    roles: frozenset[Role] | None = None,
    needs: frozenset[Need] | None = None,
    default_roles: frozenset[Role] = ALL_ROLES,
    events: bool = True,
) -> Settings:
    """Read and check every variable of `environment` at once. An empty value counts as not set.

    `roles` overrides POSTROAD_ROLES, `default_roles` stands where neither is given. `needs` says which URLs are
    required; by default those that the roles need, where an App sends or takes `events`.

    Raises:
        SettingsError: one line that names every wrong variable with its remedy; no value of a URL is repeated.
    """
    problems: list[str] = []
    values: dict[str, Any] = {"roles": default_roles}
    for setting in SETTINGS:
        text = environment.get(setting.variable, "").strip()
        try:
            if text:
                values[setting.field] = setting.read(text)
        except _Wrong as wrong:
            problems.append(f"{setting.variable} {wrong}")
    if roles is not None:
        values["roles"] = roles
    problems += _missing(environment, needs_of(values["roles"], events=events) if needs is None else needs)
    problems += _useless(values)
    strangers, typos = _strangers(environment)
    problems += typos
    if problems:
        raise SettingsError("PR201", "; ".join(problems))
    values.setdefault("direct_url", values.get("database_url", ""))
    return Settings(**values, strangers=tuple(strangers))


def _missing(environment: Mapping[str, str], needs: frozenset[Need]) -> list[str]:
    wanted = [setting for setting in SETTINGS if setting.field in needs]
    return [
        f"{setting.variable} {_MISSING[setting.variable]}"
        for setting in wanted
        if not environment.get(setting.variable, "").strip()
    ]


def _useless(values: Mapping[str, Any]) -> list[str]:
    """Certificates that would protect nothing."""
    url = values.get("broker_url", "")
    certificates = {setting.variable: setting.field for setting in SETTINGS if setting.read is _file}
    given = [variable for variable, name in certificates.items() if name in values]
    problems = []
    if given and url and not url.startswith("amqps:"):
        problems.append(f"{' and '.join(given)} would protect nothing: POSTROAD_BROKER_URL is not amqps://")
    if "broker_key" in values and "broker_cert" not in values:
        problems.append("POSTROAD_BROKER_KEY needs POSTROAD_BROKER_CERT")
    if is_postgres(url) and values.get("vouch") is Vouch.ON:
        problems.append("POSTROAD_VOUCH=on means nothing with POSTROAD_BROKER_URL=postgres:, where no broker vouches")
    return problems


def _strangers(environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    known = {setting.variable.removeprefix(PREFIX) for setting in SETTINGS}
    known |= {name.removeprefix(PREFIX) for name in ELSEWHERE}
    strangers, typos = [], []
    for name in sorted(environment):
        short = name.removeprefix(PREFIX)
        if short == name or short in known or name.startswith(_PRIVATE):
            continue
        # A misspelt setting would silently do nothing: that is an error. Others, such as the variables that
        # Kubernetes makes for a service called "postroad", are only mentioned.
        close = [one for one in sorted(known) if short and one.startswith(short)]
        close = close or difflib.get_close_matches(short, known, n=1, cutoff=0.8)
        if close:
            meant = " or ".join(f"{PREFIX}{one}" for one in close[:3])
            typos.append(f"{name} is not a setting; did you mean {meant}?")
        else:
            strangers.append(name)
    return strangers, typos
