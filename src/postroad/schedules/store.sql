-- Occurrences are unique on (schedule, due, kind): whoever inserts one first wins, all others find it there. A tick holds
-- the rows of its schedules, and the scheduler's lease, until its one commit. Where an event changes something, `next_at`
-- is the epoch: the schedule is looked at by the next tick, whatever its clock says.

-- name: turn
-- One registration of an App at a time, until the transaction ends; the server ends that of a process that stands still.
SELECT pg_advisory_xact_lock(hashtextextended('postroad.schedules.' || $1::text || ':' || $2::text, 0)),
    set_config('idle_in_transaction_session_timeout', '30s', TRUE);

-- name: releases
-- The releases of an App that have started, newest first.
SELECT fingerprint, number
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
SELECT id, name, app, definition::text AS definition, tz_version, retired_at IS NOT NULL AS retired, revision, cursor,
    paused_at
FROM {schema}.schedule
WHERE app = $1 OR name = ANY ($2::text[])
ORDER BY id
FOR UPDATE;

-- name: declare
-- Puts schedules in as they are declared, new ones and changed ones; a pause stays. Of those whose times are new, $6,
-- nothing is due before $7, which is now.
INSERT INTO {schema}.schedule AS standing (name, app, definition, release, tz_version, cursor, next_at)
SELECT given.name, $1, given.definition::jsonb, $2, $3, $7, 'epoch'
FROM unnest($4::text[], $5::text[]) AS given (name, definition)
ON CONFLICT (name) DO UPDATE
SET app = excluded.app, definition = excluded.definition, release = excluded.release, tz_version = excluded.tz_version,
    revision = standing.revision + 1, retired_at = NULL, changed_at = clock_timestamp(), next_at = 'epoch',
    cursor = CASE WHEN standing.name = ANY ($6::text[]) THEN greatest(standing.cursor, $7)
        ELSE standing.cursor END
RETURNING id, name;

-- name: keep
-- Schedules that stay as they are, under a new release.
UPDATE {schema}.schedule
SET release = $2
WHERE id = ANY ($1::uuid[]) AND release <> $2;

-- name: rezone
-- The zone data has changed: due times are found anew, from the present on. What was due before by the old data, and is
-- not decided yet, is still looked for.
UPDATE {schema}.schedule
SET tz_version = $2, next_at = 'epoch',
    cursor = greatest(cursor, least(clock_timestamp(), next_at - interval '1 microsecond'))
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
SET state = 'cancelled', reason = 'retired', ended_at = clock_timestamp()
WHERE state IN ('pending', 'queued') AND schedule IN (SELECT id FROM gone);

-- name: begin
-- The database's time, and the newest release of an App.
SELECT clock_timestamp() AS now,
    (SELECT max(number) FROM {schema}.schedule_release WHERE app = $1) AS newest;

-- name: next
-- In how many seconds there is something to do.
SELECT extract(epoch FROM min(next_at) - clock_timestamp())::float8 AS seconds
FROM {schema}.schedule
WHERE app = $1 AND next_at IS NOT NULL;

-- name: due
-- The schedules with which there is something to do, longest overdue first, locked until the transaction ends; those
-- that somebody else holds are passed over.
SELECT id, name, revision, cursor, paused_at
FROM {schema}.schedule
WHERE app = $1 AND next_at <= $2
ORDER BY next_at
LIMIT $3
FOR UPDATE SKIP LOCKED;

-- name: lock
-- One schedule, locked until the transaction ends.
SELECT id, name, revision, cursor, paused_at, paused_by, pause_reason, tz_version, definition::text AS definition,
    retired_at IS NOT NULL AS retired, clock_timestamp() AS now
FROM {schema}.schedule
WHERE name = $1
FOR UPDATE;

-- name: open
-- What waits or runs of some schedules, in the order in which it was due. Whether one runs, `work` says.
SELECT one.id, one.schedule, one.due, one.kind, one.request, one.state, one.start_at, one.overlap, one.work_id,
    one.started_at, one.reason IS NOT NULL OR work.cancel_at IS NOT NULL AS cancelling
FROM {schema}.occurrence AS one
LEFT JOIN {schema}.work ON work.id = one.work_id
WHERE one.schedule = ANY ($1::uuid[])
    AND (one.state IN ('pending', 'queued') OR (one.state = 'started' AND work.id IS NOT NULL))
ORDER BY one.due, one.id;

