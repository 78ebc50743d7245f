"""`postroad run` as operators meet it: started, refused, told to stop, blocked."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from postroad.asyncpg import within
from postroad.runtime.exits import Exit
from postroad.testing.servers import Postgres, PostgresServer, Rabbit, TcpProxy, free_port
from runtime.processes import APPS, Running, fetch, import_app, postroad

pytestmark = pytest.mark.heavy
_OPEN = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND query NOT LIKE '%pg_stat%'"


@pytest.fixture
def settings(postgres: Postgres, database: str, runtime_url: str, vhost: str) -> dict[str, str]:
    postgres.execute(
        "CREATE TABLE booked (number int); GRANT INSERT ON booked TO pr_runtime", database=database.rpartition("/")[2]
    )
    return {"POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_BROKER_URL": vhost}


@pytest.fixture
def publish(author_url: str) -> Callable[[int], None]:
    return lambda count: asyncio.run(stage_orders(author_url, count))


async def stage_orders(url: str, count: int) -> None:
    """Stage as the App's own producer does: its module is imported here too."""
    placed = import_app("orders").OrderBooked
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        for number in range(count):
            await within(connection).publish(placed(number=number))
    await connection.close()


def booked(postgres: Postgres, database: str) -> tuple[int, int]:
    """How many rows the handler wrote, and how many different ones."""
    rows = postgres.execute("SELECT count(*), count(DISTINCT number) FROM booked", database=database.rpartition("/")[2])
    return int(rows[0][0]), int(rows[0][1])


def count(postgres: Postgres, database: str, table: str, where: str = "true") -> int:
    rows = postgres.execute(
        f"SELECT count(*) FROM postroad.{table} WHERE {where}", database=database.rpartition("/")[2]
    )
    return int(rows[0][0])


def until(condition: Callable[[], bool], within_seconds: float = 30) -> None:
    deadline = time.monotonic() + within_seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- the good road --------------------------------------------------------------------------------------------------


def test_an_app_starts_becomes_ready_carries_an_event_and_stops_with_a_receipt(
    settings: dict[str, str], publish: Callable[[int], None], postgres: Postgres, database: str
) -> None:
    with Running("orders:app", **settings) as app:
        port = app.ready()
        publish(20)
        until(lambda: booked(postgres, database) == (20, 20))
        assert fetch(port, "/health/live")[0] == 200
        services = json.loads(fetch(port, "/health/ready")[1])["services"]
        assert services.keys() == {
            "transport", "installation", "work", "leftovers", "consumer:orders.book", "collector:orders.book",
            "dispatcher", "replay", "maintain",
        }  # fmt: skip
        status, metrics = fetch(port, "/metrics")
        assert status == 200
        assert 'postroad_consumer_messages_total{consumer="orders.book"' in metrics
        assert app.stop() < 10
        assert app.process.returncode == Exit.OK
        assert app.lines[-1]["signal"] == "shutdown_receipt"
        assert (app.lines[-1]["left"], app.lines[-1]["strays"]) == ([], [])
        assert app.plain == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_under_load_nothing_is_lost_or_charged_and_it_is_gone_in_time(
    settings: dict[str, str], publish: Callable[[int], None], postgres: Postgres, database: str, number: signal.Signals
) -> None:
    grace = 4
    with Running("orders:app", ORDERS_MODE="slow", POSTROAD_GRACE_SECONDS=str(grace), **settings) as app:
        app.ready()
        publish(400)
        until(lambda: booked(postgres, database)[0] >= 16)
        assert app.stop(number) < grace + 1
        assert app.process.returncode == Exit.OK
        receipt = app.wait_for("shutdown_receipt")
        assert receipt["abandoned"] == 0
        assert receipt["finished"] + receipt["given_back"] > 0
        assert receipt["seconds"] < grace
        assert (receipt["left"], receipt["strays"]) == ([], [])
    assert booked(postgres, database)[0] < 400
    assert count(postgres, database, "work") == 0
    assert count(postgres, database, "quarantine") == 0
    assert count(postgres, database, "lease", "expires_at > clock_timestamp()") == 0
    with Running("orders:app", **settings) as app:
        until(lambda: booked(postgres, database)[1] == 400)
        assert booked(postgres, database) == (400, 400)
        app.stop()


