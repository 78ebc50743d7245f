from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.errors import UsageError
from postroad.transport.topology import Binding, Exchange, Queue, Topology

NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,20}", fullmatch=True)
TYPES = st.from_regex(r"[a-z][a-z0-9_]{0,10}\.[a-z]{1,10}\.[a-z]{1,10}", fullmatch=True)


def test_a_producer_has_a_topic_exchange_and_a_direct_one_for_replay() -> None:
    assert Topology.of(publishes=["shop"]) == Topology(
        exchanges=(Exchange("shop.events", "topic"), Exchange("shop.replay", "direct"))
    )


def test_a_consumer_has_its_queue_with_every_argument_that_decides_loss() -> None:
    topology = Topology.of(consumers=[("billing.invoice", ["shop.order.placed", "shop.order.paid"])])
    assert [(queue.name, dict(queue.arguments)) for queue in topology.queues] == [
        (
            "billing.invoice",
            {
                "x-queue-type": "quorum",
                "x-dead-letter-exchange": "postroad.dlx",
                "x-dead-letter-routing-key": "billing.invoice",
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
                "x-delivery-limit": 10000,
            },
        ),
        (
            "billing.invoice.dlq",
            {"x-queue-type": "quorum", "x-overflow": "reject-publish", "x-delivery-limit": 10000},
        ),
    ]
    assert topology.bindings == (
        Binding("shop.events", "billing.invoice", "shop.order.placed.*"),
        Binding("shop.events", "billing.invoice", "shop.order.paid.*"),
        Binding("shop.replay", "billing.invoice", "billing.invoice"),
        Binding("postroad.dlx", "billing.invoice.dlq", "billing.invoice"),
    )


def test_a_consumer_brings_the_exchanges_of_owners_that_have_not_deployed_yet() -> None:
    topology = Topology.of(publishes=["billing"], consumers=[("billing.invoice", ["shop.order.placed"])])
    assert Exchange("shop.events", "topic", owned=False) in topology.exchanges
    assert Exchange("shop.replay", "direct", owned=False) in topology.exchanges
    assert Exchange("billing.events", "topic", owned=True) in topology.exchanges


def test_a_single_active_consumer_is_one_only_where_asked() -> None:
    consumers = [("one", ["shop.order.placed"]), ("two", ["shop.order.placed"])]
    queues = {q.name: q.arguments for q in Topology.of(consumers=consumers, single_active=["two"]).queues}
    assert "x-single-active-consumer" not in queues["one"]
    assert queues["two"]["x-single-active-consumer"] is True


@pytest.mark.parametrize("name", ["", "a*", "a#b", "a b", "ä", "amq.mine", ".a", "x" * 252])
def test_a_name_that_cannot_be_declared_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="PR101"):
        Topology.of(publishes=[name])
    with pytest.raises(UsageError, match="PR101"):
        Topology.of(consumers=[(name, ["shop.order.placed"])])


@given(st.lists(NAMES, max_size=4), st.dictionaries(NAMES, st.lists(TYPES, max_size=4), max_size=4))
def test_every_binding_has_both_its_ends(publishes: list[str], consumers: dict[str, list[str]]) -> None:
    topology = Topology.of(publishes=publishes, consumers=list(consumers.items()))
    exchanges = [exchange.name for exchange in topology.exchanges]
    queues = [queue.name for queue in topology.queues]
    assert len(set(exchanges)) == len(exchanges)
    assert len(set(queues)) == len(queues)
    assert {binding.exchange for binding in topology.bindings} <= set(exchanges)
    assert {binding.queue for binding in topology.bindings} <= set(queues)
    assert len(set(topology.bindings)) == len(topology.bindings)


def test_it_is_shown_as_json_and_as_markdown() -> None:
    topology = Topology.of(publishes=["billing"], consumers=[("billing.invoice", ["shop.order.placed"])])
    shown = json.loads(json.dumps(topology.as_json()))
    assert shown["bindings"][0] == {
        "exchange": "shop.events", "queue": "billing.invoice", "routing_key": "shop.order.placed.*",
    }  # fmt: skip
    assert shown["exchanges"][2] == {"name": "shop.events", "type": "topic", "owned": False}
    text = topology.to_markdown()
    assert "| shop.events | topic | yes |" in text
    assert "| shop.events | shop.order.placed.* | billing.invoice |" in text
    assert Topology().to_markdown() == ""


def test_a_queue_of_another_owner_stands_alone_whatever_its_name() -> None:
    topology = Topology.of(standing=["OLD OUT/ä*", "OLD OUT/ä*"])
    assert topology.queues == (Queue("OLD OUT/ä*", owned=False),)
    assert (topology.exchanges, topology.bindings) == ((), ())
    assert topology.as_json()["queues"] == [{"name": "OLD OUT/ä*", "arguments": {}, "owned": False}]
    assert "| OLD OUT/ä* | another's |" in topology.to_markdown()
