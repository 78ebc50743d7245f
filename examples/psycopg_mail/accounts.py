"""Accounts: somebody signs up, gets a mail, and is counted."""

from __future__ import annotations

import os
import smtplib
from collections.abc import AsyncGenerator
from email.message import EmailMessage
from typing import Any

import psycopg
from pydantic import BaseModel, Field

from postroad import App, Backoff, BlockingRun, Delivery, Producer, consumer, job, seconds
from postroad.psycopg import within

accounts = Producer("accounts")

TABLES = """
CREATE TABLE account (address text PRIMARY KEY, welcomed boolean NOT NULL DEFAULT false);
CREATE TABLE sign_ups (host text PRIMARY KEY, number bigint NOT NULL);
"""


@accounts.event("account.opened", version=1)
class AccountOpened(BaseModel):
    """Somebody signed up."""

    host: str = Field(description="the host of the mail address, such as example.org")


class Welcome(BaseModel):
    address: str


class Mailbox:
    """Where mail goes out; tests put another in its place."""

    def send(self, address: str, text: str) -> None:
        message = EmailMessage()
        message["To"], message["From"], message["Subject"] = address, "hello@example.org", "Welcome"
        message.set_content(text)
        with smtplib.SMTP(os.environ.get("SMTP_HOST", "localhost"), timeout=10) as server:
            server.send_message(message)


@job("accounts.welcome", retry=Backoff(first=seconds(30), attempts=5))
def send_welcome(request: Welcome, run: BlockingRun) -> None:
    # A crash after this line and before the commit sends the mail again: outside of the database, at least once.
    run.use(Mailbox).send(request.address, "Welcome!")
    with run.transaction(finish=True) as tx:
        tx.execute("UPDATE account SET welcomed = true WHERE address = %s", (request.address,))


@consumer(AccountOpened, name="accounts.statistics")
def count(event: AccountOpened, delivery: Delivery[psycopg.Connection[Any]]) -> None:
    sql = "INSERT INTO sign_ups VALUES (%s, 1) ON CONFLICT (host) DO UPDATE SET number = sign_ups.number + 1"
    delivery.tx.execute(sql, (event.host,))


def sign_up(connection: psycopg.Connection[Any], address: str) -> None:
    """Open an account; the event and the mail's job commit with it, or none of them."""
    with connection.transaction():
        connection.execute("INSERT INTO account (address) VALUES (%s)", (address,))
        host = address.rpartition("@")[2]
        within(connection).publish(AccountOpened(host=host), key=host)
        within(connection).enqueue(send_welcome, Welcome(address=address))


async def resources() -> AsyncGenerator[Mailbox, None]:
    yield Mailbox()


app = App("accounts", publishes=[accounts], consumers=[count], jobs=[send_welcome], lifespan=resources)


if __name__ == "__main__":
    with psycopg.connect(os.environ["OWNER_URL"]) as owner:
        owner.execute(TABLES)
