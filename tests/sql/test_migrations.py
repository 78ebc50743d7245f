"""Migrations: safe to repeat, safe at once, and clear about schemas that do not fit."""

from __future__ import annotations

import asyncio
import re

import asyncpg
import pytest

from postroad.errors import AccessRefused, SchemaError, Unavailable, UsageError
from postroad.sql import migrations
from postroad.sql.migrations import CODE_NUMBER, Migration, Roles, check, migrate, script, steps

ROLES = Roles(runtime="pr_runtime", author="pr_author")
ALL = list(range(1, CODE_NUMBER + 1))


@pytest.fixture
async def superuser(empty_database):
    connection = await asyncpg.connect(empty_database)
    yield connection
    await connection.close()


async def tables(connection: asyncpg.Connection, schema: str) -> dict[tuple[str, str], str]:
    """Columns with their types and defaults, without what depends on the day."""
    rows = await connection.fetch(
        "SELECT table_name, column_name, data_type || coalesce(column_default, '') || is_nullable AS what"
        "  FROM information_schema.columns WHERE table_schema = $1",
        schema,
    )
    return {
        (row["table_name"], row["column_name"]): row["what"].replace(schema, "SCHEMA")
        for row in rows
        if not re.search(r"_\d{8}$", row["table_name"])
    }


def test_steps_are_numbered_from_one_without_a_gap_and_the_code_knows_the_last() -> None:
    assert [step.number for step in steps()] == list(range(1, len(steps()) + 1))
    assert steps()[-1].number == CODE_NUMBER
    assert all(1 <= step.serves <= step.number for step in steps())


async def test_migrating_again_changes_nothing(empty_database, superuser) -> None:
    assert await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=1) == ALL
    before = await tables(superuser, "postroad")
    installation = await superuser.fetchval("SELECT id FROM postroad.installation")
    assert await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=1) == []
    assert await tables(superuser, "postroad") == before
    assert await superuser.fetchval("SELECT id FROM postroad.installation") == installation
    assert await check(superuser, schema="postroad") == CODE_NUMBER


async def test_several_at_once_apply_each_step_once(empty_database, superuser) -> None:
    runs = [migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=2) for _ in range(4)]
    assert sorted(await asyncio.gather(*runs)) == [[], [], [], ALL]
    assert await superuser.fetchval("SELECT count(*) FROM postroad.installation") == 1


async def test_two_schemas_live_side_by_side(empty_database, superuser) -> None:
    for schema in ("orders", "billing"):
        await migrate(empty_database, schema=schema, roles=ROLES, days_ahead=0)
        assert await check(superuser, schema=schema) == CODE_NUMBER
    assert await tables(superuser, "orders") == await tables(superuser, "billing")
    elsewhere = await superuser.fetchval(
        "SELECT count(*) FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace WHERE nspname = 'public'"
    )
    assert elsewhere == 0


async def test_the_printed_script_makes_the_same_schema(empty_database, superuser, postgres) -> None:
    await migrate(empty_database, schema="by_code", roles=ROLES, days_ahead=0)
    postgres.execute(script(schema="by_hand", roles=ROLES), database=empty_database.rpartition("/")[2])
    assert await check(superuser, schema="by_hand") == CODE_NUMBER
    assert await tables(superuser, "by_hand") == await tables(superuser, "by_code")
    assert await migrate(empty_database, schema="by_hand", roles=ROLES, days_ahead=0) == []


async def test_a_missing_schema_is_named_with_its_remedy(superuser) -> None:
    with pytest.raises(SchemaError, match=r"schema 'postroad' is missing; run `postroad migrate`.*PR202"):
        await check(superuser, schema="postroad")


async def test_a_schema_older_than_the_code_needs_is_refused(empty_database, superuser) -> None:
    await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=0)
    await superuser.execute("DELETE FROM postroad.migration")
    with pytest.raises(SchemaError, match=rf"stands at 0, this release needs {CODE_NUMBER}.*PR203"):
        await check(superuser, schema="postroad")


