from __future__ import annotations

import json

import pytest

from postroad.clock import seconds
from postroad.work import kept, store
from work.bench import SCHEMA, VERDICT, put, wire

SECRET = b'{"passenger": "Grace Hopper"}'


async def claim_one(here, worker="worker:a", queue="q"):
    [row] = await here.run(store.claim(SCHEMA, queue=queue, limit=1, worker=worker))
    return row


def fenceless(monkeypatch, name):
    """Sabotage: the query `name` believes every token."""
    text = store.QUERIES.text(name, SCHEMA)
    assert "token = $2" in text
    monkeypatch.setitem(store.QUERIES._rendered, (name, SCHEMA), text.replace("token = $2", "$2::bigint IS NOT NULL"))


# --- delayed ----------------------------------------------------------------------------------------------------


async def test_a_key_is_open_once(here, sql):
    first = await put(here, "k")

    assert first > 0
    assert await put(here, "k") == 0
    assert await put(here, "k", queue="another") > 0
    assert await sql.fetchval("SELECT count(*) FROM work WHERE queue = 'q'") == 1


async def test_a_key_is_free_again_once_its_row_is_finished(here):
    await put(here, "k")
    row = await claim_one(here)
    await here.run(store.finish(SCHEMA, row.id, row.token, outcome="handled"))

    assert await put(here, "k") > row.id


async def test_a_row_comes_back_with_all_that_it_carried(here):
    sent = wire(
        SECRET, headers={"ce-id": "x\x00y", "raw": b"\xff"}, exchange="flights.events", routing_key="flights.a.v1",
        event_type="a",
    )  # fmt: skip
    await here.run(
        store.delay(SCHEMA, queue="q", key=None, wire=sent, verdict=VERDICT, attempt=3, run_in=seconds(0))
    )  # fmt: skip
    row = await claim_one(here)

    assert row.wire == sent
    assert (row.attempt, row.suspect, row.kind, row.key) == (3, 0, "retry", None)
    assert row.age >= seconds(0)


async def test_a_text_that_the_database_cannot_hold_loses_no_message(here):
    bad = wire(b"\x00\xff", content_type="a\x00b", routing_key="\ud800", event_type="t\x00", headers={"\x00": "\x00"})

    assert await here.run(
        store.delay(SCHEMA, queue="q", key="k\x00", wire=bad, verdict=VERDICT, attempt=1, run_in=seconds(0))
    )
    assert (await claim_one(here)).wire.body == b"\x00\xff"


async def test_a_delayed_row_is_not_ready_before_its_time(here, sql):
    await put(here, run_in=60)

    assert await here.run(store.claim(SCHEMA, queue="q", limit=1, worker="w")) == []
    assert await here.run(store.make_due(SCHEMA)) == {}
    await sql.execute("UPDATE work SET run_at = now() - interval '1 second'")
    assert await here.run(store.make_due(SCHEMA)) == {"q": 1}
    assert await claim_one(here)


async def test_putting_off_again_charges_and_clears_suspicion_and_bounds_the_history(here, sql):
    await put(here, "k")
    await sql.execute("UPDATE work SET history = (SELECT jsonb_agg(n) FROM generate_series(1, 20) n)")
    row = await claim_one(here)
    await sql.execute("UPDATE work SET suspect = 2")

    assert await here.run(store.delay_again(SCHEMA, row.id, row.token, verdict=VERDICT, attempt=2, run_in=seconds(9)))
    left = await sql.fetchrow("SELECT *, run_at - now() AS due FROM work")
    history = json.loads(left["history"])
    assert (left["state"], left["attempt"], left["suspect"], left["worker"]) == ("scheduled", 2, 0, None)
    assert seconds(8) < left["due"] <= seconds(9)
    assert len(history) == 20
    assert (history[0], history[1], history[-1]["attempt"]) == (1, 3, 2)


# --- the fence --------------------------------------------------------------------------------------------------

LATE = {
    "finish": lambda row: store.finish(SCHEMA, row.id, row.token, outcome="handled"),
    "delay_again": lambda row: store.delay_again(
        SCHEMA, row.id, row.token, verdict=VERDICT, attempt=9, run_in=seconds(0)
    ),
    "quarantine_claimed": lambda row: store.quarantine_claimed(SCHEMA, row.id, row.token, verdict=VERDICT, attempt=9),
}


async def claimed_twice(here, there):
    """A row that a first worker still believes in, and a second one runs by now."""
    await put(here, "k")
    late = await claim_one(here, worker="worker:gone")
    assert await there.run(store.recover(SCHEMA)) == {"q": 1}
    [now] = await there.run(store.claim_suspect(SCHEMA, queue="q", worker="worker:b"))
    assert now.token > late.token
    return late, now


