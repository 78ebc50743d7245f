"""The Prometheus sink: names and labels are a public promise, so they stand here as a list."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from postroad.signals import Signals
from postroad.signals.catalog import (
    ConnectionBlocked,
    ConsumerGone,
    ConsumerSubscribed,
    DeadLetterCollected,
    DeliveryDelayed,
    DeliveryQuarantined,
    DeliveryRehandled,
    DeliveryResult,
    DeliverySettled,
    DriftRepaired,
    EffectAnswered,
    EffectConflict,
    EffectLookedUp,
    EffectReturned,
    EffectsOpen,
    ExecutorLoad,
    ExecutorRefused,
    ExecutorSettled,
    InstallationConfirmed,
    InstallationDoubted,
    IntakePaused,
    LeaseGone,
    LeasesRenewed,
    LossReason,
    OccurrenceEnded,
    OccurrencesDue,
    OccurrencesPassed,
    OccurrenceStarted,
    OutboxRead,
    OutboxState,
    ProjectionBehind,
    ProjectionLag,
    PublishesSettled,
    PublishResult,
    QuarantineState,
    QueueDepth,
    ReconciliationEnded,
    ReplayAdvanced,
    ReplayEnded,
    RouteBlocked,
    Signal,
    StaleAcks,
    SuspectStarted,
    ThreadsStuck,
    TopologyMismatch,
    Unacked,
    WorkSettled,
    WorkSlots,
)
from postroad.signals.prometheus import MOST_EVENT_TYPES, PrometheusSink

DEPARTED = "flights.flight.departed"
PUBLISHED = PublishesSettled(
    DEPARTED, 2, PublishResult.CONFIRMED, 3, seconds=(0.01, 0.02, 0.03), delays=(0.1, 0.2, 0.3), attempts=(0, 0, 4)
)
HANDLED = DeliverySettled("punctuality", DEPARTED, DeliveryResult.OK, 1, (0.02,))
WORKED = WorkSettled("punctuality", "retry", "ok", 1, (1.5,))
COMPARED = ReconciliationEnded("books", "complete", 100, 1, 2, 3, 4, 0.5, 1.5e9)
PLANNED = OccurrenceEnded("reports.daily", "ok", 1.5e9, (0.25,))

# name, labels, the signal that feeds it, the sample to look at, its labels' values, its value
TABLE: list[tuple[str, set[str], Signal, str, tuple[str, ...], float]] = [
    ("postroad_publish_events_total", {"event_type", "schema_version", "result"}, PUBLISHED,
     "", (DEPARTED, "2", "confirmed"), 3),
    ("postroad_publish_duration_seconds", {"event_type", "result"}, PUBLISHED, "_sum", (DEPARTED, "confirmed"), 0.06),
    ("postroad_consumer_suspects_total", {"consumer", "alone"}, SuspectStarted("punctuality", DEPARTED, 2, alone=True),
     "", ("punctuality", "true"), 1),
    ("postroad_consumer_dead_letters_total", {"consumer", "reason"},
     DeadLetterCollected("punctuality", DEPARTED, "rejected", fresh=True), "", ("punctuality", "rejected"), 1),
    ("postroad_publish_connection_blocked", {"broker"}, ConnectionBlocked("publish", blocked=True),
     "", ("rabbitmq",), 1),
    ("postroad_publish_route_blocked", {"event_type", "schema_version"}, RouteBlocked(DEPARTED, 2, "returned"),
     "", (DEPARTED, "2"), 1),
    ("postroad_installation_doubted", set(), InstallationDoubted("id", "a copy"), "", (), 1),
    ("postroad_outbox_pending_events", {"event_type"}, OutboxState(((f"{DEPARTED}.v1", 2), (f"{DEPARTED}.v2", 5)), 9.0),
     "", (DEPARTED,), 7),
    ("postroad_outbox_oldest_pending_age_seconds", set(), OutboxState((), 9.0), "", (), 9),
    ("postroad_outbox_delay_seconds", {"event_type"}, PUBLISHED, "_count", (DEPARTED,), 3),
    ("postroad_outbox_attempts", {"event_type"}, PUBLISHED, "_sum", (DEPARTED,), 7),
    ("postroad_outbox_lease_lost_total", {"reason"}, LeaseGone("shard", "shard:01", LossReason.FENCED),
     "", ("fenced",), 1),
    ("postroad_outbox_claim_batch_size", set(), OutboxRead(250), "_sum", (), 250),
    ("postroad_consumer_connected", {"consumer"}, ConsumerSubscribed("punctuality", 64), "", ("punctuality",), 1),
    ("postroad_consumer_paused", {"consumer"}, IntakePaused("punctuality", "gateway"), "", ("punctuality",), 1),
    ("postroad_consumer_prefetch_limit", {"consumer"}, ConsumerSubscribed("punctuality", 64), "", ("punctuality",), 64),
    ("postroad_consumer_unacked_messages", {"consumer"}, Unacked("punctuality", 12), "", ("punctuality",), 12),
    ("postroad_consumer_messages_total", {"consumer", "event_type", "result"}, HANDLED,
     "", ("punctuality", DEPARTED, "ok"), 1),
    ("postroad_consumer_process_duration_seconds", {"consumer", "event_type", "result"}, HANDLED,
     "_sum", ("punctuality", DEPARTED, "ok"), 0.02),
    ("postroad_consumer_retries_total", {"consumer", "reason_class"},
     DeliveryDelayed("punctuality", DEPARTED, "transient", "GatewayDown", 1, 2.0), "", ("punctuality", "transient"), 1),
    ("postroad_consumer_cancelled_total", {"consumer", "cause"}, ConsumerGone("punctuality", "channel_closed"),
     "", ("punctuality", "channel_closed"), 1),
    ("postroad_queue_depth_messages", {"queue", "state"}, QueueDepth("punctuality", 31),
     "", ("punctuality", "ready"), 31),
    ("postroad_quarantine_depth_messages", {"consumer"}, QuarantineState((("punctuality", 4, 60.0),)),
     "", ("punctuality",), 4),
    ("postroad_quarantine_oldest_age_seconds", {"consumer"}, QuarantineState((("punctuality", 4, 60.0),)),
     "", ("punctuality",), 60),
    ("postroad_quarantine_messages_total", {"consumer", "reason_class"},
     DeliveryQuarantined("punctuality", DEPARTED, "quarantine", "PR501", "no"), "", ("punctuality", "quarantine"), 1),
    ("postroad_worker_concurrency_limit", {"queue"}, WorkSlots("punctuality", 8, 3), "", ("punctuality",), 8),
    ("postroad_worker_active_jobs", {"queue"}, WorkSlots("punctuality", 8, 3), "", ("punctuality",), 3),
    ("postroad_worker_jobs_total", {"job_type", "result"}, WORKED, "", ("punctuality", "ok"), 1),
    ("postroad_worker_job_duration_seconds", {"job_type", "result"}, WORKED, "_sum", ("punctuality", "ok"), 1.5),
    ("postroad_worker_lease_renewals_total", {"queue", "result"}, LeasesRenewed("worker", "late", 2),
     "", ("worker", "late"), 2),
    ("postroad_consumer_stuck_threads", {"consumer"}, ThreadsStuck("punctuality", 2), "", ("punctuality",), 2),
    ("postroad_effect_calls_total", {"effect", "result"}, EffectAnswered("charge", "timeout", 0.5),
     "", ("charge", "timeout"), 1),
    ("postroad_effect_calls_total", {"effect", "result"}, EffectReturned("charge"), "", ("charge", "recorded"), 1),
    ("postroad_effect_calls_total", {"effect", "result"}, EffectConflict("charge"), "", ("charge", "conflict"), 1),
    ("postroad_effect_call_duration_seconds", {"effect", "result"}, EffectAnswered("charge", "timeout", 0.5),
     "_sum", ("charge", "timeout"), 0.5),
    ("postroad_effect_look_ups_total", {"effect", "answer"}, EffectLookedUp("charge", "absent", "not_found"),
     "", ("charge", "absent"), 1),
    ("postroad_effect_open_items", {"effect", "state"}, EffectsOpen((("charge", "manual", 3, 60.5),)),
     "", ("charge", "manual"), 3),
    ("postroad_effect_oldest_unknown_age_seconds", {"effect"}, EffectsOpen((("charge", "manual", 3, 60.5),)),
     "", ("charge",), 60.5),
    ("postroad_executor_waiting_tasks", {"executor"}, ExecutorLoad("mail", 3, 2), "", ("mail",), 3),
    ("postroad_executor_running_tasks", {"executor"}, ExecutorLoad("mail", 3, 2), "", ("mail",), 2),
    ("postroad_executor_tasks_total", {"executor", "result"}, ExecutorSettled("mail", "send", "ok", 0.1, 1.5),
     "", ("mail", "ok"), 1),
    ("postroad_executor_tasks_total", {"executor", "result"}, ExecutorRefused("mail", "send", "full"),
     "", ("mail", "refused"), 1),
    ("postroad_executor_task_duration_seconds", {"executor", "result"},
     ExecutorSettled("mail", "send", "timed_out", 0.1, 1.5), "_sum", ("mail", "timed_out"), 1.5),
    ("postroad_schedule_due_total", {"schedule"}, OccurrencesDue("reports.daily", 3), "", ("reports.daily",), 3),
    ("postroad_schedule_runs_total", {"schedule", "phase", "result"}, OccurrenceStarted("reports.daily", "manual", 0.1),
     "", ("reports.daily", "started", "ok"), 1),
    ("postroad_schedule_runs_total", {"schedule", "phase", "result"},
     OccurrencesPassed("reports.daily", "missed", "too_old", 7), "", ("reports.daily", "started", "missed"), 7),
    ("postroad_schedule_start_delay_seconds", {"schedule"}, PLANNED, "_sum", ("reports.daily",), 0.25),
    ("postroad_schedule_last_success_timestamp_seconds", {"schedule"}, PLANNED, "", ("reports.daily",), 1.5e9),
    ("postroad_reconciliation_drift_items", {"check", "kind"}, COMPARED, "", ("books", "extra"), 2),
    ("postroad_reconciliation_pending_items", {"check"}, COMPARED, "", ("books",), 4),
    ("postroad_reconciliation_last_success_timestamp_seconds", {"check"}, COMPARED, "", ("books",), 1.5e9),
    ("postroad_reconciliation_repairs_total", {"check", "result"}, DriftRepaired("books", 7, 1, 0),
     "", ("books", "done"), 7),
    ("postroad_projection_lag_seconds", {"projection"}, ProjectionLag("punctuality", 1.5), "", ("punctuality",), 1.5),
    ("postroad_projection_lag_events", {"projection"}, ProjectionBehind("punctuality", 9), "", ("punctuality",), 9),
    ("postroad_topology_mismatch_items", {"kind"}, TopologyMismatch("queue", 2), "", ("queue",), 2),
    ("postroad_replay_events_total", {"consumer", "result"}, ReplayAdvanced(1, "billing", 3, 0),
     "", ("billing", "sent"), 3),
    ("postroad_replay_events_total", {"consumer", "result"}, ReplayAdvanced(1, "", 0, 2), "", ("_all", "redacted"), 2),
    ("postroad_replay_events_total", {"consumer", "result"}, DeliveryRehandled("billing", "a.b.c"),
     "", ("billing", "rehandled"), 1),
    ("postroad_replay_run_duration_seconds", {"consumer"}, ReplayEnded(1, "billing", 2.5), "_sum", ("billing",), 2.5),
]  # fmt: skip


class Meter:
    def __init__(self, **options: object) -> None:
        self.registry = CollectorRegistry()
        self.signals = Signals(PrometheusSink(self.registry, **options))

    def tell(self, *signals: Signal) -> None:
        for signal in signals:
            self.signals.emit(signal)
        assert self.signals.sink_errors == 0

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.mark.parametrize(
    ("name", "labels", "signal", "suffix", "values", "value"),
    TABLE,
    ids=[f"{row[0]}{row[3]}-{number}" for number, row in enumerate(TABLE)],
)
def test_each_metric_is_fed_by_its_signal(meter, name, labels, signal, suffix, values, value) -> None:
    meter.tell(signal)
    found = [
        sample
        for family in meter.registry.collect()
        for sample in family.samples
        if sample.name == name + suffix and set(sample.labels.values()) == set(values)
    ]
    assert [sample.value for sample in found] == [pytest.approx(value)]
    assert set(found[0].labels) == labels


def test_the_table_is_all_there_is(meter) -> None:
    meter.tell(*{id(signal): signal for _, _, signal, *_ in TABLE}.values())
    exposed = {family.name for family in text_string_to_metric_families(generate_latest(meter.registry).decode())}
    assert {name.removesuffix("_total") for name, *_ in TABLE} == {
        name for name in exposed if not name.endswith("_created")
    }


def test_the_documentation_lists_the_same_metrics_and_labels() -> None:
    page = (Path(__file__).parents[2] / "docs" / "signals.md").read_text("utf-8")
    rows = {
        match["name"]: match["labels"]
        for match in re.finditer(r"^\| `(?P<name>\w+)`[^|]*\|[^|]*\|(?P<labels>[^|]*)\|", page, re.MULTILINE)
    }
    assert rows.keys() == {name for name, *_ in TABLE}
    for name, labels, *_ in TABLE:
        assert all(re.search(rf"\b{label}\b", rows[name]) for label in labels), name


def test_an_event_type_that_nobody_declared_is_other() -> None:
    meter = Meter(event_types=[DEPARTED])
    meter.tell(HANDLED, DeliverySettled("punctuality", "card 4111-1111", DeliveryResult.QUARANTINE, 1, (0.1,)))
    assert (
        meter.value("postroad_consumer_messages_total", consumer="punctuality", event_type=DEPARTED, result="ok") == 1
    )
    assert b"4111" not in generate_latest(meter.registry)
    assert (
        meter.value(
            "postroad_consumer_messages_total", consumer="punctuality", event_type="_other", result="quarantine"
        )
        == 1
    )


@pytest.mark.parametrize("declared", [True, False])
def test_event_types_beyond_the_cap_share_a_label(declared) -> None:
    names = [f"flights.flight.departed{number:03}" for number in range(MOST_EVENT_TYPES + 50)]
    meter = Meter(event_types=names) if declared else Meter()
    meter.tell(*(DeliverySettled("c", name, DeliveryResult.OK, 1, (0.1,)) for name in names))
    [family] = [family for family in meter.registry.collect() if family.name == "postroad_consumer_messages"]
    labels = {sample.labels["event_type"] for sample in family.samples}
    assert len(labels) == MOST_EVENT_TYPES + 1
    assert meter.value("postroad_consumer_messages_total", consumer="c", event_type="_other", result="ok") == 50


def test_effects_that_have_their_outcome_are_open_no_more(meter) -> None:
    meter.tell(EffectsOpen((("charge", "unknown", 2, 9.0), ("charge", "intended", 1, 30.0))))
    assert meter.value("postroad_effect_oldest_unknown_age_seconds", effect="charge") == 9
    meter.tell(EffectsOpen(()))
    assert meter.value("postroad_effect_open_items", effect="charge", state="unknown") == 0
    assert meter.value("postroad_effect_oldest_unknown_age_seconds", effect="charge") == 0


def test_an_installation_that_was_adopted_is_in_doubt_no_more(meter) -> None:
    meter.tell(InstallationDoubted("one", "a copy"), InstallationConfirmed("two", "host:5672"))
    assert meter.value("postroad_installation_doubted") == 0


def test_what_no_longer_waits_falls_to_nought(meter) -> None:
    meter.tell(OutboxState((("a.b.c.v1", 5),), 3.0), OutboxState((("d.e.f.v1", 2),), 1.0))
    assert meter.value("postroad_outbox_pending_events", event_type="a.b.c") == 0
    assert meter.value("postroad_outbox_pending_events", event_type="d.e.f") == 2
    meter.tell(QuarantineState((("c", 3, 9.0),)), QuarantineState(()))
    assert meter.value("postroad_quarantine_depth_messages", consumer="c") == 0
    assert meter.value("postroad_quarantine_oldest_age_seconds", consumer="c") == 0


def test_only_confirmed_publishes_tell_of_delay_and_attempts(meter) -> None:
    meter.tell(PublishesSettled(DEPARTED, 1, PublishResult.RETURNED, 1, seconds=(0.1,), delays=(5.0,), attempts=(1,)))
    assert meter.value("postroad_publish_duration_seconds_count", event_type=DEPARTED, result="returned") == 1
    assert meter.value("postroad_outbox_delay_seconds_count", event_type=DEPARTED) == 0
    assert meter.value("postroad_outbox_attempts_count", event_type=DEPARTED) == 0


def test_buckets_are_cumulative_and_include_their_bounds(meter) -> None:
    meter.tell(OutboxRead(0), OutboxRead(1), OutboxRead(10), OutboxRead(11), OutboxRead(10_000))
    name = "postroad_outbox_claim_batch_size_bucket"
    assert [meter.value(name, le=bound) for bound in ("0.0", "1.0", "10.0", "50.0", "2000.0", "+Inf")] == [
        1, 2, 3, 4, 4, 5,
    ]  # fmt: skip
    assert math.isclose(meter.value("postroad_outbox_claim_batch_size_sum") or 0, 10_022)


def test_a_consumer_that_we_stopped_is_gone_and_not_cancelled(meter) -> None:
    meter.tell(ConsumerSubscribed("c", 8), ConsumerGone("c", "stopped"))
    assert meter.value("postroad_consumer_connected", consumer="c") == 0
    assert meter.value("postroad_consumer_cancelled_total", consumer="c", cause="stopped") is None


def test_stale_acks_count_as_messages(meter) -> None:
    meter.tell(StaleAcks("c", 3))
    assert meter.value("postroad_consumer_messages_total", consumer="c", event_type="_other", result="stale_ack") == 3


def test_only_shards_count_as_leases_of_the_outbox(meter) -> None:
    meter.tell(LeaseGone("worker", "worker:1", LossReason.EXPIRED))
    assert meter.value("postroad_outbox_lease_lost_total", reason="expired") is None


def test_a_registry_takes_the_metrics_once(meter) -> None:
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusSink(meter.registry)
