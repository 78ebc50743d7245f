"""The patterns of the broker's users: each name whole, and no other."""

from __future__ import annotations

import re

from postroad.transport.permissions import NOTHING, BrokerUser, Permission, foreign, permissions
from postroad.transport.topology import Topology

BILLING = Topology.of(publishes=["billing"], consumers=[("billing.invoices", ["orders.order.placed"])])
OTHERS = ["orders.events.", "xorders.events", "orders-events", "orders.replayed", "billing", "billing.invoices.dlq2",
          "billingxinvoices", "amq.default", "amq.gen-1", "", "payments.events"]  # fmt: skip


def test_no_pattern_finds_a_name_that_is_not_the_apps() -> None:
    for right in permissions(BILLING).values():
        for pattern in (right.configure, right.write, right.read):
            assert [name for name in OTHERS if name and re.search(pattern, name)] == []


def test_nobody_may_write_to_another_producers_exchange_nor_declare_or_delete_it() -> None:
    assert foreign(BILLING) == ["orders.events", "orders.replay"]
    for right in permissions(BILLING).values():
        assert not re.search(right.write, "orders.events")
        assert not re.search(right.configure, "orders.events")


MARKS = r"^postroad\.installation\..*$"


def test_a_running_process_declares_nothing_but_the_marks_of_its_database() -> None:
    given = permissions(BILLING)
    assert {given[kind].configure for kind in BrokerUser if kind is not BrokerUser.DEPLOYER} == {MARKS}
    assert (given[BrokerUser.DISPATCHER].read, given[BrokerUser.CONSUMER].write) == (MARKS, NOTHING)
    for name, mark in [("postroad.installation.7.8", True), ("postroad.installation", False), ("postroad.dlx", False)]:
        assert bool(re.search(given[BrokerUser.PROCESS].configure, name)) is mark


def test_an_app_without_producers_or_consumers_needs_nothing_for_them() -> None:
    nothing = permissions(Topology.of())
    assert nothing.pop(BrokerUser.DEPLOYER) == Permission()
    assert {(right.configure, right.write, right.read) for right in nothing.values()} == {(MARKS, NOTHING, MARKS)}


def test_a_queue_of_another_owner_is_read_and_nothing_else() -> None:
    given = permissions(Topology.of(standing=["OLD.OUT (1)"]))
    for kind in (BrokerUser.CONSUMER, BrokerUser.PROCESS, BrokerUser.DEPLOYER):
        assert re.search(given[kind].read, "OLD.OUT (1)")
        assert not re.search(given[kind].read, "OLD_OUT (1)")
    for right in given.values():
        assert not re.search(right.configure, "OLD.OUT (1)")
        assert not re.search(right.write, "OLD.OUT (1)")
    assert not re.search(given[BrokerUser.DISPATCHER].read, "OLD.OUT (1)")
