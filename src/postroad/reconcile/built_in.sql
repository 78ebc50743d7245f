-- What each lists should not be there for longer than the waiting time. Keys in the order of their bytes, beyond $1, at
-- most $2. Only read; each table has an owner of its own.

-- name: outbox
-- Events that were refused, or that nobody has sent for five minutes, by route, target and reason. Those of a replay
-- were staged long ago: they wait at most since it last moved.
SELECT key, found
FROM (
    SELECT (concat_ws(' ', route, 'for ' || target, '(' || what || ')')) COLLATE "C" AS key,
        format('%s events, the oldest of %s', count(*), to_char(min(recorded) AT TIME ZONE 'UTC',
            'YYYY-MM-DD HH24:MI "UTC"')) AS found
    FROM (
        SELECT route, outbox.target, recorded, CASE
            WHEN attempts > 0 THEN coalesce(left(outbox.reason, 100), 'refused')
            WHEN coalesce(available_at, replay.changed_at, recorded) < clock_timestamp() - interval '5 minutes'
            THEN 'not sent' END AS what
        FROM {schema}.outbox
        LEFT JOIN {schema}.replay ON replay.id = outbox.replay
    ) AS waiting
    WHERE what IS NOT NULL
    GROUP BY route, target, what
) AS grouped
WHERE key > $1
ORDER BY key
LIMIT $2;

-- name: work
-- Rows that run under no living lease.
SELECT key, found
FROM (
    SELECT lpad(work.id::text, 19, '0') COLLATE "C" AS key,
        format('%s of queue %s, worker %s', work.kind, work.queue, coalesce(work.worker, 'none')) AS found
    FROM {schema}.work
    LEFT JOIN {schema}.lease ON lease.name = work.worker
    WHERE work.state = 'running'
        AND (lease.name IS NULL OR lease.holder IS NULL OR lease.expires_at < clock_timestamp())
) AS orphan
WHERE key > $1
ORDER BY key
LIMIT $2;

-- name: effects
-- Acts outside the database of which nobody knows what became.
SELECT key, found
FROM (
    SELECT lpad(id::text, 19, '0') COLLATE "C" AS key, format('%s: %s', name, state) AS found
    FROM {schema}.effect
    WHERE finished_at IS NULL AND state IN ('unknown', 'reconciling', 'manual')
) AS unknown
WHERE key > $1
ORDER BY key
LIMIT $2;

-- name: schedules
-- Schedules with how far they have come, and since when (at most $1 ago) nobody has touched them: what a pause, a change
-- or a clock that jumped has left out is told in the audit.
SELECT id, name, definition::text AS definition, cursor, since
FROM (
    SELECT id, name, definition, cursor, greatest(
        changed_at, created_at, clock_timestamp() - $1::interval,
        (SELECT max(at) FROM {schema}.audit WHERE audit.subject IN (schedule.name, schedule.app)
            AND starts_with(audit.act, 'schedule.'))
    ) AS since
    FROM {schema}.schedule
    WHERE retired_at IS NULL AND paused_at IS NULL
) AS standing
WHERE since < cursor
ORDER BY name COLLATE "C";

-- name: occurrences
-- What became of the due times of those schedules.
SELECT key, 'due' AS found
FROM (
    SELECT concat(schedule.name, ' ', to_char(one.due AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
            COLLATE "C" AS key
    FROM {schema}.schedule
    JOIN {schema}.occurrence AS one ON one.schedule = schedule.id AND one.kind = 'scheduled'
    WHERE retired_at IS NULL AND paused_at IS NULL AND one.due <= schedule.cursor AND one.due > greatest(
        changed_at, schedule.created_at, clock_timestamp() - interval '1 day',
        (SELECT max(at) FROM {schema}.audit WHERE audit.subject IN (schedule.name, schedule.app)
            AND starts_with(audit.act, 'schedule.'))
    )
) AS done
WHERE key > $1
ORDER BY key
LIMIT $2;
