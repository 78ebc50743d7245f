"""The doctor on a real broker with its management API, of which each test breaks one thing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener
from uuid import uuid4

import pytest

from postroad.audit import Chosen
from postroad.runtime.doctor import examine_management
from postroad.runtime.doctor.managed import judge, judge_timeout
from postroad.runtime.operations import apply_topology, compare_topology, recorded
from postroad.runtime.settings import Settings
from postroad.transport.amqp.admin import Session
from postroad.transport.amqp.connection import Address, AmqpSettings
from postroad.transport.amqp.management import Management, Policies, SeenQueue, read_vhost
from runtime.doctor.patients import SUBJECT, by_name, severity
from runtime.processes import postroad

pytestmark = pytest.mark.heavy
TOPOLOGY = SUBJECT.topology


class Host:
    """A virtual host with the App's topology on it, to be broken."""

    def __init__(self, node):
        self.node, self.name = node, f"doctor-{uuid4().hex[:8]}"
        self.url = node.add_vhost(self.name)
        self.settings = Settings(broker_url=self.url, management_url=node.management_url())
        asyncio.run(apply_topology(self.settings, TOPOLOGY, by="ada"))

    def call(self, method, *arguments, **options):
        async def one():
            async with Session(Address.of(self.url), AmqpSettings()) as session:
                return await session.call(method, *arguments, **options)

        return asyncio.run(one())

    def policy(self, pattern, definition, *, to="queues"):
        """Set a policy, as an operator does."""
        body = json.dumps({"pattern": pattern, "definition": definition, "apply-to": to}).encode()
        base = urlsplit(self.node.management_url())
        url = f"http://{base.hostname}:{base.port}/api/policies/{quote(self.name)}/test"
        headers = {**Management(self.node.management_url())._headers, "Content-Type": "application/json"}
        with build_opener(ProxyHandler({})).open(Request(url, body, headers, method="PUT"), timeout=10) as answer:
            assert answer.status in {201, 204}

    def look(self, **changed):
        settings = Settings(**{"broker_url": self.url, "management_url": self.node.management_url(), **changed})
        return by_name(examine_management(settings, SUBJECT))


@pytest.fixture
def host(managed):
    made = Host(managed)
    yield made
    managed.drop_vhost(made.name)


def only(found, name):
    (finding,) = found[name]
    return finding


def test_what_was_applied_is_well(host):
    found = host.look()
    assert {name: severity(rows) for name, rows in found.items()} == {
        "broker.rights": "note", "topology.bindings": "ok", "topology.foreign": "ok", "topology.exchanges": "ok",
        "topology.orphans": "ok", "queue.arguments": "ok", "queue.delivery-limit": "ok",
        "queue.consumer-timeout": "not checked", "queue.policy": "ok",
    }  # fmt: skip
    assert compare_topology(host.settings, TOPOLOGY) == []


@pytest.mark.parametrize("binding", TOPOLOGY.bindings, ids=lambda one: one.exchange)
def test_a_removed_binding_is_an_error(host, binding):
    host.call("queue_unbind", binding.queue, binding.exchange, binding.routing_key)
    finding = only(host.look(), "topology.bindings")
    assert finding.severity == "error"
    assert f"{binding.exchange} -[{binding.routing_key}]-> {binding.queue} is missing" in finding.found


def test_topology_verify_sees_bindings_where_the_url_is_given(host):
    host.call("queue_unbind", "orders.book", "orders.events", "orders.order.booked.*")
    given = {"POSTROAD_BROKER_URL": host.url}
    assert postroad("topology", "verify", "orders:app", **given).returncode == 0
    given["POSTROAD_MANAGEMENT_URL"] = host.node.management_url()
    done = postroad("topology", "verify", "orders:app", "--json", **given)
    assert done.returncode == 1
    assert [one["kind"] for one in json.loads(done.stdout)["differences"]] == ["binding"]


def test_a_binding_that_is_put_back_is_recorded_and_what_changes_nothing_is_not(host, runtime_url):
    settings = replace(host.settings, database_url=runtime_url)
    host.call("exchange_declare", "strange", exchange_type="topic")
    host.call("queue_bind", "orders.book", "strange", "x.#")
    asyncio.run(apply_topology(settings, TOPOLOGY, by="ada"))
    host.call("queue_unbind", "orders.book", "orders.events", "orders.order.booked.*")
    for _ in range(2):
        assert asyncio.run(apply_topology(settings, TOPOLOGY, by="ada")) is None
    (act,) = asyncio.run(recorded(settings, Chosen()))
    assert (act.act, act.items, act.before) == (
        "topology.apply", 1, {"lacking": ["binding orders.events -[orders.order.booked.*]-> orders.book"]},
    )  # fmt: skip


def test_a_foreign_binding_is_warned_of(host):
    host.call("exchange_declare", "strange", exchange_type="topic")
    host.call("queue_bind", "orders.book", "strange", "x.#")
    host.call("exchange_bind", "orders.events", "strange", "y.#")
    found = host.look()["topology.foreign"]
    assert [(one.severity, one.found) for one in found] == [
        ("warning", "strange -[x.#]-> orders.book"), ("warning", "strange -[y.#]-> orders.events"),
    ]  # fmt: skip


