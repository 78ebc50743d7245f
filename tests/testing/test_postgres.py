import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from postroad.errors import Unavailable, UsageError
from postroad.testing.postgres import Postgres, PostgresServer
from postroad.testing.process import descendants, wait_until


def test_a_url_names_database_user_and_password():
    server = Postgres("postgresql://postgres@127.0.0.1:4711/postgres")
    assert server.url() == "postgresql://postgres@127.0.0.1:4711/postgres"
    assert server.url("a b", "x@y", password="p/w") == "postgresql://x%40y:p%2Fw@127.0.0.1:4711/a%20b"


def test_statements_return_their_rows_as_text(postgres):
    rows = postgres.execute("SELECT 1, E'two\\nlines', 'with, \"quotes\"'; SELECT generate_series(1, 2)")
    assert rows == [("1", "two\nlines", 'with, "quotes"'), ("1",), ("2",)]


def test_a_failing_statement_is_a_usage_error_with_the_reason(postgres):
    with pytest.raises(UsageError, match=r'relation "nowhere" does not exist'):
        postgres.execute("SELECT * FROM nowhere")


def test_a_server_that_cannot_be_reached_is_unavailable():
    with pytest.raises(Unavailable, match="cannot be reached"):
        Postgres("postgresql://postgres@127.0.0.1:1/postgres").execute("SELECT 1")


async def test_a_fresh_database_is_a_copy_of_its_template(postgres, empty_database):
    name = empty_database.rpartition("/")[2]
    postgres.execute("CREATE TABLE flight AS SELECT 7 AS number", database=name)
    copy = postgres.create_database(f"{name}_copy", name)
    connection = await asyncpg.connect(copy)
    try:
        assert await connection.fetchval("SELECT number FROM flight") == 7
    finally:
        await connection.close()
        postgres.drop_database(f"{name}_copy")
    assert not postgres.execute(f"SELECT 1 FROM pg_database WHERE datname = '{name}_copy'")


async def test_the_runtime_and_author_roles_can_log_in(runtime_url, author_url):
    for url, user in ((runtime_url, "pr_runtime"), (author_url, "pr_author")):
        connection = await asyncpg.connect(url)
        try:
            assert await connection.fetchval("SELECT current_user") == user
        finally:
            await connection.close()


@pytest.mark.heavy
def test_committed_rows_survive_kill_and_restart(own_postgres):
    own_postgres.execute("CREATE TABLE kept AS SELECT 1 AS number")
    pid = own_postgres.pid
    below = descendants(pid)
    assert below
    own_postgres.kill()
    with pytest.raises(Unavailable):
        own_postgres.execute("SELECT 1")
    own_postgres.start()
    assert own_postgres.execute("SELECT number FROM kept") == [("1",)]
    own_postgres.restart()
    assert own_postgres.execute("SELECT number FROM kept") == [("1",)]
    assert own_postgres.pid != pid


@pytest.mark.heavy
async def test_durability_is_on_and_the_socket_answers_too(own_postgres):
    connection = await asyncpg.connect(own_postgres.socket_url())
    try:
        assert await connection.fetchval("SHOW fsync") == "on"
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
    finally:
        await connection.close()


@pytest.mark.heavy
async def test_a_role_with_a_password_must_present_it(own_postgres):
    own_postgres.add_role("guarded", "secret")
    connection = await asyncpg.connect(own_postgres.url(user="guarded", password="secret"))
    await connection.close()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(own_postgres.url(user="guarded", password="wrong"))


@pytest.mark.heavy
def test_settings_reach_the_server_and_close_leaves_nothing(tmp_path):
    server = PostgresServer(settings={"max_connections": "17"})
    with server:
        assert server.execute("SHOW max_connections") == [("17",)]
        folder = Path(server.execute("SHOW data_directory")[0][0]).parent
        pid = server.pid
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["SIGKILL", "exit"])
def test_a_server_does_not_outlive_the_process_that_started_it(how):
    act = "os.kill(os.getpid(), 9)" if how == "SIGKILL" else "os._exit(0)"
    code = f"""
import os
from postroad.testing.servers import PostgresServer
server = PostgresServer()
server.start()
print(server.pid, server.execute("SHOW data_directory")[0][0], flush=True)
{act}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pid, folder = done.stdout.split()
    assert wait_until(lambda: not Path(f"/proc/{pid}/cwd").exists())
    assert wait_until(lambda: not Path(folder).parent.exists())


@pytest.mark.heavy
def test_a_bad_setting_is_reported_with_the_servers_own_words():
    with pytest.raises(Unavailable, match=r"PostgreSQL did not start: .*max_connections"):
        PostgresServer(settings={"max_connections": "many"}).__enter__()
