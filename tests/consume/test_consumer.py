from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from consume.bench import Order, OrderPlaced
from postroad.clock import minutes, seconds
from postroad.consume import consumer, consumer_of
from postroad.errors import UsageError
from postroad.events import Subscription

Placed = Subscription("orders.order.placed", version=1, model=Order)
Other = Subscription("orders.order.cancelled", version=3, model=Order)


async def handler(event, delivery):
    return "called"


async def test_the_function_stays_plain():
    async def mine(event, delivery):
        return f"{event}!"

    decorated = consumer(Placed, Other, name="billing.orders", concurrency=3)(mine)
    assert decorated is mine
    assert await decorated("a", None) == "a!"
    value = consumer_of(decorated)
    assert (value.name, value.concurrency, value.prefetch) == ("billing.orders", 3, 96)
    assert [each.type for each in value.subscriptions] == ["orders.order.placed", "orders.order.cancelled"]
    assert value.types["orders.order.cancelled"].version == 3


@pytest.mark.parametrize(("given", "prefetch"), [({}, 256), ({"group": False}, 64), ({"prefetch": 5}, 5)])
def test_what_is_handed_out_in_advance_fits_the_gear(given, prefetch):
    async def mine(event, delivery):
        pass

    assert consumer_of(consumer(Placed, name="x", **given)(mine)).prefetch == prefetch


def test_an_event_class_of_the_same_repository_can_be_consumed():
    async def mine(event, delivery):
        pass

    (subscription,) = consumer_of(consumer(OrderPlaced, name="x")(mine)).subscriptions
    assert subscription == Subscription("orders.order.placed", version=1, model=OrderPlaced)


def plain(event, delivery):
    pass


def generator(event, delivery):
    yield


async def several(event, delivery):
    yield


class Callable:
    def __call__(self, event, delivery):
        pass


class Elsewhere:
    def transactions(self, url, owner, *, size, name): ...


class Threads(Elsewhere):
    threaded = True


async def short(event):
    pass


@pytest.mark.parametrize(
    ("sources", "options", "function", "said"),
    [
        ([], {}, handler, "subscribes to nothing"),
        ([Placed, Placed], {}, handler, "orders.order.placed is subscribed to twice"),
        ([Placed] * 9, {}, handler, "at most 8"),
        ([Order], {}, handler, "neither a Subscription nor"),
        ([Placed], {"name": "Billing"}, handler, "a name is"),
        ([Placed], {"name": "x" * 201}, handler, "a name is"),
        ([Placed], {"name": ""}, handler, "a name is"),
        ([Placed], {"name": 3}, handler, "a name is"),
        ([Placed], {"retry": 5}, handler, "retry is not a Backoff"),
        ([Placed], {"rules": {}}, handler, "rules is not a Rules"),
        ([Placed], {"max_runtime": 30}, handler, r"max_runtime is not a duration; write seconds\(30\)"),
        ([Placed], {"concurrency": True}, handler, "concurrency is not a whole number"),
        ([Placed], {"prefetch": "8"}, handler, "prefetch is not a whole number"),
        ([Placed], {}, generator, "or it yields"),
        ([Placed], {}, several, "or it yields"),
        ([Placed], {}, Callable(), "or it yields"),
        ([Placed], {"on": Elsewhere()}, plain, "needs transactions of threads"),
        ([Placed], {"on": Threads()}, handler, "cannot have transactions of threads"),
        ([Placed], {"on": "session"}, handler, "write on=AsyncSessions"),
        ([Placed], {}, short, "two arguments"),
        ([Placed], {"order": "newest"}, handler, "order is None or 'latest'"),
        ([Placed], {"max_runtime": seconds(0)}, handler, "max_runtime"),
        ([Placed], {"max_runtime": minutes(25)}, handler, "longer work is a job"),
        ([Placed], {"concurrency": 0}, handler, "concurrency"),
        ([Placed], {"prefetch": 0}, handler, "unlimited"),
    ],
)
def test_what_is_wrong_is_refused_at_declaration(sources, options, function, said):
    with pytest.raises(UsageError, match=said) as caught:
        consumer(*sources, **{"name": "billing.orders", **options})(function)
    assert caught.value.code == "PR101"
    assert str(caught.value).count("[PR") == 1


def test_everything_that_is_wrong_is_named_at_once():
    with pytest.raises(UsageError) as caught:
        consumer(Placed, Placed, name="NO", max_runtime=seconds(-1))(generator)
    for said in ("twice", "a name is", "async def", "max_runtime"):
        assert said in str(caught.value)


def test_a_plain_function_is_a_consumer_on_threads():
    assert consumer(Placed, name="x")(plain) is plain
    assert consumer_of(plain).threaded
    assert not consumer_of(consumer(Placed, name="x")(handler)).threaded


def test_a_plain_function_needs_psycopg(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match=r"'billing.orders' has a `def` handler.*postroad\[psycopg\].*PR108"):
        consumer(Placed, name="billing.orders")(plain)
    assert consumer(Placed, name="billing.orders")(handler) is handler


def test_a_function_that_is_no_consumer_is_named():
    with pytest.raises(UsageError, match="short is not a consumer"):
        consumer_of(short)


TYPED = """
from psycopg import Connection
from pydantic import BaseModel
from postroad.consume import Delivery, consumer
from postroad.events import Subscription

class A(BaseModel):
    a: int

class B(BaseModel):
    b: int

class C(BaseModel):
    c: int

SA = Subscription("x.a.done", version=1, model=A)
SB = Subscription("x.b.done", version=1, model=B)

@consumer(SA, SB, name="good")
async def good(event: A | B, delivery: Delivery) -> None:
    await delivery.tx.execute("SELECT 1")
    reveal_type(event)

@consumer(SA, name="alone")
async def alone(event: A, delivery: Delivery) -> None:
    delivery.tx.no_such_method()  # wrong

@consumer(SA, SB, name="narrow")  # wrong
async def narrow(event: A, delivery: Delivery) -> None: ...

@consumer(SA, name="stranger")  # wrong
async def stranger(event: C, delivery: Delivery) -> None: ...

@consumer(SA, SB, name="plain")
def plain(event: A | B, delivery: Delivery[Connection]) -> None:
    delivery.tx.execute("SELECT 1")

@consumer(SA, name="unlike")  # wrong
def unlike(event: B, delivery: Delivery[Connection]) -> None: ...

@consumer(SA, name="answers")  # wrong
def answers(event: A, delivery: Delivery[Connection]) -> int:
    return 1

async def call(a: A, delivery: Delivery[Connection]) -> None:
    plain(a, delivery)
    await plain(a, delivery)  # wrong
"""


def test_what_must_not_type_check_does_not(tmp_path: Path):
    file = tmp_path / "typed.py"
    file.write_text(TYPED)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", root / ".mypy_cache", file],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    wrong = {number for number, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# wrong")}
    assert lines == wrong, done.stdout