-- name: add
-- Occurrences, unless they are there: the answer holds those that are new.
INSERT INTO {schema}.occurrence
    (schedule, due, kind, request, key, state, reason, start_at, overlap, revision, tz_version, token, started_at,
     ended_at)
SELECT given.schedule, given.due, given.kind, given.request, given.key, given.state, given.reason, given.start_at,
    given.overlap, given.revision, $11, $12, CASE given.state WHEN 'started' THEN $13::timestamptz END,
    CASE WHEN given.state IN ('missed', 'skipped', 'cancelled') THEN $13::timestamptz END
FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
    $8::timestamptz[], $9::text[], $10::integer[])
    AS given (schedule, due, kind, request, key, state, reason, start_at, overlap, revision)
ON CONFLICT DO NOTHING
RETURNING id, key;

-- name: become
-- What was decided about occurrences that waited or run.
UPDATE {schema}.occurrence AS one
SET state = given.state, reason = given.reason, overlap = given.overlap, token = $6,
    started_at = CASE given.state WHEN 'started' THEN coalesce(one.started_at, $5) ELSE one.started_at END,
    ended_at = CASE WHEN given.state IN ('missed', 'skipped', 'cancelled') THEN $5::timestamptz END
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) AS given (id, state, reason, overlap)
WHERE one.id = given.id;

-- name: enqueued
-- The rows of work that occurrences run as; one that has none says why.
UPDATE {schema}.occurrence AS one
SET work_id = given.work_id, queue = given.queue, reason = given.reason
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) AS given (id, work_id, queue, reason)
WHERE one.id = given.id;

-- name: move
-- How far schedules have come, and when there is something to do with them again. A cursor never goes back here.
UPDATE {schema}.schedule
SET cursor = greatest(schedule.cursor, given.cursor), next_at = given.next_at
FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[]) AS given (id, cursor, next_at)
WHERE schedule.id = given.id;

-- name: restart
-- When occurrences that wait start at the earliest.
UPDATE {schema}.occurrence AS one
SET start_at = given.start_at
FROM unnest($1::bigint[], $2::timestamptz[]) AS given (id, start_at)
WHERE one.id = given.id;

-- name: over
-- Started occurrences whose row of work has ended, and how: it is finished, or in quarantine.
WITH over AS MATERIALIZED (
    SELECT one.id, one.schedule, one.due, one.kind, one.request, one.work_id, one.queue, one.key, one.reason,
        one.start_at, one.created_at
    FROM {schema}.occurrence AS one
    JOIN {schema}.schedule ON schedule.id = one.schedule
    WHERE one.state = 'started' AND schedule.app = $1
        AND NOT EXISTS (SELECT FROM {schema}.work WHERE work.id = one.work_id)
    LIMIT $2
    FOR UPDATE OF one SKIP LOCKED
)
SELECT over.id, over.schedule, over.due, over.kind, over.request, over.work_id, over.reason AS asked, over.start_at,
    finished.outcome, coalesce(finished.reason, quarantine.reason) AS reason, quarantine.code,
    coalesce(finished.finished_at, quarantine.quarantined_at, clock_timestamp()) AS ended_at,
    CASE WHEN finished.attempt = 1 THEN finished.started_at END AS began
FROM over
LEFT JOIN {schema}.finished ON finished.id = over.work_id AND finished.finished_at > over.created_at - interval '1 day'
LEFT JOIN {schema}.quarantine ON quarantine.queue = over.queue AND quarantine.key = over.key
    AND quarantine.resolved_at IS NULL
ORDER BY over.schedule, over.id;

-- name: hold
-- Schedules by id, locked until the transaction ends; those that somebody else holds are passed over.
SELECT id, name, revision, failures, paused_at, cursor
FROM {schema}.schedule
WHERE id = ANY ($1::uuid[])
ORDER BY id
FOR UPDATE SKIP LOCKED;

-- name: end
-- How started occurrences ended; one that was missed after all has not started.
UPDATE {schema}.occurrence AS one
SET state = given.state, reason = given.reason, ended_at = given.ended_at,
    started_at = CASE WHEN given.state <> 'missed' THEN one.started_at END
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::timestamptz[]) AS given (id, state, reason, ended_at)
WHERE one.id = given.id;

