from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from accounts import AccountOpened, Welcome, count, send_welcome, sign_up

from postroad.testing import BlockingRoad, DeliveryResult

if TYPE_CHECKING:
    from conftest import FakeMailbox


def rows(road: BlockingRoad, sql: str) -> list[tuple[object, ...]]:
    with road.transaction() as tx:
        return tx.execute(sql).fetchall()


def signed_up(road: BlockingRoad, address: str) -> None:
    with psycopg.connect(road.url) as connection:
        sign_up(connection, address)


def test_who_signs_up_gets_a_mail_and_is_counted(road: BlockingRoad, mailbox: FakeMailbox) -> None:
    signed_up(road, "ada@example.org")
    assert [one.event for one in road.published(AccountOpened)] == [AccountOpened(host="example.org")]
    assert [one.request for one in road.enqueued(send_welcome)] == [Welcome(address="ada@example.org")]
    road.drain()
    assert mailbox.sent == ["ada@example.org"]
    assert rows(road, "SELECT * FROM account") == [("ada@example.org", True)]
    assert rows(road, "SELECT * FROM sign_ups") == [("example.org", 1)]


def test_whoever_has_an_account_gets_no_second_mail(road: BlockingRoad, mailbox: FakeMailbox) -> None:
    signed_up(road, "ada@example.org")
    with pytest.raises(psycopg.errors.UniqueViolation):
        signed_up(road, "ada@example.org")
    road.drain()
    assert mailbox.sent == ["ada@example.org"]
    assert rows(road, "SELECT * FROM sign_ups") == [("example.org", 1)]


def test_the_mail_follows_when_the_mailbox_is_back(road: BlockingRoad, mailbox: FakeMailbox) -> None:
    signed_up(road, "ada@example.org")
    mailbox.down = True
    road.drain(raises=False)
    assert rows(road, "SELECT welcomed FROM account") == [(False,)]
    mailbox.down = False
    road.advance(minutes=1)
    road.drain()
    assert mailbox.sent == ["ada@example.org"]


def test_an_event_that_comes_twice_is_counted_once(road: BlockingRoad) -> None:
    event = AccountOpened(host="example.org")
    assert road.deliver(event, to=count, twice=True) == [DeliveryResult.OK, DeliveryResult.DUPLICATE]
    assert rows(road, "SELECT number FROM sign_ups") == [(1,)]