async def assert_late_write_is_refused(here, there, sql, write):
    late, now = await claimed_twice(here, there)
    assert await here.run(write(late)) is False
    assert await sql.fetchrow("SELECT state, worker, token, attempt FROM work") == ("running", "worker:b", now.token, 1)
    assert await sql.fetchval("SELECT count(*) FROM quarantine") == 0
    assert await there.run(store.finish(SCHEMA, now.id, now.token, outcome="handled")) is True


@pytest.mark.parametrize("name", LATE)
async def test_the_late_write_of_a_worker_that_lost_its_row_changes_nothing(here, there, sql, name):
    await assert_late_write_is_refused(here, there, sql, LATE[name])


@pytest.mark.sabotage
@pytest.mark.parametrize("name", LATE)
async def test_sabotage_without_the_token_the_late_write_counts(here, there, sql, name, monkeypatch):
    fenceless(monkeypatch, name)
    with pytest.raises(AssertionError):
        await assert_late_write_is_refused(here, there, sql, LATE[name])


async def test_a_late_write_that_waits_for_the_recovery_changes_nothing(here, there, database, sql):
    """The late finish meets the row while the recovery's transaction is still open: it waits, and then sees."""
    await put(here, "k")
    row = await claim_one(here, worker="worker:gone")
    async with there.manager.transaction() as connection:
        await connection.execute("UPDATE postroad.work SET token = NULL, worker = NULL, state = 'ready'")
        finishing = here.owner.task(here.run(LATE["finish"](row)), name="late")
        async for _ in blocked(sql):
            break
    assert await finishing is False
    assert await sql.fetchval("SELECT state FROM work") == "ready"


async def blocked(sql):
    while not await sql.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
        pass
    yield True


async def test_giving_back_is_fenced_and_uncharged(here, there, sql):
    late, _ = await claimed_twice(here, there)
    await put(here, "mine")
    mine = await claim_one(here)

    assert await here.run(store.give_back(SCHEMA, [(late.id, late.token), (mine.id, mine.token)])) == 1
    assert await sql.fetchrow("SELECT state, attempt, suspect, token FROM work WHERE id = $1", mine.id) == (
        "ready", 1, 0, None,
    )  # fmt: skip


# --- finished and quarantine ------------------------------------------------------------------------------------


async def test_a_finished_row_leaves_and_is_remembered_without_its_payload(here, sql):
    await put(here, "k", body=SECRET)
    row = await claim_one(here)
    await here.run(store.finish(SCHEMA, row.id, row.token, outcome="dropped", reason="stale"))

    left = await sql.fetchrow("SELECT * FROM finished")
    assert (left["id"], left["outcome"], left["reason"], left["attempt"]) == (row.id, "dropped", "stale", 2)
    assert "Hopper" not in str(dict(left))
    assert await sql.fetchval("SELECT count(*) FROM work") == 0


async def assert_kept_once(here, sql):
    async def keep(key, body):
        return await here.run(store.quarantine(SCHEMA, queue="q", key=key, wire=wire(body), verdict=VERDICT))

    assert await keep("k", b"1") is True
    assert await keep("k", b"2") is False
    assert await keep(None, b"1") is True
    assert await keep(None, b"1") is False
    assert await keep(None, b"2") is True
    await sql.execute("UPDATE quarantine SET resolved_at = now()")
    assert await keep("k", b"1") is True
    assert await keep(None, b"1") is True


async def test_quarantined_twice_is_kept_once_by_key_or_by_bytes(here, sql):
    await assert_kept_once(here, sql)


async def test_messages_without_identity_are_told_apart_by_all_that_they_carry_but_not_by_their_way(here, sql):
    async def keep(**fields):
        return await here.run(store.quarantine(SCHEMA, queue="q", key=None, wire=wire(b"1", **fields), verdict=VERDICT))

    assert await keep() is True
    for fields in (
        {"headers": {"ce-id": "order-1", "a": 1}}, {"headers": {"ce-id": "order-2"}}, {"headers": {"x-mine": 1}},
        {"content_type": "text/json"}, {"exchange": "shop.events"}, {"routing_key": "shop.order.placed.v1"},
    ):  # fmt: skip
        assert await keep(**fields) is True
        assert await keep(**fields) is False
    again = {"a": 1, "ce-id": "order-1", "x-delivery-count": 2, "x-death": [{"count": 1}], "x-first-death-queue": "q"}
    assert await keep(headers=again) is False