def test_what_runs_past_two_thirds_of_the_grace_is_cancelled_and_given_back(
    settings: dict[str, str], publish: Callable[[int], None], postgres: Postgres, database: str
) -> None:
    with Running("orders:app", ORDERS_MODE="endless", POSTROAD_GRACE_SECONDS="6", **settings) as app:
        app.ready()
        publish(1)
        until(lambda: bool(_transactions(postgres, database)) and count(postgres, database, "outbox") == 0)
        taken = app.stop()
        assert 4 <= taken < 7
        assert app.process.returncode == Exit.OK
        receipt = app.wait_for("shutdown_receipt")
        assert (receipt["finished"], receipt["given_back"], receipt["abandoned"]) == (0, 1, 0)
    assert count(postgres, database, "inbox") == count(postgres, database, "work") == 0
    with Running("orders:app", **settings) as app:
        until(lambda: booked(postgres, database) == (1, 1))
        app.stop()


def _transactions(postgres: Postgres, database: str) -> list[tuple[str, ...]]:
    return postgres.execute(
        "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction' AND usename = 'pr_runtime'"
        f" AND datname = '{database.rpartition('/')[2]}'"
    )


def test_a_second_signal_skips_to_the_last_step(
    settings: dict[str, str], publish: Callable[[int], None], postgres: Postgres, database: str
) -> None:
    with Running("orders:app", ORDERS_MODE="endless", POSTROAD_GRACE_SECONDS="20", **settings) as app:
        app.ready()
        publish(1)
        until(lambda: bool(_transactions(postgres, database)))
        app.process.send_signal(signal.SIGTERM)
        app.wait_for("shutdown_began")
        assert app.stop() < 4
        assert app.wait_for("shutdown_receipt")["seconds"] < 4


def test_a_handler_that_blocks_the_loop_fails_no_liveness_and_cannot_keep_the_process(
    settings: dict[str, str], publish: Callable[[int], None]
) -> None:
    grace = 2
    with Running("orders:app", ORDERS_MODE="blocks", POSTROAD_GRACE_SECONDS=str(grace), **settings) as app:
        port = app.ready()
        publish(1)
        until(lambda: json.loads(fetch(port, "/health/live")[1])["seconds_since_beat"] > 1)
        assert fetch(port, "/health/live")[0] == 200
        taken = app.stop()
        assert grace <= taken < grace + 1
        assert app.process.returncode == Exit.FORCED
        assert app.wait_for("shutdown_receipt")["abandoned"] == 1


@pytest.mark.sabotage
def test_without_the_watch_of_the_main_thread_a_blocked_loop_keeps_the_process(
    settings: dict[str, str], publish: Callable[[int], None], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import postroad.runtime.serve as serve\nserve.overdue = lambda told: False\nserve._arm = lambda told: None\n"
    )
    given = {**settings, "PYTHONPATH": f"{tmp_path}:{APPS}", "POSTROAD_GRACE_SECONDS": "1", "ORDERS_MODE": "blocks"}
    with Running("orders:app", **given) as app:
        port = app.ready()
        publish(1)
        until(lambda: json.loads(fetch(port, "/health/live")[1])["seconds_since_beat"] > 1)
        app.process.send_signal(signal.SIGTERM)
        with pytest.raises(TimeoutError):
            _gone(app, within=2.5)


def test_should_even_the_main_thread_be_stuck_the_kernels_alarm_ends_the_process(
    settings: dict[str, str], publish: Callable[[int], None], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import postroad.runtime.serve as serve\nserve.overdue = lambda told: False\n"
    )
    given = {**settings, "PYTHONPATH": f"{tmp_path}:{APPS}", "POSTROAD_GRACE_SECONDS": "1", "ORDERS_MODE": "blocks"}
    with Running("orders:app", **given) as app:
        port = app.ready()
        publish(1)
        until(lambda: json.loads(fetch(port, "/health/live")[1])["seconds_since_beat"] > 1)
        assert app.stop() < 2
        assert app.process.returncode == -signal.SIGALRM


def _gone(app: Running, *, within: float) -> None:
    deadline = time.monotonic() + within
    while app.process.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def test_a_signal_during_the_start_ends_it(database: str, vhost: str) -> None:
    hole = f"amqp://guest@127.0.0.1:{free_port()}/"
    with Running("orders:app", POSTROAD_DATABASE_URL=database, POSTROAD_BROKER_URL=hole) as app:
        app.wait_for("health_serving")
        assert app.stop() < 5
        assert app.process.returncode == Exit.OK
        assert app.wait_for("shutdown_receipt")["finished"] == 0