def test_queues_that_nobody_consumes_are_warned_of(host):
    host.call("queue_declare", "old", durable=True)
    host.call("queue_bind", "old", "orders.events", "#")
    host.call("queue_declare", "gone.dlq", durable=True)
    found = [one.found for one in host.look()["topology.orphans"]]
    assert found == [
        "queue 'gone.dlq' is the dead letter queue of a queue that is gone",
        "queue 'old' gets events from orders.events and has no consumer",
    ]


def test_a_reconciliation_finds_what_stands_for_nobody_on_a_broker(host, runtime_url):
    host.call("queue_declare", "old", durable=True)
    host.call("queue_bind", "old", "orders.events", "#")
    given = {"POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_BROKER_URL": host.url}
    given["POSTROAD_MANAGEMENT_URL"] = host.node.management_url()
    done = postroad("reconcile", "run", "orders:app", "--only", "postroad.topology", "--json", **given)
    assert (done.returncode, json.loads(done.stdout)[0]["extra"]) == (1, 1), done.stderr
    shown = postroad("reconcile", "drift", "--fingerprints", **given).stdout
    assert "queue old" in shown
    assert "gets events from orders.events and has no consumer" in shown


@pytest.mark.parametrize("argument", ["x-dead-letter-routing-key", "x-overflow", "x-dead-letter-strategy"])
def test_an_argument_that_decides_loss_and_is_missing_is_an_error(host, argument):
    queue = TOPOLOGY.queues[0]
    arguments = {name: value for name, value in queue.arguments.items() if name != argument}
    host.call("queue_delete", queue.name)
    host.call("queue_declare", queue.name, durable=True, arguments=arguments)
    finding = host.look()["queue.arguments"][0]
    assert finding.severity == "error"
    assert f"{argument} unset, declared" in finding.found


def test_a_classic_queue_and_one_that_expires_are_errors(host):
    host.call("queue_delete", "orders.book")
    host.call("queue_declare", "orders.book", durable=True, arguments={"x-expires": 60_000})
    found = " ".join(one.found for one in host.look()["queue.arguments"])
    assert "x-queue-type 'classic', declared 'quorum'" in found
    assert "x-expires 60000, declared unset" in found


@pytest.mark.parametrize(("limit", "judged"), [(3, "error"), (500, "warning"), (20_000, "ok")])
def test_a_delivery_limit_by_policy_counts_where_it_is_smaller(host, limit, judged):
    host.policy(r"^orders\.book$", {"delivery-limit": limit})
    assert only(host.look(), "queue.delivery-limit").severity == judged


def test_without_a_delivery_limit_the_brokers_default_is_an_error(host):
    queue = TOPOLOGY.queues[0]
    arguments = {name: value for name, value in queue.arguments.items() if name != "x-delivery-limit"}
    host.call("queue_delete", queue.name)
    host.call("queue_declare", queue.name, durable=True, arguments=arguments)
    finding = only(host.look(), "queue.delivery-limit")
    said = ("none", "the broker's default of 20")  # before 4.0, and since
    assert (finding.severity, finding.found.removeprefix("queue 'orders.book': ")) in [("error", each) for each in said]


@pytest.mark.parametrize(
    ("definition", "judged"),
    [({"message-ttl": 1000}, "error"), ({"expires": 9000}, "error"), ({"max-length": 9}, "note")],
)
def test_policies_that_lose_messages_are_told(host, definition, judged):
    host.policy(r"^orders\.", definition)
    assert {str(one.severity) for one in host.look()["queue.policy"]} == {judged}


@pytest.mark.parametrize(
    ("timeout", "judged"), [(20_000, "error"), (30_000, "error"), (120_000, "warning"), (1_800_000, "ok")]
)  # fmt: skip
def test_a_consumer_timeout_by_argument_is_held_against_max_runtime_and_prefetch(host, timeout, judged):
    queue = TOPOLOGY.queues[0]
    host.call("queue_delete", queue.name)
    arguments = {**queue.arguments, "x-consumer-timeout": timeout}
    host.call("queue_declare", queue.name, durable=True, arguments=arguments)
    assert only(host.look(), "queue.consumer-timeout").severity == judged


@pytest.mark.parametrize(("timeout", "judged"), [(20_000, "error"), (120_000, "warning"), (1_800_000, "ok")])
def test_a_consumer_timeout_policy_counts_too(timeout, judged):
    # RabbitMQ knows the policy from 3.12 on; older nodes refuse to set it.
    queue = SeenQueue(
        "orders.book", durable=True, arguments={"x-consumer-timeout": 3_600_000}, policy={"consumer-timeout": timeout}
    )
    assert judge_timeout(SUBJECT.consumers[0], queue).severity == judged