async def test_claimed_rows_without_a_key_never_stand_for_one_another(here, sql):
    for _ in range(2):
        work = store.delay(
            SCHEMA, queue="q", key=None, wire=wire(), verdict=VERDICT, attempt=1, run_in=seconds(0), kind="job"
        )
        await here.run(work)
        row = await claim_one(here)
        assert await here.run(store.quarantine_claimed(SCHEMA, row.id, row.token, verdict=VERDICT, attempt=2))
    assert await sql.fetchval("SELECT count(*) FROM quarantine WHERE key IS NULL") == 2


@pytest.mark.sabotage
@pytest.mark.parametrize("index", ["quarantine_open_key", "quarantine_open_digest"])
async def test_sabotage_without_the_unique_index_quarantine_doubles(here, sql, index):
    await sql.execute(f"DROP INDEX {index}")
    with pytest.raises(AssertionError):
        await assert_kept_once(here, sql)


async def test_a_claimed_row_moves_into_quarantine_with_its_history(here, sql):
    await put(here, "k", body=SECRET)
    row = await claim_one(here)
    assert await here.run(store.quarantine_claimed(SCHEMA, row.id, row.token, verdict=VERDICT, attempt=2))

    left = await sql.fetchrow("SELECT * FROM quarantine")
    assert (left["kind"], left["key"], left["body"], left["class"]) == ("delivery", "k", SECRET, "transient")
    assert [entry["attempt"] for entry in json.loads(left["history"])] == [1, 2]
    assert "Hopper" not in left["history"]
    assert await sql.fetchval("SELECT count(*) FROM work") == 0


async def test_a_claimed_row_that_is_kept_already_leaves_all_the_same(here, sql):
    await put(here, "k")
    await here.run(store.quarantine(SCHEMA, queue="q", key="k", wire=wire(), verdict=VERDICT))
    row = await claim_one(here)

    assert await here.run(store.quarantine_claimed(SCHEMA, row.id, row.token, verdict=VERDICT, attempt=2))
    assert await sql.fetchval("SELECT count(*) FROM quarantine") == 1
    assert await sql.fetchval("SELECT count(*) FROM work") == 0


async def test_the_list_of_quarantine_shows_no_payload_and_no_resolved_rows(here, sql):
    for queue in ("a", "a", "b"):
        await here.run(
            store.quarantine(SCHEMA, queue=queue, key=None, wire=wire(SECRET + queue.encode()), verdict=VERDICT)
        )
        await sql.execute("UPDATE quarantine SET resolved_at = now() WHERE queue = 'b'")
    await here.run(
        store.quarantine(SCHEMA, queue="c", key="k", wire=wire(SECRET, headers={"p": "Hopper"}), verdict=VERDICT)
    )

    found = await here.run(kept.listed(SCHEMA, kept.Chosen()))
    assert [row.queue for row in found] == ["c", "a"]
    assert (found[0].failure, found[0].code, found[0].size) == ("transient", "gateway", len(SECRET))
    assert "Hopper" not in repr(found)
    assert [row.queue for row in await here.run(kept.listed(SCHEMA, kept.Chosen(queue="a"), limit=5))] == ["a"]
    assert [(depth.queue, depth.count) for depth in await here.run(store.quarantine_state(SCHEMA))] == [
        ("a", 1),
        ("c", 1),
    ]


# --- recovery ---------------------------------------------------------------------------------------------------


async def test_rows_of_a_living_worker_are_left_alone(here, sql):
    worker = await here.lease()
    await put(here)
    await claim_one(here, worker=worker)

    assert await here.run(store.recover(SCHEMA)) == {}
    assert await sql.fetchval("SELECT state FROM work") == "running"


async def test_a_dead_workers_token_is_advanced_before_its_rows_are_taken(here, sql):
    worker = await here.lease()
    await put(here)
    row = await claim_one(here, worker=worker)
    await sql.execute("UPDATE lease SET expires_at = now() - interval '1 second'")
    before = await sql.fetchval("SELECT token FROM lease")

    assert await here.run(store.recover(SCHEMA)) == {"q": 1}
    assert await sql.fetchrow("SELECT token, holder FROM lease") == (before + 1, None)
    assert await sql.fetchrow("SELECT state, attempt, suspect, token, worker FROM work WHERE id = $1", row.id) == (
        "ready", 1, 1, None, None,
    )  # fmt: skip
    assert await here.run(store.recover(SCHEMA)) == {}


async def test_only_a_suspect_that_ran_alone_is_charged_for_the_crash(here, sql):
    await put(here)
    await claim_one(here, worker="worker:gone")
    await here.run(store.recover(SCHEMA))
    assert await here.run(store.claim(SCHEMA, queue="q", limit=9, worker="w")) == []
    await here.run(store.claim_suspect(SCHEMA, queue="q", worker="worker:gone-too"))
    await here.run(store.recover(SCHEMA))

    assert await sql.fetchrow("SELECT attempt, suspect FROM work") == (2, 2)
