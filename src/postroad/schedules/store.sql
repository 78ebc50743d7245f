-- Occurrences are unique on (schedule, due, kind): whoever inserts one first wins, all others find it there. A tick holds
-- the rows of its schedules, and the scheduler's lease, until its one commit.

-- name: turn
-- One registration of an App at a time, until the transaction ends; the server ends that of a process that stands still.
SELECT pg_advisory_xact_lock(hashtextextended('postroad.schedules.' || $1::text || ':' || $2::text, 0)),
    set_config('idle_in_transaction_session_timeout', '5s', TRUE);

-- name: releases
-- The releases of an App that have started, newest first, and the time.
SELECT fingerprint, number, clock_timestamp() AS now
FROM {schema}.schedule_release
WHERE app = $1
ORDER BY number DESC;

-- name: add_release
-- The release of this fingerprint is the newest from now on.
INSERT INTO {schema}.schedule_release (app, fingerprint, number)
VALUES ($1, $2, $3)
ON CONFLICT (app, fingerprint) DO UPDATE
SET number = excluded.number, started_at = clock_timestamp();

-- name: standing
-- The schedules that an App has declared, and those of others that have one of the names $2.
SELECT id, name, app, definition::text AS definition, revision, release, retired_at, cursor, tz_version
FROM {schema}.schedule
WHERE app = $1 OR (name = ANY ($2::text[]) AND retired_at IS NULL)
ORDER BY name
FOR UPDATE;

-- name: declare
-- Puts schedules in as they are declared: nothing is due before now. A pause stays. $6 says whose times have changed.
INSERT INTO {schema}.schedule AS standing (name, app, definition, release, tz_version, cursor, next_at)
SELECT given.name, $1, given.definition::jsonb, $2, $3, clock_timestamp(), clock_timestamp()
FROM unnest($4::text[], $5::text[], $6::boolean[]) AS given (name, definition, moved)
ON CONFLICT (name) DO UPDATE
SET app = excluded.app, definition = excluded.definition, release = excluded.release, tz_version = excluded.tz_version,
    revision = standing.revision + 1, retired_at = NULL, changed_at = clock_timestamp(),
    cursor = CASE WHEN standing.name = ANY ($7::text[]) THEN greatest(standing.cursor, clock_timestamp())
        ELSE standing.cursor END,
    next_at = clock_timestamp()
RETURNING id;

-- name: mark
-- Schedules that stay as they are, under a new release.
UPDATE {schema}.schedule
SET release = $2
WHERE id = ANY ($1::uuid[]);

-- name: retire
-- Schedules that are not declared any more: nothing of them becomes due, and what waits is cancelled.
WITH gone AS (
    UPDATE {schema}.schedule
    SET retired_at = clock_timestamp(), next_at = NULL, changed_at = clock_timestamp(), release = $2
    WHERE id = ANY ($1::uuid[])
    RETURNING id
), ended AS (
    UPDATE {schema}.schedule_backfill
    SET ended_at = clock_timestamp()
    WHERE ended_at IS NULL AND schedule IN (SELECT id FROM gone)
)
UPDATE {schema}.occurrence
SET state = 'cancelled', reason = 'the schedule was retired', ended_at = clock_timestamp()
WHERE state IN ('pending', 'queued') AND schedule IN (SELECT id FROM gone)
RETURNING id;

-- name: begin
-- The database's time, the newest release of an App, and when there is something to do next.
SELECT clock_timestamp() AS now,
    (SELECT max(number) FROM {schema}.schedule_release WHERE app = $1) AS newest;

-- name: next
-- When there is something to do next.
SELECT min(next_at) AS next_at
FROM {schema}.schedule
WHERE app = $1 AND next_at IS NOT NULL;

-- name: due
-- The schedules with which there is something to do, longest overdue first, locked until the transaction ends; those
-- that somebody else holds are passed over.
SELECT id, name, revision, tz_version, cursor, failures, paused_at IS NOT NULL AS paused
FROM {schema}.schedule
WHERE app = $1 AND next_at <= $2
ORDER BY next_at, id
LIMIT $3
FOR UPDATE SKIP LOCKED;

-- name: open
-- What waits or runs of some schedules, in the order in which it is to start. Whether one runs, `work` says.
SELECT one.id, one.schedule, one.due, one.kind, one.key, one.state, one.start_at, one.overlap, one.work_id,
    one.state = 'started' AND work.id IS NOT NULL AS runs, work.cancel_at IS NOT NULL AS cancelling
FROM {schema}.occurrence AS one
LEFT JOIN {schema}.work ON work.id = one.work_id AND one.state = 'started'
WHERE one.schedule = ANY ($1::uuid[]) AND one.state IN ('pending', 'queued', 'started')
ORDER BY one.start_at, one.due, one.id;

-- name: add
-- Occurrences, unless they are there: the answer holds those that are new.
INSERT INTO {schema}.occurrence
    (schedule, due, kind, key, state, reason, start_at, revision, tz_version, token, overlap, ended_at)
SELECT given.schedule, given.due, $13, given.key, given.state, given.reason, given.start_at, given.revision,
    given.tz_version, $11, given.overlap, CASE WHEN given.state IN ('missed', 'skipped', 'failed') THEN $12::timestamptz END
FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::integer[],
    $8::text[], $9::text[], $10::integer[])
    AS given (schedule, due, key, state, reason, start_at, revision, tz_version, overlap, place)
ORDER BY given.place
ON CONFLICT DO NOTHING
RETURNING id, schedule, due, kind;

