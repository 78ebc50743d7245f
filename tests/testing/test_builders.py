"""Deliveries and runs by hand, for tests without a database."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from postroad.errors import UsageError
from postroad.failures import Cancel
from postroad.testing import make_blocking_run, make_delivery, make_run
from testing.shop import Gateway, Mail, OrderPlaced, PaymentSeen, bill, note_payment, print_mail, send_mail


class Connection:
    """A fake that remembers."""

    def __init__(self) -> None:
        self.ran: list[tuple[object, ...]] = []

    def execute(self, *statement: object) -> None:
        self.ran.append(statement)


class AsyncConnection(Connection):
    async def execute(self, *statement: object) -> None:  # type: ignore[override]
        self.ran.append(statement)


def test_a_delivery_tells_what_the_envelope_would():
    event, at = OrderPlaced(number="A-1"), datetime(2026, 5, 1, tzinfo=UTC)
    made = make_delivery(event, tx=None, consumer=bill, key="A-1", sequence=3, occurred_at=at, attempt=2)
    assert (made.type, made.version, made.source) == ("sales.order.placed", 1, "urn:postroad:sales")
    assert (made.consumer, made.key, made.sequence, made.occurred_at, made.attempt) == ("billing", "A-1", 3, at, 2)
    assert made.id == made.correlation_id == str(made.message_key)


def test_a_handler_of_a_foreign_event_is_called_with_a_fake():
    tx = Connection()
    note_payment(PaymentSeen(number="P-1"), make_delivery(PaymentSeen(number="P-1"), tx=tx, consumer=note_payment))
    assert tx.ran == [("INSERT INTO paid VALUES (%s)", ["P-1"])]


def test_a_foreign_event_needs_its_consumer():
    with pytest.raises(UsageError, match="is not declared"):
        make_delivery(PaymentSeen(number="P-1"), tx=None)
    with pytest.raises(UsageError, match="does not read PaymentSeen"):
        make_delivery(PaymentSeen(number="P-1"), tx=None, consumer=bill)


def test_a_delivery_lends_resources_and_has_no_leases():
    made = make_delivery(OrderPlaced(number="A-1"), tx=None, resources=[Gateway("a fake")])
    assert made.use(Gateway).name == "a fake"
    with pytest.raises(UsageError, match="has no leases"):
        made.lease("name")


def test_resources_by_type_are_found_by_it():
    fake = Connection()
    event = OrderPlaced(number="A-1")
    assert make_delivery(event, tx=None, resources={Gateway: fake}).use(Gateway) is fake
    assert make_run(send_mail, tx=None, resources={Gateway: fake}).use(Gateway) is fake
    assert make_blocking_run(print_mail, tx=None, resources={Gateway: fake}).use(Gateway) is fake


async def test_a_job_is_called_with_a_run_that_stands_on_nothing():
    tx = AsyncConnection()
    run = make_run(send_mail, tx=tx, attempt=2, key="mail:Ada")
    await send_mail(Mail(receiver="Ada"), run)
    assert tx.ran == [("INSERT INTO mail VALUES ($1)", "Ada")]
    assert run.finished
    assert (run.attempt, run.key, run.job, run.queue) == (2, "mail:Ada", "mail.send", "mail.send")
    with pytest.raises(UsageError, match="is finished by an earlier transaction"):
        async with run.transaction():
            pass


async def test_a_run_keeps_progress_and_lets_locks_be_had():
    run = make_run(send_mail, tx=None)
    await run.progress(0.5, "half")
    async with run.lock("a name"):
        assert run.reported == [(0.5, "half")]
    assert not run.finished
    with pytest.raises(UsageError, match="has no leases"):
        async with run.lease("a name"):
            pass


def test_a_run_can_be_cancelled():
    run = make_run(send_mail, tx=None, cancelled="not needed any more")
    assert run.cancelled
    with pytest.raises(Cancel, match="not needed any more"):
        run.check_cancel()


async def test_a_transaction_that_fails_finishes_nothing():
    run = make_run(send_mail, tx=None)
    with pytest.raises(ZeroDivisionError):
        async with run.transaction(finish=True):
            raise ZeroDivisionError
    assert not run.finished


def test_a_def_job_is_called_with_a_blocking_run():
    tx = Connection()
    run = make_blocking_run(print_mail, tx=tx)
    print_mail(Mail(receiver="Ada"), run)
    run.progress(1.0)
    assert tx.ran == [("INSERT INTO mail VALUES (%s)", ["printed for Ada"])]
    assert run.finished
    assert run.reported == [(1.0, None)]


def test_a_run_is_of_a_job():
    with pytest.raises(UsageError, match="bill is not a job"):
        make_run(bill, tx=None)
