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
    assert (value.name, value.concurrency, value.prefetch) == ("billing.orders", 3, 24)
    assert [each.type for each in value.subscriptions] == ["orders.order.placed", "orders.order.cancelled"]
    assert value.types["orders.order.cancelled"].version == 3


def test_an_event_class_of_the_same_repository_can_be_consumed():
    async def mine(event, delivery):
        pass

    (subscription,) = consumer_of(consumer(OrderPlaced, name="x")(mine)).subscriptions
    assert subscription == Subscription("orders.order.placed", version=1, model=OrderPlaced)


def plain(event, delivery):
    pass


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
        ([Placed], {}, plain, "not 'async def'"),
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
        consumer(Placed, Placed, name="NO", max_runtime=seconds(-1))(plain)
    for said in ("twice", "a name is", "async def", "max_runtime"):
        assert said in str(caught.value)


def test_a_function_that_is_no_consumer_is_named():
    with pytest.raises(UsageError, match="short is not a consumer"):
        consumer_of(short)


TYPED = """
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
    delivery.tx.no_such_method()  # wrong: line 25

@consumer(SA, SB, name="narrow")  # wrong: line 27
async def narrow(event: A, delivery: Delivery) -> None: ...

@consumer(SA, name="stranger")  # wrong: line 30
async def stranger(event: C, delivery: Delivery) -> None: ...
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
    assert lines == {25, 27, 30}, done.stdout
