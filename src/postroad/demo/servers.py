"""What the example runs on: a database for each service and a broker, or one that both share and no broker."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from postroad.demo import provider
from postroad.errors import SettingsError, UsageError
from postroad.runtime.settings import POSTGRES, read_settings
from postroad.sql.migrations import Roles, migrate
from postroad.testing.servers import PostgresServer, RabbitNode, rabbitmq_remedy

SCHEMA: Final = "postroad"
EMBEDDED: Final = "embedded"
AUTO: Final = "auto"
DAYS_AHEAD: Final = 3
PRODUCER_TABLES = """
CREATE TABLE flight (
    flight_id text PRIMARY KEY, carrier text NOT NULL, origin text NOT NULL, destination text NOT NULL,
    delay_minutes integer
);
GRANT INSERT ON flight TO flights_author;
"""
CONSUMER_TABLES = """
CREATE TABLE flight_seen (
    flight_id text NOT NULL, carrier text NOT NULL, day date NOT NULL, delay_minutes integer
);
CREATE TABLE carrier_punctuality (
    carrier text PRIMARY KEY, flights integer NOT NULL, departed integer NOT NULL, cancelled integer NOT NULL,
    dep_delay_minutes bigint NOT NULL, delayed_over_60 integer NOT NULL
);
CREATE TABLE daily_report (
    day date NOT NULL, flights integer NOT NULL, departed integer NOT NULL, cancelled integer NOT NULL,
    dep_delay_minutes bigint NOT NULL, delayed_over_60 integer NOT NULL
);
CREATE TABLE passenger_notice (flight_id text NOT NULL, ref text);
GRANT SELECT, INSERT, UPDATE ON flight_seen, carrier_punctuality, daily_report, passenger_notice TO punctuality_runtime;
"""


@dataclass(frozen=True, slots=True)
class Service:
    """One service's database, as each of its roles reaches it."""

    database: str
    owner: str
    runtime: str
    author: str


def refuse_what_cannot_run(broker: str) -> None:
    """Refuse a broker that is not to be had here, before anything is started.

    Raises:
        UsageError: PR107, it says what to install or to give instead.
    """
    if broker not in {EMBEDDED, AUTO} and not broker.startswith(("amqp://", "amqps://")):
        raise UsageError("PR107", "--broker is embedded, auto, or a URL as amqp://user:password@host:5672/vhost")
    try:
        read_settings({} if broker in {EMBEDDED, AUTO} else {"POSTROAD_BROKER_URL": broker}, needs=frozenset())
    except SettingsError as error:
        raise UsageError("PR107", error.message.replace("POSTROAD_BROKER_URL", "--broker")) from error
    remedy = rabbitmq_remedy() if broker == AUTO else None
    if remedy:
        what = "or give --broker amqp://..., or --broker embedded, which needs PostgreSQL alone"
        raise UsageError("PR107", f"no RabbitMQ can be started here: {remedy}, {what}")


class Servers:
    """The servers of one demo: started on entry, stopped and removed on exit (unless they are to be kept)."""

    def __init__(self, folder: Path, *, broker: str) -> None:
        """Keep everything below `folder`; `broker` is embedded (none), auto (a RabbitMQ of its own), or a URL."""
        self._folder = folder
        self._broker = broker
        self._stack = ExitStack()
        self.rabbit: RabbitNode | None = None
        self.broker_url = POSTGRES if broker == EMBEDDED else broker

    def __enter__(self) -> Self:
        """Start what is needed; ask `refuse_what_cannot_run` before."""
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the servers."""
        self._stack.close()

    def _start(self) -> None:
        self.postgres = self._stack.enter_context(PostgresServer(self._folder / "postgres"))
        if self._broker == AUTO:
            self.rabbit = self._stack.enter_context(RabbitNode(self._folder / "rabbitmq"))
            self.broker_url = self.rabbit.url()
        self.provider = self._stack.enter_context(provider.running(self._folder / "provider.log"))
        self.producer = self._service("flights", PRODUCER_TABLES)
        shared = "flights" if self._broker == EMBEDDED else None  # That transport joins Apps of one database.
        self.consumer = self._service("punctuality", CONSUMER_TABLES, database=shared)

    def _service(self, name: str, tables: str, *, database: str | None = None) -> Service:
        runtime, author = f"{name}_runtime", f"{name}_author"
        self.postgres.add_role(runtime)
        self.postgres.add_role(author)
        if database is None:
            self.postgres.create_database(name)
        place = database or name
        owner = self.postgres.url(place)
        roles = Roles(runtime=runtime, author=author)
        asyncio.run(migrate(owner, schema=SCHEMA, roles=roles, days_ahead=DAYS_AHEAD))
        self.postgres.execute(tables, database=place)
        return Service(place, owner, self.postgres.url(place, runtime), self.postgres.url(place, author))