@pytest.mark.parametrize("gone", ["broker", "database"])
def test_what_it_stands_on_may_go_during_the_drain_and_it_is_still_gone_in_time(
    own_postgres: PostgresServer, rabbit: Rabbit, vhost: str, gone: str
) -> None:
    """The broker goes through a severed proxy, the database by a crash."""
    grace = 4
    name = f"drain_{uuid4().hex[:8]}"
    own_postgres.create_database(name)
    postroad("migrate", POSTROAD_DATABASE_URL=own_postgres.url(name))
    own_postgres.execute("CREATE TABLE booked (number int)", database=name)
    with TcpProxy(rabbit.port) as proxy:
        url = rabbit.url(vhost.rpartition("/")[2], port=proxy.port)
        given = {"POSTROAD_DATABASE_URL": own_postgres.url(name), "POSTROAD_BROKER_URL": url}
        with Running("orders:app", ORDERS_MODE="endless", POSTROAD_GRACE_SECONDS=str(grace), **given) as app:
            app.ready()
            asyncio.run(stage_orders(own_postgres.url(name), 5))
            until(lambda: int(own_postgres.execute(_OPEN, database=name)[0][0]) >= 5)
            until(lambda: own_postgres.execute("SELECT count(*) FROM postroad.outbox", database=name) == [("0",)])
            app.process.send_signal(signal.SIGTERM)
            app.wait_for("shutdown_began")
            proxy.cut() if gone == "broker" else own_postgres.kill()
            began = time.monotonic()
            app.process.wait(60)
            assert time.monotonic() - began < grace + 1
            assert app.plain == []
            assert app.wait_for("shutdown_receipt")["finished"] == 0


# --- services -------------------------------------------------------------------------------------------------------


def test_a_service_that_raises_is_reported_and_started_again(settings: dict[str, str]) -> None:
    with Running("orders:app", ORDERS_MODE="faulty", **settings) as app:
        app.wait_for("service_failed", service="faulty", error_type="ConnectionError")
        until(lambda: sum(line.get("signal") == "service_failed" for line in app.lines) >= 2)
        assert app.process.poll() is None
        assert "secret" not in json.dumps(app.lines)
        assert app.stop() < 10


def test_a_stray_exception_of_a_callback_is_reported_and_ends_nothing(settings: dict[str, str]) -> None:
    with Running("orders:app", ORDERS_MODE="stray", **settings) as app:
        app.wait_for("task_failed", error_type="ZeroDivisionError")
        app.ready()
        assert app.stop() < 10
        assert app.plain == []


def test_the_roles_say_what_a_process_does(settings: dict[str, str]) -> None:
    with Running("orders:app", "--only", "dispatch,maintain", **settings) as app:
        port = app.ready()
        assert json.loads(fetch(port, "/health/ready")[1])["services"].keys() == {
            "transport", "installation", "dispatcher", "replay", "maintain",
        }  # fmt: skip
        app.stop()


# --- what is refused at the start -----------------------------------------------------------------------------------


def refused(exit_code: Exit, *words: str, arguments: tuple[str, ...] = ("orders:app",), **settings: str) -> str:
    """Run to the end: one line on standard error with all `words`, no traceback, that exit code."""
    done = postroad("run", *arguments, **settings)
    # What the log says of the topology goes to standard error too.
    lines = [line for line in done.stderr.splitlines() if not line[:4].isdigit() or "topology" not in line]
    assert done.returncode == exit_code, done.stderr
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("postroad: ")
    assert done.stdout == ""
    for word in words:
        assert word in lines[0]
    return lines[0]


def test_every_wrong_setting_is_named_at_once() -> None:
    refused(
        Exit.SETTINGS, "POSTROAD_DATABASE_URL is not set", "POSTROAD_BROKER_URL is not set",
        "POSTROAD_POOL_SIZE is 'x'", "did you mean POSTROAD_GRACE_SECONDS?", "PR201",
        POSTROAD_POOL_SIZE="x", POSTROAD_GRACE_SECOND="3",
    )  # fmt: skip


def test_a_database_in_the_place_of_the_broker_is_one_line(runtime_url: str) -> None:
    refused(
        Exit.SETTINGS, "POSTROAD_BROKER_URL", "`postgres:` alone",
        POSTROAD_DATABASE_URL=runtime_url, POSTROAD_BROKER_URL="postgres://somebody:secret@elsewhere/app",
    )  # fmt: skip


def test_a_wrong_database_password_is_one_line(own_password: str, vhost: str) -> None:
    line = refused(
        Exit.REFUSED, "POSTROAD_DATABASE_URL", "PR303", POSTROAD_DATABASE_URL=own_password, POSTROAD_BROKER_URL=vhost
    )
    assert "wrong-secret" not in line


@pytest.fixture
def own_password(postgres: Postgres, database: str) -> str:
    """A URL that the server refuses."""
    return postgres.url(database.rpartition("/")[2], f"nobody_{uuid4().hex[:6]}", password="wrong-secret")