-- name: count_failures
-- How many runs of schedules have failed in a row; what waits for the end of one is looked at now.
UPDATE {schema}.schedule
SET failures = given.failures,
    next_at = CASE WHEN EXISTS (
        SELECT FROM {schema}.occurrence WHERE occurrence.schedule = schedule.id AND occurrence.state = 'queued'
    ) THEN 'epoch' ELSE schedule.next_at END
FROM unnest($1::uuid[], $2::integer[]) AS given (id, failures)
WHERE schedule.id = given.id;

-- name: pause
-- Pauses a schedule: nothing scheduled starts. What was asked for by hand still does.
UPDATE {schema}.schedule
SET paused_at = clock_timestamp(), paused_by = $2, pause_reason = $3, next_at = 'epoch'
WHERE id = $1;

-- name: resume
-- Lets a schedule go on from $2, which is now: a clock that was put right may have taken the cursor beyond that, and
-- what has an occurrence by then is passed over.
UPDATE {schema}.schedule
SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, failures = 0, next_at = 'epoch', cursor = $2
WHERE id = $1;

-- name: look_now
-- There is something to do with a schedule.
UPDATE {schema}.schedule
SET next_at = 'epoch'
WHERE id = $1;

-- name: reopened
-- The job of an occurrence runs again, as another row of work: somebody released it from quarantine.
UPDATE {schema}.occurrence
SET state = 'started', reason = NULL, work_id = $3, ended_at = NULL
WHERE schedule = $1 AND key = $2 AND state IN ('failed', 'started')
RETURNING id;

-- name: add_backfill
-- A range of past due times to be run.
INSERT INTO {schema}.schedule_backfill (schedule, from_at, to_at, overlap, rerun, by, reason)
VALUES ($1, $2, $3, $4, $5, $6, $7)
RETURNING id;

-- name: backfills
-- Backfills that are not done, oldest first, each with its schedule; locked until the transaction ends.
SELECT one.id, one.schedule, schedule.name, schedule.revision, one.from_at, one.to_at, one.cursor, one.overlap,
    one.rerun, one.by, one.reason, (SELECT count(*) FROM {schema}.occurrence AS waits
        WHERE waits.schedule = one.schedule AND waits.state IN ('pending', 'queued')) AS waiting
FROM {schema}.schedule_backfill AS one
JOIN {schema}.schedule ON schedule.id = one.schedule
WHERE one.ended_at IS NULL AND schedule.app = $1
ORDER BY one.id
LIMIT $2
FOR UPDATE OF one, schedule SKIP LOCKED;

-- name: go_on
-- How far a backfill has come, and whether that was its end.
UPDATE {schema}.schedule_backfill
SET cursor = $2, planned = planned + $3, passed = passed + $4,
    ended_at = CASE WHEN $5::boolean THEN clock_timestamp() END
WHERE id = $1;

-- name: ran
-- Which of these times of a schedule have an occurrence already, of whatever kind but a manual one.
SELECT DISTINCT due
FROM {schema}.occurrence
WHERE schedule = $1 AND due = ANY ($2::timestamptz[]) AND kind <> 'manual';

-- name: backfilling
-- Which of these times of a schedule a backfill has waiting or running.
SELECT one.due
FROM {schema}.occurrence AS one
WHERE one.schedule = $1 AND one.due = ANY ($2::timestamptz[]) AND one.kind = 'backfill'
    AND (one.state IN ('pending', 'queued')
        OR one.state = 'started' AND EXISTS (SELECT FROM {schema}.work WHERE work.id = one.work_id))
ORDER BY one.due;

-- name: again
-- Those of these times that earlier backfills have run wait anew, each under its new key; what was there of each before.
WITH before AS MATERIALIZED (
    SELECT id, due, key, request, state, reason, started_at, ended_at, work_id
    FROM {schema}.occurrence
    WHERE schedule = $1 AND due = ANY ($2::timestamptz[]) AND kind = 'backfill'
        AND state NOT IN ('pending', 'queued', 'started')
    FOR UPDATE
)
UPDATE {schema}.occurrence AS one
SET state = 'pending', reason = NULL, request = $4, key = given.key, start_at = $5, overlap = $6, revision = $7,
    tz_version = $8, token = $9, queue = NULL, work_id = NULL, created_at = clock_timestamp(), started_at = NULL,
    ended_at = NULL
FROM before
JOIN unnest($2::timestamptz[], $3::text[]) AS given (due, key) ON given.due = before.due
WHERE one.id = before.id
RETURNING (to_jsonb(before) - 'id')::text AS before;

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