async def test_a_newer_schema_that_still_serves_this_code_is_accepted(empty_database, superuser) -> None:
    await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=0)
    await superuser.execute("INSERT INTO postroad.migration VALUES (99, 'later', 1, 'x')")
    assert await check(superuser, schema="postroad") == 99
    with pytest.raises(SchemaError, match=r"newer than this release.*PR204"):
        await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=0)


async def test_a_newer_schema_that_no_longer_serves_this_code_is_refused(empty_database, superuser) -> None:
    await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=0)
    later = CODE_NUMBER + 1
    await superuser.execute(f"INSERT INTO postroad.migration VALUES ({later + 1}, 'later', {later}, 'x')")
    with pytest.raises(SchemaError, match=rf"serves releases from {later}.*PR204"):
        await check(superuser, schema="postroad")


async def test_an_edited_step_is_noticed(empty_database, superuser) -> None:
    await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=0)
    await superuser.execute("UPDATE postroad.migration SET checksum = 'edited'")
    with pytest.raises(SchemaError, match="migration 1 of schema 'postroad' differs"):
        await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=0)


async def test_the_code_of_the_first_step_goes_on_on_the_whole_schema(empty_database, superuser, monkeypatch) -> None:
    await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=0)
    monkeypatch.setattr(migrations, "CODE_NUMBER", 1)
    assert await check(superuser, schema="postroad") == len(ALL)


async def test_a_schema_of_the_first_step_is_brought_up(empty_database, superuser, monkeypatch) -> None:
    with monkeypatch.context() as before:
        first = steps()[:1]
        before.setattr(migrations, "steps", lambda: first)
        assert await migrate(empty_database, schema="postroad", roles=Roles(), days_ahead=0) == [1]
    with pytest.raises(SchemaError, match="PR203"):
        await check(superuser, schema="postroad")
    assert await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=0) == ALL[1:]
    assert await check(superuser, schema="postroad") == CODE_NUMBER


async def test_a_step_that_fails_leaves_the_schema_as_it_was(empty_database, superuser, monkeypatch) -> None:
    await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=0)
    before = await tables(superuser, "postroad")
    broken = Migration(CODE_NUMBER + 1, "broken", 1, "CREATE TABLE {schema}.half (x int); SELECT 1 / 0;")
    monkeypatch.setattr(migrations, "steps", lambda: (*steps(), broken))
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=0)
    assert await tables(superuser, "postroad") == before
    assert await check(superuser, schema="postroad") == CODE_NUMBER


async def test_a_step_does_not_wait_for_ever_for_an_authors_lock(empty_database, superuser, monkeypatch) -> None:
    await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=0)
    altering = Migration(CODE_NUMBER + 1, "altering", 1, "ALTER TABLE {schema}.outbox ADD COLUMN extra int;")
    monkeypatch.setattr(migrations, "steps", lambda: (*steps(), altering))
    monkeypatch.setattr(migrations, "_LOCK_TIMEOUT", "100ms")
    async with superuser.transaction():
        await superuser.execute("LOCK TABLE postroad.outbox IN ROW EXCLUSIVE MODE")
        with pytest.raises(Unavailable, match="PR304"):
            await migrate(empty_database, schema="postroad", roles=ROLES, days_ahead=0)
    assert await check(superuser, schema="postroad") == CODE_NUMBER


async def test_a_role_that_does_not_exist_is_named(empty_database, superuser) -> None:
    with pytest.raises(UsageError, match="nobody_here"):
        await migrate(empty_database, schema="postroad", roles=Roles(runtime="nobody_here"), days_ahead=0)
    with pytest.raises(SchemaError):
        await check(superuser, schema="postroad")


async def test_a_role_name_is_not_a_place_for_sql() -> None:
    with pytest.raises(UsageError, match="PR107"):
        script(schema="postroad", roles=Roles(author='x"; DROP TABLE y; --'))


async def test_a_user_who_may_not_create_is_told_which_role_to_use(empty_database, postgres) -> None:
    url = postgres.url(empty_database.rpartition("/")[2], "pr_runtime")
    with pytest.raises(AccessRefused, match=r"may not migrate.*owns it.*PR303"):
        await migrate(url, schema="postroad", roles=ROLES, days_ahead=0)
