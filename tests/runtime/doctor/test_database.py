"""The doctor on a real database, of which each test breaks one thing that a check looks at."""

from __future__ import annotations

from uuid import uuid4

import pytest
from pydantic import BaseModel

from postroad.consume import consumer
from postroad.events import Subscription
from postroad.runtime.app import App
from postroad.runtime.doctor import Subject
from postroad.runtime.settings import read_settings
from postroad.runtime.wires import Wires
from postroad.testing.postgres import Postgres, identifier
from runtime.doctor.patients import holding, severity


def test_a_sound_database_is_well(examine):
    found = examine(author="pr_author")
    # Other tests' transactions run on the same server.
    judged = {name: severity(rows) for name, rows in found.items() if name not in {"dispatch.floor", "vacuum.horizon"}}
    assert judged.pop("partitions.ahead") == "warning", "test databases have two days"
    assert set(judged.values()) == {"ok"}, judged
    assert {"database.author", "connections", "durability.standby", "outbox.refused", "direct"} <= judged.keys()


# --- roles and rights -----------------------------------------------------------------------------------------------


def test_a_superuser_is_warned_of(examine, database):
    (finding,) = examine(database)["database.role"]
    assert finding.severity == "warning"
    assert "superuser" in finding.found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("GRANT CREATE ON SCHEMA postroad TO {role}", "CREATE on the schema"),
        ("ALTER ROLE {role} CREATEROLE", "CREATEROLE"),
        ("ALTER SCHEMA postroad OWNER TO {role}", "ownership"),
    ],
)  # fmt: skip
def test_a_runtime_role_with_too_many_powers_is_warned_of(examine, postgres: Postgres, database, sql, given, words):
    role = f"pr_mighty_{uuid4().hex[:8]}"
    name = database.rpartition("/")[2]
    postgres.add_role(role)
    try:
        sql(f"GRANT pr_runtime TO {role}; {given.format(role=identifier(role))}")
        (finding,) = examine(postgres.url(name, role))["database.role"]
        assert finding.severity == "warning"
        assert words in finding.found
    finally:
        sql(f"REASSIGN OWNED BY {role} TO postgres; DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(
    ("revoked", "words"),
    [
        ("DELETE ON postroad.outbox", "DELETE on outbox"), ("USAGE ON SEQUENCE postroad.work_token", "work_token"),
        ("USAGE ON SCHEMA postroad", "schema postroad"),
    ],
)  # fmt: skip
def test_rights_that_the_runtime_role_lacks_are_an_error(examine, sql, revoked, words):
    sql(f"REVOKE {revoked} FROM pr_runtime")
    (finding,) = examine()["database.rights"]
    assert finding.severity == "error"
    assert words in finding.found
    assert "migrate --runtime-role" in finding.remedy


def test_an_author_role_that_lacks_a_right_is_an_error(examine, sql):
    sql("REVOKE INSERT ON postroad.outbox FROM pr_author; REVOKE USAGE ON SEQUENCE postroad.event_seq FROM pr_author")
    (finding,) = examine(author="pr_author")["database.author"]
    assert finding.severity == "error"
    assert "INSERT on outbox" in finding.found
    assert "USAGE on event_seq" in finding.found


def test_an_author_role_that_may_more_than_stage_is_warned_of(examine, sql):
    sql("GRANT SELECT ON postroad.event TO pr_author; GRANT DELETE ON postroad.outbox TO pr_author")
    (finding,) = examine(author="pr_author")["database.author"]
    assert finding.severity == "warning"
    assert "SELECT on event" in finding.found
    assert "DELETE on outbox" in finding.found


def test_an_author_role_that_does_not_exist_is_an_error_and_none_is_not_checked(examine):
    assert severity(examine(author="nobody_here")["database.author"]) == "error"
    assert severity(examine()["database.author"]) == "not checked"


# --- schema and URLs ------------------------------------------------------------------------------------------------


def test_a_schema_that_does_not_serve_this_release_is_an_error(examine, sql):
    sql("DELETE FROM postroad.migration")
    (finding,) = examine()["schema"]
    assert finding.severity == "error"
    assert "PR203" in finding.found


def test_a_direct_url_to_another_database_is_an_error(examine, postgres: Postgres, migrated_template):
    other = f"test_{uuid4().hex}"
    url = postgres.create_database(other, migrated_template)
    try:
        postgres.execute("UPDATE postroad.installation SET id = gen_random_uuid()", database=other)
        (finding,) = examine(POSTROAD_DIRECT_URL=url)["direct"]
    finally:
        postgres.drop_database(other)
    assert finding.severity == "error"
    assert "different databases" in finding.found


def test_a_direct_url_to_the_same_database_is_well(examine, database):
    assert severity(examine(POSTROAD_DIRECT_URL=database)["direct"]) == "ok"


# --- connections ----------------------------------------------------------------------------------------------------


def test_a_process_that_takes_more_connections_than_the_database_allows_is_an_error(examine, sql, database):
    name = identifier(database.rpartition("/")[2])
    sql(f"ALTER DATABASE {name} CONNECTION LIMIT 15")
    (finding,) = examine()["connections"]
    assert finding.severity == "error"
    assert "together 16" in finding.found
    assert "the database allows 15" in finding.found
    sql(f"ALTER DATABASE {name} CONNECTION LIMIT 16")
    assert severity(examine()["connections"]) == "ok"
    assert severity(examine(POSTROAD_POOL_SIZE="16")["connections"]) == "error"


def test_a_process_for_which_too_few_connections_are_left_is_warned_of(examine, sql, database, runtime_url):
    sql(f"ALTER DATABASE {identifier(database.rpartition('/')[2])} CONNECTION LIMIT 16")
    with holding(runtime_url):
        (finding,) = examine()["connections"]
    assert finding.severity == "warning"
    assert "1 are taken" in finding.found


def test_the_bill_is_made_for_each_role(examine):
    (finding,) = examine()["connections"]
    assert "dispatch 7, consume 16, work 16, schedule 7, maintain 7, together 16" in finding.found
    assert severity(examine(app=False)["connections"]) == "not checked"


class Order(BaseModel):
    """What the consumer below reads."""

    order: str


def test_the_bill_counts_the_threads_of_def_handlers(runtime_url):
    @consumer(Subscription("orders.order.placed", version=1, model=Order), name="billing.threads", concurrency=5)
    def handle(event, delivery):
        pass

    declarations = App("billing", consumers=[handle]).declarations
    given = {"POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_BROKER_URL": "amqp://guest@localhost"}
    bill = Subject(declarations, Wires(declarations, {}).connections).bill(read_settings(given))
    assert bill["consume"] - bill["maintain"] == 1 + 5  # One to keep what failed, and one for each thread.