def test_a_wrong_broker_password_is_one_line(runtime_url: str, vhost: str) -> None:
    wrong = vhost.replace("guest:guest", "guest:wrong-secret")
    assert wrong != vhost
    line = refused(
        Exit.REFUSED, "POSTROAD_BROKER_URL", "PR303", POSTROAD_DATABASE_URL=runtime_url, POSTROAD_BROKER_URL=wrong
    )
    assert "wrong-secret" not in line


def test_a_missing_schema_is_one_line(empty_database: str, vhost: str) -> None:
    refused(Exit.SCHEMA, "postroad migrate", "PR202", POSTROAD_DATABASE_URL=empty_database, POSTROAD_BROKER_URL=vhost)


def test_a_schema_that_is_too_old_is_one_line(postgres: Postgres, database: str, runtime_url: str, vhost: str) -> None:
    postgres.execute("DELETE FROM postroad.migration", database=database.rpartition("/")[2])
    refused(Exit.SCHEMA, "postroad migrate", "PR203", POSTROAD_DATABASE_URL=runtime_url, POSTROAD_BROKER_URL=vhost)


def test_rights_that_are_missing_are_one_line(author_url: str, vhost: str) -> None:
    refused(Exit.REFUSED, "--runtime-role", "PR303", POSTROAD_DATABASE_URL=author_url, POSTROAD_BROKER_URL=vhost)


def test_an_unreachable_database_is_one_line_after_the_start_time_out(vhost: str) -> None:
    url = f"postgresql://u@127.0.0.1:{free_port()}/x"
    refused(
        Exit.UNAVAILABLE, "cannot be reached", "PR301",
        POSTROAD_DATABASE_URL=url, POSTROAD_BROKER_URL=vhost, POSTROAD_START_TIMEOUT="1",
    )  # fmt: skip


def test_an_unreachable_broker_is_one_line_after_the_start_time_out(runtime_url: str) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{free_port()}/"
    refused(
        Exit.UNAVAILABLE, "PR302",
        POSTROAD_DATABASE_URL=runtime_url, POSTROAD_BROKER_URL=url, POSTROAD_START_TIMEOUT="1",
    )  # fmt: skip


def test_a_topology_that_is_missing_is_one_line(runtime_url: str, vhost: str) -> None:
    refused(
        Exit.TOPOLOGY, "'orders.book'", "postroad topology apply", "PR205",
        POSTROAD_DATABASE_URL=runtime_url, POSTROAD_BROKER_URL=vhost,
    )  # fmt: skip


def test_a_queue_declared_otherwise_is_one_line(rabbit: Rabbit, runtime_url: str, vhost: str) -> None:
    name = vhost.rpartition("/")[2]
    declare_classic(rabbit, name, "orders.book")
    refused(
        Exit.TOPOLOGY, "'orders.book'", "PR205",
        POSTROAD_DATABASE_URL=runtime_url, POSTROAD_BROKER_URL=vhost, POSTROAD_TOPOLOGY="apply",
    )  # fmt: skip


def declare_classic(rabbit: Rabbit, vhost: str, queue: str) -> None:
    """Declare a queue with other arguments than ours, as somebody's script would."""
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url(vhost)))
    connection.channel().queue_declare(queue, durable=True)
    connection.close()


def test_a_user_that_may_not_declare_is_one_line(rabbit: Rabbit, runtime_url: str, vhost: str) -> None:
    name = vhost.rpartition("/")[2]
    user = f"reader{uuid4().hex[:6]}"
    url = rabbit.add_user(user, "pw", vhost=name, configure="^$")
    refused(
        Exit.REFUSED, "PR303",
        POSTROAD_DATABASE_URL=runtime_url, POSTROAD_BROKER_URL=url, POSTROAD_TOPOLOGY="apply",
    )  # fmt: skip


def test_a_health_port_that_is_taken_is_one_line(runtime_url: str, vhost: str) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused(
            Exit.SETTINGS, "POSTROAD_HEALTH_PORT", "PR201",
            POSTROAD_DATABASE_URL=runtime_url, POSTROAD_BROKER_URL=vhost,
            POSTROAD_HEALTH_PORT=str(taken.getsockname()[1]),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("nowhere:app", "no 'nowhere'"), ("orders", "write 'orders:app'"), ("orders:nothing", "is nothing"),
        ("orders:MODE", "a str"), ("broken:app", "ZeroDivisionError"), ("twice:app", "PR104"),
    ],
)  # fmt: skip
def test_an_app_that_cannot_be_imported_is_one_line(reference: str, words: str) -> None:
    refused(Exit.USAGE, words, arguments=(reference,))


def test_an_unknown_role_is_one_line() -> None:
    refused(Exit.USAGE, "--only", "'fly'", arguments=("orders:app", "--only", "fly"))
