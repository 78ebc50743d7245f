"""The Prometheus sink: signals counted into metrics of the author's registry."""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import UsageError
from postroad.signals import catalog

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
except ImportError as error:  # pragma: no cover - depends on what is installed
    message = "metrics need prometheus_client; install `postroad[run]`"
    raise UsageError("PR108", message) from error

from postroad.signals.effect_metrics import EffectMetrics
from postroad.signals.executor_metrics import ExecutorMetrics
from postroad.signals.histogram import BatchHistogram
from postroad.signals.reconcile_metrics import ReconcileMetrics
from postroad.signals.replay_metrics import ReplayMetrics
from postroad.signals.schedule_metrics import ScheduleMetrics

if TYPE_CHECKING:
    from postroad.signals.catalog import Signal

OTHER: Final = "_other"
MOST_EVENT_TYPES: Final = 200
"""More event types than this share the label ``_other``: labels are memory, here and in Prometheus."""

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_LONG: Final = (*_SECONDS, 30.0, 60.0, 300.0, 1800.0)
_ATTEMPTS: Final = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)
_BATCH: Final = (0.0, 1.0, 10.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2000.0)
_VERSION: Final = re.compile(r"\.v\d+$")
_BROKER: Final = "rabbitmq"


class PrometheusSink:
    """Feeds the metrics that `docs/signals.md` lists. Safe from any thread; a signal costs a few look-ups.

    Labels never carry ids, keys or texts. Gauges about the database (pending, oldest, depth) are the same in every
    process that reports them: aggregate with ``max``, never ``sum``.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, event_types: Collection[str] | None = None
    ) -> None:
        """Register in `registry` (default: the client library's own), once for each registry.

        `event_types` are the ones that may be labels (the declared ones); None lets in the first 200 that are seen.
        """
        into = REGISTRY if registry is None else registry
        self._open = event_types is None
        self._types = {each: each for each in sorted(event_types or ())[:MOST_EVENT_TYPES]}
        self._children: dict[tuple[Any, ...], Any] = {}
        self._publish_metrics(into)
        self._consume_metrics(into)
        self._work_metrics(into)
        self._hear: dict[type[Signal], Callable[[Any], None]] = {
            catalog.PublishesSettled: self._published,
            catalog.RouteBlocked: self._route_blocked,
            catalog.RouteReleased: self._route_released,
            catalog.InstallationConfirmed: lambda _: self._doubted.set(0),
            catalog.InstallationDoubted: lambda _: self._doubted.set(1),
            catalog.OutboxRead: self._read,
            catalog.OutboxState: self._waiting,
            catalog.LeaseGone: self._lease_gone,
            catalog.LeasesRenewed: self._renewed,
            catalog.ConnectionBlocked: self._blocked,
            catalog.ConsumerSubscribed: self._subscribed,
            catalog.ConsumerGone: self._gone,
            catalog.IntakePaused: lambda signal: self._paused.labels(signal.consumer).set(1),
            catalog.IntakeResumed: lambda signal: self._paused.labels(signal.consumer).set(0),
            catalog.StaleAcks: self._stale,
            catalog.TopologyMismatch: self._mismatched,
            catalog.DeliverySettled: self._settled,
            catalog.DeliveryDelayed: self._delayed,
            catalog.DeliveryQuarantined: self._quarantined,
            catalog.SuspectStarted: self._suspected,
            catalog.DeadLetterCollected: self._collected,
            catalog.Unacked: self._unacked,
            catalog.WorkSettled: self._worked,
            catalog.WorkSlots: self._slots,
            catalog.JobQuarantined: lambda signal: self._child(self._kept, signal.queue, signal.reason_class).inc(),
            catalog.QuarantineState: self._quarantine,
            catalog.QueueDepth: self._depth,
            catalog.ThreadsStuck: self._stuck,
            **(ExecutorMetrics(into, buckets=_LONG).hear | EffectMetrics(into, buckets=_LONG).hear),
            **(ScheduleMetrics(into, buckets=_LONG).hear | ReplayMetrics(into, buckets=_LONG).hear),
            **ReconcileMetrics(into).hear,
        }

    def __call__(self, signal: Signal) -> None:
        """Count one signal."""
        hear = self._hear.get(type(signal))
        if hear is not None:
            hear(signal)

    def _publish_metrics(self, into: CollectorRegistry) -> None:
        self._publishes = Counter(
            "postroad_publish_events_total",
            "Publishes by what became of them.",
            ["event_type", "schema_version", "result"],
            registry=into,
        )
        self._publish_seconds = BatchHistogram(
            "postroad_publish_duration_seconds",
            "From handing an event to the broker's client until it was settled.",
            ["event_type", "result"],
            buckets=_SECONDS,
            registry=into,
        )
        self._publish_blocked = Gauge(
            "postroad_publish_connection_blocked", "Whether the broker blocks publishing.", ["broker"], registry=into
        )
        self._routes_blocked = Gauge(
            "postroad_publish_route_blocked",
            "Whether a route is refused, so that its events are passed over.",
            ["event_type", "schema_version"],
            registry=into,
        )
        self._doubted = Gauge(
            "postroad_installation_doubted",
            "Whether this database may be a copy, so that nothing is sent or taken.",
            registry=into,
        )
        self._pending = Gauge(
            "postroad_outbox_pending_events", "Events that wait in the outbox.", ["event_type"], registry=into
        )
        self._oldest = Gauge(
            "postroad_outbox_oldest_pending_age_seconds", "Age of the oldest event that waits.", registry=into
        )
        self._outbox_delay = BatchHistogram(
            "postroad_outbox_delay_seconds",
            "From staging an event until the broker confirmed it.",
            ["event_type"],
            buckets=_LONG,
            registry=into,
        )
        self._outbox_attempts = BatchHistogram(
            "postroad_outbox_attempts",
            "How many publishes an event took until it was confirmed.",
            ["event_type"],
            buckets=_ATTEMPTS,
            registry=into,
        )
        self._shards_lost = Counter(
            "postroad_outbox_lease_lost_total", "Shards lost without our wish.", ["reason"], registry=into
        )
        self._batches = BatchHistogram(
            "postroad_outbox_claim_batch_size",
            "Rows that a poll of the outbox read.",
            [],
            buckets=_BATCH,
            registry=into,
        )
        self._mismatch = Gauge(
            "postroad_topology_mismatch_items", "Declared things that the broker lacks.", ["kind"], registry=into
        )

    def _consume_metrics(self, into: CollectorRegistry) -> None:
        each = ["consumer"]
        self._connected = Gauge(
            "postroad_consumer_connected",
            "Whether the broker counts us among a queue's consumers.",
            each,
            registry=into,
        )
        self._paused = Gauge(
            "postroad_consumer_paused", "Whether it takes nothing because something is away.", each, registry=into
        )
        self._prefetch = Gauge(
            "postroad_consumer_prefetch_limit", "Deliveries that a consumer takes ahead.", each, registry=into
        )
        self._owed = Gauge(
            "postroad_consumer_unacked_messages", "Deliveries held that the broker waits for.", each, registry=into
        )
        self._messages = Counter(
            "postroad_consumer_messages_total",
            "Deliveries by what became of them.",
            ["consumer", "event_type", "result"],
            registry=into,
        )
        self._process_seconds = BatchHistogram(
            "postroad_consumer_process_duration_seconds",
            "From taking up a delivery until its outcome.",
            ["consumer", "event_type", "result"],
            buckets=_SECONDS,
            registry=into,
        )
        self._retries = Counter(
            "postroad_consumer_retries_total",
            "Deliveries put off until their next attempt.",
            ["consumer", "reason_class"],
            registry=into,
        )
        self._cancelled = Counter(
            "postroad_consumer_cancelled_total",
            "Times that a consumer was taken from its queue.",
            ["consumer", "cause"],
            registry=into,
        )
        self._queue_depth = Gauge(
            "postroad_queue_depth_messages", "Messages in a declared queue.", ["queue", "state"], registry=into
        )
        self._kept = Counter(
            "postroad_quarantine_messages_total",
            "Deliveries put into quarantine.",
            ["consumer", "reason_class"],
            registry=into,
        )
        self._suspects = Counter(
            "postroad_consumer_suspects_total",
            "Starts of messages over which processes died before.",
            ["consumer", "alone"],
            registry=into,
        )
        self._dead = Counter(
            "postroad_consumer_dead_letters_total",
            "Messages that the broker took out of a consumer's queue, as they were collected.",
            ["consumer", "reason"],
            registry=into,
        )
        self._kept_depth = Gauge("postroad_quarantine_depth_messages", "Open rows in quarantine.", each, registry=into)
        self._kept_age = Gauge(
            "postroad_quarantine_oldest_age_seconds", "Age of the oldest open row in quarantine.", each, registry=into
        )

    def _work_metrics(self, into: CollectorRegistry) -> None:
        self._limit = Gauge(
            "postroad_worker_concurrency_limit",
            "Rows of work that this process may run at once.",
            ["queue"],
            registry=into,
        )
        self._active = Gauge(
            "postroad_worker_active_jobs", "Rows of work that this process runs.", ["queue"], registry=into
        )
        self._jobs = Counter(
            "postroad_worker_jobs_total", "Rows of work by what became of them.", ["job_type", "result"], registry=into
        )
        self._job_seconds = BatchHistogram(
            "postroad_worker_job_duration_seconds",
            "From starting a row of work until its outcome.",
            ["job_type", "result"],
            buckets=_LONG,
            registry=into,
        )
        self._renewals = Counter(
            "postroad_worker_lease_renewals_total", "Renewals of leases by result.", ["queue", "result"], registry=into
        )
        self._stuck_threads = Gauge(
            "postroad_consumer_stuck_threads",
            "Threads of `def` handlers that go on after they were given up.",
            ["consumer"],
            registry=into,
        )

    # --- outbox and leases --------------------------------------------------------------------------------------

    def _published(self, signal: catalog.PublishesSettled) -> None:
        key = ("published", signal.event_type, signal.version, signal.result)
        children = self._children.get(key)
        if children is None:
            of_type, result = self._event_type(signal.event_type), str(signal.result)
            children = self._children[key] = (
                self._publishes.labels(of_type, str(signal.version), result),
                self._publish_seconds.labels(of_type, result),
                self._outbox_delay.labels(of_type),
                self._outbox_attempts.labels(of_type),
            )
        count, seconds, delay, attempts = children
        count.inc(signal.count)
        seconds.observe_many(signal.seconds)
        if signal.result is catalog.PublishResult.CONFIRMED:
            delay.observe_many(signal.delays)
            attempts.observe_many([failed + 1 for failed in signal.attempts])

    def _route_blocked(self, signal: catalog.RouteBlocked) -> None:
        self._routes_blocked.labels(self._event_type(signal.event_type), str(signal.version)).set(1)

    def _route_released(self, signal: catalog.RouteReleased) -> None:
        self._routes_blocked.labels(self._event_type(signal.event_type), str(signal.version)).set(0)

    def _read(self, signal: catalog.OutboxRead) -> None:
        self._batches.labels().observe_many((signal.count,))

    def _waiting(self, signal: catalog.OutboxState) -> None:
        waiting: Tally[str] = Tally()
        for route, count in signal.pending:
            waiting[self._event_type(_VERSION.sub("", route))] += count
        self._replace(self._pending, {(of_type,): count for of_type, count in waiting.items()})
        self._oldest.set(signal.oldest_seconds)

    def _lease_gone(self, signal: catalog.LeaseGone) -> None:
        if signal.kind == "shard":
            self._shards_lost.labels(str(signal.reason)).inc()

    def _renewed(self, signal: catalog.LeasesRenewed) -> None:
        self._child(self._renewals, signal.kind, signal.result).inc(signal.count)

    # --- transport ----------------------------------------------------------------------------------------------

    def _blocked(self, signal: catalog.ConnectionBlocked) -> None:
        if signal.role == "publish":
            self._publish_blocked.labels(_BROKER).set(signal.blocked)

    def _subscribed(self, signal: catalog.ConsumerSubscribed) -> None:
        self._connected.labels(signal.consumer).set(1)
        self._prefetch.labels(signal.consumer).set(signal.prefetch)

    def _gone(self, signal: catalog.ConsumerGone) -> None:
        self._connected.labels(signal.consumer).set(0)
        if signal.cause != "stopped":
            self._cancelled.labels(signal.consumer, signal.cause).inc()

    def _stale(self, signal: catalog.StaleAcks) -> None:
        self._child(self._messages, signal.consumer, OTHER, "stale_ack").inc(signal.count)

    def _mismatched(self, signal: catalog.TopologyMismatch) -> None:
        self._mismatch.labels(signal.kind).set(signal.count)

    def _depth(self, signal: catalog.QueueDepth) -> None:
        self._child(self._queue_depth, signal.queue, "ready").set(signal.ready)

    # --- consume and work ---------------------------------------------------------------------------------------

    def _settled(self, signal: catalog.DeliverySettled) -> None:
        key = ("settled", signal.consumer, signal.event_type, signal.result)
        children = self._children.get(key)
        if children is None:
            labels = (signal.consumer, self._event_type(signal.event_type), str(signal.result))
            children = (self._messages.labels(*labels), self._process_seconds.labels(*labels))
            if labels[1] != OTHER:  # foreign texts must not fill the cache either
                self._children[key] = children
        count, seconds = children
        count.inc(signal.count)
        seconds.observe_many(signal.seconds)

    def _delayed(self, signal: catalog.DeliveryDelayed) -> None:
        self._child(self._retries, signal.consumer, signal.reason_class).inc()

    def _quarantined(self, signal: catalog.DeliveryQuarantined) -> None:
        self._child(self._kept, signal.consumer, signal.reason_class).inc()

    def _suspected(self, signal: catalog.SuspectStarted) -> None:
        self._child(self._suspects, signal.consumer, str(signal.alone).lower()).inc()

    def _collected(self, signal: catalog.DeadLetterCollected) -> None:
        if signal.fresh:
            self._child(self._dead, signal.consumer, signal.reason).inc()

    def _unacked(self, signal: catalog.Unacked) -> None:
        self._child(self._owed, signal.consumer).set(signal.count)

    def _quarantine(self, signal: catalog.QuarantineState) -> None:
        self._replace(self._kept_depth, {(queue,): count for queue, count, _ in signal.depth})
        self._replace(self._kept_age, {(queue,): age for queue, _, age in signal.depth})

    def _worked(self, signal: catalog.WorkSettled) -> None:
        label = signal.job or signal.queue
        self._child(self._jobs, label, signal.result).inc(signal.count)
        self._child(self._job_seconds, label, signal.result).observe_many(signal.seconds)

    def _slots(self, signal: catalog.WorkSlots) -> None:
        self._child(self._limit, signal.queue).set(signal.limit)
        self._child(self._active, signal.queue).set(signal.active)

    def _stuck(self, signal: catalog.ThreadsStuck) -> None:
        self._child(self._stuck_threads, signal.pool).set(signal.count)

    # --- labels -------------------------------------------------------------------------------------------------

    def _event_type(self, given: str) -> str:
        """The label of an event type: itself if it is declared (or among the first that are seen), else ``_other``."""
        known = self._types.get(given)
        if known is not None:
            return known
        if self._open and given and len(self._types) < MOST_EVENT_TYPES:
            return self._types.setdefault(given, given)
        return OTHER

    def _child(self, metric: Any, *labels: str) -> Any:
        key = (metric, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child

    def _replace(self, gauge: Gauge, values: dict[tuple[str, ...], float]) -> None:
        """Set what is reported now, and what was reported before and is gone to nought."""
        before: set[tuple[str, ...]] = self._children.setdefault(("reported", gauge), set())
        for labels in before - values.keys():
            gauge.labels(*labels).set(0)
        for labels, value in values.items():
            gauge.labels(*labels).set(value)
        before.update(values)
