"""What is tested: the App, the tables that its database has, and a mailbox that sends nothing."""

from __future__ import annotations

import accounts
import pytest

from postroad.testing import BlockingRoad


class FakeMailbox(accounts.Mailbox):
    def __init__(self) -> None:
        self.down = False
        self.sent: list[str] = []

    def send(self, address: str, text: str) -> None:  # noqa: ARG002
        if self.down:
            raise ConnectionRefusedError
        self.sent.append(address)


@pytest.fixture(scope="session")
def postroad_tables() -> str:
    return accounts.TABLES


@pytest.fixture
def mailbox() -> FakeMailbox:
    return FakeMailbox()


@pytest.fixture
def road(postroad_database: str, mailbox: FakeMailbox) -> BlockingRoad:
    """The App on a database of its own, with the mailbox for the one that its lifespan would yield."""
    return BlockingRoad(accounts.app, postroad_database, resources=[mailbox])