-- name: start
-- What was enqueued for occurrences: from now on their runs are rows of `work`.
UPDATE {schema}.occurrence AS one
SET state = 'started', reason = NULL, work_id = given.work_id, queue = given.queue, until = given.until,
    started_at = $5, token = $6
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::timestamptz[]) AS given (id, work_id, queue, until)
WHERE one.id = given.id;

-- name: become
-- What was decided about occurrences that waited.
UPDATE {schema}.occurrence AS one
SET state = given.state, reason = given.reason, token = $5,
    ended_at = CASE WHEN given.state <> 'queued' THEN $4::timestamptz END
FROM unnest($1::bigint[], $2::text[], $3::text[]) AS given (id, state, reason)
WHERE one.id = given.id;

-- name: move
-- How far schedules have come, and when there is something to do with them again. A cursor never goes back.
UPDATE {schema}.schedule
SET cursor = greatest(schedule.cursor, given.cursor), next_at = given.next_at, tz_version = $4
FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[]) AS given (id, cursor, next_at)
WHERE schedule.id = given.id;

-- name: over
-- Started occurrences whose row of work has ended, and how: it is finished, or in quarantine.
WITH over AS MATERIALIZED (
    SELECT id, schedule, work_id, queue, key, reason, start_at, created_at
    FROM {schema}.occurrence AS one
    WHERE state = 'started' AND NOT EXISTS (SELECT FROM {schema}.work WHERE work.id = one.work_id)
    LIMIT $1
    FOR UPDATE SKIP LOCKED
)
SELECT over.id, over.schedule, over.reason AS asked, over.start_at, finished.outcome,
    coalesce(finished.reason, quarantine.reason) AS reason, quarantine.code,
    coalesce(finished.finished_at, quarantine.quarantined_at) AS ended_at,
    CASE WHEN finished.attempt = 1 THEN finished.started_at END AS began
FROM over
LEFT JOIN {schema}.finished ON finished.id = over.work_id AND finished.finished_at > over.created_at - interval '1 day'
LEFT JOIN {schema}.quarantine ON quarantine.queue = over.queue AND quarantine.key = over.key
    AND quarantine.resolved_at IS NULL
ORDER BY over.schedule, over.id;

-- name: hold
-- Schedules by id, locked in order until the transaction ends.
SELECT id, name, failures, paused_at IS NOT NULL AS paused
FROM {schema}.schedule
WHERE id = ANY ($1::uuid[])
ORDER BY id
FOR UPDATE;

-- name: end
-- How started occurrences ended.
UPDATE {schema}.occurrence AS one
SET state = given.state, reason = given.reason, ended_at = coalesce(given.ended_at, clock_timestamp()), until = NULL
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::timestamptz[]) AS given (id, state, reason, ended_at)
WHERE one.id = given.id;

-- name: count_failures
-- How many runs of schedules have failed in a row; what waits for the end of one is looked at now.
UPDATE {schema}.schedule
SET failures = given.failures,
    next_at = CASE WHEN EXISTS (
        SELECT FROM {schema}.occurrence WHERE occurrence.schedule = schedule.id AND occurrence.state = 'queued'
    ) THEN least(schedule.next_at, clock_timestamp()) ELSE schedule.next_at END
FROM unnest($1::uuid[], $2::integer[]) AS given (id, failures)
WHERE schedule.id = given.id;

-- name: overtime
-- Runs whose time for all attempts is over; each is answered once.
UPDATE {schema}.occurrence
SET until = NULL, reason = $2
WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.occurrence WHERE state = 'started' AND until <= $1 LIMIT 500 FOR UPDATE SKIP LOCKED
))
RETURNING work_id;

-- name: reopened
-- The job of an occurrence runs again, as another row of work: somebody released it from quarantine.
UPDATE {schema}.occurrence
SET state = 'started', reason = NULL, work_id = $3, ended_at = NULL
WHERE queue = $1 AND key = $2 AND state IN ('failed', 'started') AND schedule = $4
RETURNING id;

-- name: backfills
-- Backfills that are not done, oldest first, each with its schedule; locked until the transaction ends.
SELECT one.id, one.schedule, schedule.name, schedule.revision, one.from_at, one.to_at, one.cursor, one.overlap, one.rerun
FROM {schema}.schedule_backfill AS one
JOIN {schema}.schedule ON schedule.id = one.schedule
WHERE one.ended_at IS NULL AND schedule.app = $1
ORDER BY one.id
LIMIT $2
FOR UPDATE OF one, schedule SKIP LOCKED;

-- name: go_on
-- How far a backfill has come; $5 ends it.
UPDATE {schema}.schedule_backfill
SET cursor = $2, planned = planned + $3, passed = passed + $4,
    ended_at = CASE WHEN $5 THEN clock_timestamp() END
WHERE id = $1;

-- name: ran
-- Which of these times of a schedule have an occurrence already, of whatever kind but a manual one.
SELECT DISTINCT due
FROM {schema}.occurrence
WHERE schedule = $1 AND due = ANY ($2::timestamptz[]) AND kind <> 'manual';

-- name: look_now
-- There is something to do with a schedule.
UPDATE {schema}.schedule
SET next_at = clock_timestamp()
WHERE id = $1;

-- name: expire
-- Deletes a batch of occurrences that ended long ago; those up to its cursor a schedule never makes again.
DELETE FROM {schema}.occurrence
WHERE id = ANY (ARRAY(
    SELECT id
    FROM {schema}.occurrence
    WHERE created_at < $1 AND state NOT IN ('pending', 'queued', 'started')
    LIMIT $2
))
RETURNING id;