def test_an_alternate_exchange_by_policy_is_an_error(host):
    host.policy(r"^orders\.events$", {"alternate-exchange": "amq.fanout"}, to="exchanges")
    finding = only(host.look(), "topology.exchanges")
    assert finding.severity == "error"
    assert "'amq.fanout'" in finding.found


@pytest.mark.parametrize(
    ("rights", "judged", "words"),
    [
        ({"write": r"^orders\.", "read": r"^orders\."}, "ok", "its own"),
        ({"write": "", "read": r"^orders\."}, "error", "write on 'orders.events'"),
        ({"write": r"^orders\.", "read": "^none$"}, "error", "read on 'orders.book'"),
        ({"write": ".*", "read": ".*"}, "note", "any exchange"),
    ],
)  # fmt: skip
def test_the_rights_of_the_brokers_user(host, rights, judged, words):
    user = f"user-{uuid4().hex[:8]}"
    url = host.node.add_user(user, "pw", vhost=host.name, configure="", **rights)
    finding = only(host.look(broker_url=url), "broker.rights")
    assert finding.severity == judged
    assert words in finding.found


def test_an_api_user_without_the_tag_leaves_rights_not_checked(host):
    user = f"watch-{uuid4().hex[:8]}"
    host.node.add_user(user, "pw", vhost=host.name, tags=["management"])
    found = host.look(management_url=host.node.management_url(user, "pw"))
    assert only(found, "broker.rights").severity == "not checked"
    assert only(found, "topology.bindings").severity == "ok"
    found = host.look(management_url=host.node.management_url(user, "wrong"))
    assert {severity(rows) for rows in found.values()} == {"not checked"}
    assert "PR303" in only(found, "topology.bindings").found


def test_the_doctor_reads_all_of_it_from_the_command_line(host, runtime_url):
    given = {
        "POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_BROKER_URL": host.url,
        "POSTROAD_MANAGEMENT_URL": host.node.management_url(),
    }  # fmt: skip
    assert postroad("doctor", "orders:app", **given).returncode == 0
    host.policy(r"^orders\.book$", {"delivery-limit": 3})
    done = postroad("doctor", "orders:app", "--json", **given)
    assert done.returncode == 1
    errors = [one for one in json.loads(done.stdout)["findings"] if one["severity"] == "error"]
    assert [(one["name"], one["found"]) for one in errors] == [("queue.delivery-limit", "queue 'orders.book': 3")]


def test_a_missing_dead_letter_exchange_argument_and_a_limit_of_none_are_errors(host):
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": -1}
    seen = read_vhost(host.node.management_url(), vhost=host.name, user="guest")
    queue = SeenQueue("orders.book", durable=True, arguments=arguments, policy={})
    found = by_name(judge(TOPOLOGY, replace(seen, queues={"orders.book": queue}), consumers=SUBJECT.consumers))
    assert "queue 'orders.book': none" in found["queue.delivery-limit"][0].found
    assert any("x-dead-letter-exchange unset" in one.found for one in found["queue.arguments"])


def test_policies_that_may_not_be_read_are_not_checked(host):
    seen = read_vhost(host.node.management_url(), vhost=host.name, user="guest")
    hidden = Policies([], [], readable=False).of("orders.book", "queues")
    queues = {name: replace(queue, policy=hidden) for name, queue in seen.queues.items()}
    exchanges = {name: replace(exchange, policy=hidden) for name, exchange in seen.exchanges.items()}
    found = by_name(judge(TOPOLOGY, replace(seen, queues=queues, exchanges=exchanges), consumers=SUBJECT.consumers))
    assert {str(one.severity) for one in found["queue.policy"]} == {"not checked"}
    assert "not checked" in {str(one.severity) for one in found["topology.exchanges"]}
    assert only(found, "queue.delivery-limit").severity == "ok"


def test_an_operator_policy_wins_and_of_numbers_the_smaller():
    given = [
        {"pattern": "^a", "apply-to": "all", "priority": 1, "definition": {"delivery-limit": 50, "expires": 9}},
        {"pattern": "^a", "apply-to": "quorum_queues", "priority": 2, "definition": {"delivery-limit": 70}},
        {"pattern": "^a", "apply-to": "exchanges", "priority": 3, "definition": {"alternate-exchange": "x"}},
    ]
    operators = [{"pattern": "", "apply-to": "queues", "priority": 0, "definition": {"delivery-limit": 60}}]
    policies = Policies(given, operators, readable=True)
    assert policies.of("a", "queues", "quorum_queues") == {"delivery-limit": 60}
    assert policies.of("a", "exchanges") == {"alternate-exchange": "x"}
    assert policies.of("b", "queues") == {"delivery-limit": 60}


def test_from_4_0_on_the_default_limit_is_twenty(host):
    seen = read_vhost(host.node.management_url(), vhost=host.name, user="guest")
    bare = {name: replace(queue, arguments={}) for name, queue in seen.queues.items()}
    found = by_name(judge(TOPOLOGY, replace(seen, version="4.1.2", queues=bare), consumers=SUBJECT.consumers))
    assert "default of 20" in found["queue.delivery-limit"][0].found
