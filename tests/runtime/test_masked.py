"""P14: a password shows nowhere, whichever URL it stands in and whatever goes wrong there."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from postroad.errors import PostroadError
from postroad.runtime.settings import Settings, read_settings
from postroad.sql import manager
from postroad.sql.manager import Manager, connect, masked
from postroad.sql.threaded import PsycopgTransactions
from postroad.testing.servers import free_port
from postroad.transport.amqp.connection import Address, AmqpSettings
from postroad.transport.amqp.management import Management
from runtime.processes import Running, postroad
from support import ThreadOwner

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres, Rabbit

SECRET = "hush-7f3a/9:2@5?1#8"
PIECES = ("hush", "7f3a", "9:2", "2@5", "5?1", "1#8", quote("9:2@5?1#8", safe=""))
QUOTED = quote(SECRET, safe="")


def told(text: str) -> list[str]:
    return [piece for piece in PIECES if piece in text]


@pytest.fixture
def wrong(postgres: Postgres, rabbit: Rabbit, vhost: str, database: str) -> dict[str, dict[str, str]]:
    """Settings in which servers refuse the password, and in which nothing listens."""
    role, port, place = f"masked_{uuid4().hex[:8]}", free_port(), database.rpartition("@")[2]
    postgres.add_role(role, "right")
    hidden = f"user:{QUOTED}@127.0.0.1:{port}"
    return {
        "refused": {
            "POSTROAD_DATABASE_URL": f"postgresql://{role}:{QUOTED}@{place}",
            "POSTROAD_BROKER_URL": rabbit.url(vhost.rpartition("/")[2], "guest", SECRET),
        },
        "away": {
            "POSTROAD_DATABASE_URL": f"postgresql://{hidden}/x", "POSTROAD_BROKER_URL": f"amqp://{hidden}/x",
            "POSTROAD_MANAGEMENT_URL": f"http://{hidden}",
        },
        "in the query": {
            "POSTROAD_DATABASE_URL": f"postgresql://127.0.0.1:{port}/x?user=u&password={QUOTED}",
            "POSTROAD_BROKER_URL": f"amqps://{hidden}/x",
        },
    }  # fmt: skip


COMMANDS = [
    ("doctor", "orders:app"), ("doctor", "orders:app", "--json"), ("topology", "verify", "orders:app", "--json"),
    ("topology", "apply", "orders:app"), ("migrate",), ("maintain",), ("quarantine", "list", "--json"),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_it_not_even_with_tracebacks(
    command: tuple[str, ...], wrong: dict[str, dict[str, str]]
) -> None:
    for settings in wrong.values():
        done = postroad(*command, POSTROAD_DEBUG="1", **settings)
        assert done.returncode != 0
        assert told(done.stdout + done.stderr) == []


@pytest.mark.heavy
@pytest.mark.parametrize("case", ["refused", "away"])
def test_a_process_that_cannot_start_logs_it_nowhere(case: str, wrong: dict[str, dict[str, str]]) -> None:
    given = {**wrong[case], "POSTROAD_START_TIMEOUT": "1", "POSTROAD_DEBUG": "1", "POSTROAD_LOG_LEVEL": "debug"}
    with Running("orders:app", **given) as app:
        assert app.process.wait(30) != 0
        app._reader.join(5)
        assert app.lines or app.plain
        assert told(f"{app.lines}{app.plain}") == []


def whole(error: BaseException) -> str:
    """Everything that a debugger would print of it."""
    return "".join(traceback.format_exception(error))


async def test_no_exception_of_a_driver_carries_it_out(wrong: dict[str, dict[str, str]]) -> None:
    for settings in wrong.values():
        with pytest.raises(PostroadError) as caught:
            await connect(settings["POSTROAD_DATABASE_URL"])
        assert told(whole(caught.value)) == []


UNQUOTED = [
    "user:hush@host/x@y", "user:12/hush@host", "user:12?hush@host/x", "user:12#hush@host/x", "user:12/hu:sh@host/x",
    "user:hush:7f3a@host", "user:9999999hush@host", "user:[hush@host", "user:hush@host:99999/x",
]  # fmt: skip


def said(act: Callable[[], object]) -> str:
    """What comes of it, an error with all that is behind it included."""
    try:
        return str(act())
    except PostroadError as error:
        return whole(error)


@pytest.mark.parametrize("rest", UNQUOTED)
def test_a_password_that_was_not_percent_encoded_does_not_end_up_as_a_host_or_path(rest: str) -> None:
    schemes = {"DATABASE_URL": "postgresql", "BROKER_URL": "amqp", "MANAGEMENT_URL": "http"}
    given = {f"POSTROAD_{name}": f"{scheme}://{rest}" for name, scheme in schemes.items()}
    assert told(said(lambda: read_settings(given))) == []
    assert told(masked(f"postgresql://{rest}")) == []
    assert told(said(lambda: Address.of(f"amqp://{rest}").place)) == []


async def test_nothing_that_holds_a_url_shows_it(database: str) -> None:
    settings = Settings(
        database_url=f"postgresql://u:{QUOTED}@h/d", direct_url=f"postgresql://u:{QUOTED}@h/d",
        broker_url=f"amqp://u:{QUOTED}@h/v", management_url=f"http://u:{QUOTED}@h",
    )  # fmt: skip
    address = Address.of(settings.broker_url)
    pool = await Manager.open(database, schema="postroad", size=1)
    held: list[Any] = [
        settings, replace(settings), address, address.parameters(AmqpSettings(), role="test"), pool,
        Management(settings.management_url or ""),
        PsycopgTransactions(settings.database_url, ThreadOwner(), size=1, name="x"),
    ]  # fmt: skip
    assert told(f"{held!r}{held}") == []
    await pool.close()


@pytest.mark.sabotage
def test_a_url_that_is_printed_as_it_stands_would_be_seen(wrong: dict[str, dict[str, str]], monkeypatch: Any) -> None:
    monkeypatch.setattr(manager, "masked", lambda url: url)
    with pytest.raises(PostroadError) as caught, manager.translated(wrong["away"]["POSTROAD_DATABASE_URL"]):
        raise OSError
    assert told(str(caught.value)) != []
