-- What a test looks at and moves. It stands beside the road, as an operator with psql would: no product code uses it.

-- name: published
-- The log's events of type $1 and version $2, in the order in which they were staged.
SELECT envelope
FROM {schema}.event
WHERE type = $1 AND version = $2
ORDER BY seq;

-- name: enqueued
-- The open rows of the job $1, best priority first, oldest first.
SELECT id, queue, key, state, priority, run_at, attempt, body
FROM {schema}.work
WHERE kind = 'job' AND event_type = $1
ORDER BY priority, run_at, id;

-- name: quarantined
-- What lies open in quarantine for the queue $1; where $2 is not empty, of that job alone.
SELECT kind, class, code, error_type, reason, attempt, event_type, body, content_type, headers::text AS headers
FROM {schema}.quarantine
WHERE resolved_at IS NULL AND queue = $1 AND ($2 = '' OR event_type = $2)
ORDER BY id;

-- name: waiting
-- What a drain that began at $1 still has before it: staged events where $2, and the rows of the queues $3 that run, may
-- run, or were due when it began. One statement, so one snapshot: nothing can hide between the tables.
SELECT 'outbox' AS queue, count(*) AS count
FROM {schema}.outbox
WHERE $2 AND attempts = 0
UNION ALL
SELECT queue, count(*)
FROM {schema}.work
WHERE queue = ANY ($3::text[]) AND (state IN ('ready', 'running') OR state = 'scheduled' AND run_at <= $1)
GROUP BY queue;

-- name: now
-- The database's clock.
SELECT clock_timestamp() AS now;

-- name: strangers
-- What no drain of this App will ever run: jobs that are due in none of the queues $1, and events that were not taken.
SELECT 'job' AS kind, event_type AS name, queue AS place
FROM {schema}.work
WHERE kind = 'job' AND queue <> ALL ($1::text[]) AND (state = 'ready' OR state = 'scheduled' AND run_at <= $2)
UNION ALL
SELECT 'event', regexp_replace(route, '\.v[0-9]+$', ''), coalesce(reason, '')
FROM {schema}.outbox
ORDER BY 1, 2;

-- name: listen
-- Subscribes the consumer $1 to those of the types $2 that nobody else subscribes to.
INSERT INTO {schema}.subscription (consumer, event_type)
SELECT $1, wanted.event_type
FROM unnest($2::text[]) AS wanted (event_type)
WHERE NOT EXISTS (SELECT FROM {schema}.subscription AS other WHERE other.event_type = wanted.event_type)
ON CONFLICT DO NOTHING;

-- name: forget
-- Deletes what was delivered to the queue $1, which nobody runs.
DELETE FROM {schema}.work
WHERE queue = $1;

-- name: advance_work
-- Brings whatever waits nearer by the interval $1: its times move back, the clock stands.
UPDATE {schema}.work
SET run_at = run_at - $1::interval, due = due - $1::interval, created_at = created_at - $1::interval;

-- name: advance_outbox
-- The same for events that the transport did not take.
UPDATE {schema}.outbox
SET available_at = available_at - $1::interval
WHERE available_at IS NOT NULL;

-- name: advance_quarantine
-- The same for what lies in quarantine.
UPDATE {schema}.quarantine
SET quarantined_at = quarantined_at - $1::interval
WHERE resolved_at IS NULL;

-- name: planned
-- How far the schedules of the App $1 have come.
SELECT max(cursor) AS cursor
FROM {schema}.schedule
WHERE app = $1 AND retired_at IS NULL;

-- name: next_planned
-- When there is something to do with a schedule of the App $1, by $2 at the latest; 'epoch' stands for at once.
SELECT min(next_at) AS at
FROM {schema}.schedule
WHERE app = $1 AND next_at <= $2;

-- name: asked_now
-- What was asked for by hand starts at $2: the schedules' time does not run, the clock by which it was asked for does.
UPDATE {schema}.occurrence AS one
SET start_at = $2
FROM {schema}.schedule
WHERE schedule.id = one.schedule AND schedule.app = $1 AND one.kind <> 'scheduled' AND one.state = 'pending'
    AND one.start_at > $2;

-- name: not_started
-- Occurrences of the App $1 whose job could not be enqueued, and why.
SELECT schedule.name, one.reason
FROM {schema}.occurrence AS one
JOIN {schema}.schedule ON schedule.id = one.schedule
WHERE schedule.app = $1 AND one.state = 'started' AND one.work_id IS NULL AND one.reason IS NOT NULL
ORDER BY one.id;

-- name: clear
-- Empties what tests leave behind; migrations, leases and the installation's identity stay.
TRUNCATE {schema}.event, {schema}.outbox, {schema}.work, {schema}.inbox, {schema}.starts, {schema}.order_guard,
    {schema}.quarantine, {schema}.finished, {schema}.queue, {schema}.subscription, {schema}.schedule,
    {schema}.occurrence, {schema}.schedule_backfill, {schema}.schedule_release, {schema}.effect, {schema}.replay,
    {schema}.rehandle, {schema}.reconciliation, {schema}.drift;
