-- name: list
-- Schedules by name, those of one App or of all, and what runs and waits of each.
SELECT schedule.id, schedule.name, schedule.app, schedule.definition::text AS definition, schedule.revision,
    schedule.release, schedule.tz_version, schedule.cursor, schedule.next_at, schedule.failures, schedule.paused_at,
    schedule.paused_by, schedule.pause_reason, schedule.retired_at, schedule.created_at, schedule.changed_at,
    clock_timestamp() AS now, open.started, open.waiting, last.due AS last_due, last.state AS last_state,
    last.ended_at AS last_ended_at
FROM {schema}.schedule
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE one.state = 'started') AS started,
        count(*) FILTER (WHERE one.state <> 'started') AS waiting
    FROM {schema}.occurrence AS one
    WHERE one.schedule = schedule.id AND one.state IN ('pending', 'queued', 'started')
) AS open ON TRUE
LEFT JOIN LATERAL (
    SELECT one.due, one.state, one.ended_at
    FROM {schema}.occurrence AS one
    WHERE one.schedule = schedule.id
    ORDER BY one.due DESC
    LIMIT 1
) AS last ON TRUE
WHERE ($1::text IS NULL OR schedule.app = $1) AND ($2::text IS NULL OR schedule.name = $2)
    AND ($3::boolean OR schedule.retired_at IS NULL)
ORDER BY schedule.name;

-- name: history
-- Occurrences of a schedule, the latest due first; of those that have started, where the row of work stands.
SELECT one.id, one.due, one.kind, one.request, one.state, one.reason, one.start_at, one.overlap, one.revision, one.token,
    one.tz_version, one.key, one.queue, one.work_id, work.state AS work_state, one.started_at, one.ended_at
FROM {schema}.occurrence AS one
LEFT JOIN {schema}.work ON work.id = one.work_id AND one.state = 'started'
WHERE one.schedule = $1 AND ($2::text IS NULL OR one.state = $2)
ORDER BY one.due DESC, one.id DESC
LIMIT $3;

-- name: backfills
-- What was asked to be run of the past, the latest first.
SELECT id, from_at, to_at, cursor, overlap, rerun, planned, passed, by, reason, created_at, ended_at
FROM {schema}.schedule_backfill
WHERE schedule = $1
ORDER BY id DESC
LIMIT $2;
