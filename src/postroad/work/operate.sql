-- name: list
-- Open rows, latest first, without bodies and headers. Times that Python cannot hold are the nearest that it can.
SELECT id, kind, queue, event_type, key, state, priority, attempt,
    least(greatest(run_at, '0001-01-02 UTC'), '9999-12-30 UTC') AS run_at,
    least(greatest(created_at, '0001-01-02 UTC'), '9999-12-30 UTC') AS created_at,
    CASE WHEN started_at IS NOT NULL THEN least(greatest(started_at, '0001-01-02 UTC'), '9999-12-30 UTC') END AS started_at,
    worker, progress::numeric::float8 AS progress, note,
    CASE WHEN cancel_at IS NOT NULL THEN least(greatest(cancel_at, '0001-01-02 UTC'), '9999-12-30 UTC') END AS cancel_at
FROM {schema}.work
WHERE ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR state = $2)
    AND ($3::text IS NULL OR (kind = 'job' AND event_type = $3))
ORDER BY id DESC
LIMIT $4;

-- name: counts
-- How many rows the same choice has in each state.
SELECT state, count(*) AS count
FROM {schema}.work
WHERE ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR state = $2)
    AND ($3::text IS NULL OR (kind = 'job' AND event_type = $3))
GROUP BY state
ORDER BY state;

-- name: show_open
-- An open row; its body and headers only where $2 asks for them.
SELECT 'work' AS place, id, kind, queue, event_type, key, state, priority, attempt, suspect,
    least(greatest(run_at, '0001-01-02 UTC'), '9999-12-30 UTC') AS run_at,
    CASE WHEN due IS NOT NULL THEN least(greatest(due, '0001-01-02 UTC'), '9999-12-30 UTC') END AS due,
    least(greatest(created_at, '0001-01-02 UTC'), '9999-12-30 UTC') AS created_at,
    CASE WHEN started_at IS NOT NULL THEN least(greatest(started_at, '0001-01-02 UTC'), '9999-12-30 UTC') END AS started_at,
    CASE WHEN cancel_at IS NOT NULL THEN least(greatest(cancel_at, '0001-01-02 UTC'), '9999-12-30 UTC') END AS cancel_at,
    worker, progress::numeric::float8 AS progress, note, cancelled_by, cancel_reason, octet_length(body) AS size, content_type,
    history, CASE WHEN $2::boolean THEN body END AS body, CASE WHEN $2 THEN headers END AS headers
FROM {schema}.work
WHERE id = $1;

-- name: show_finished
-- A finished row: its body left with it.
SELECT 'finished' AS place, id, kind, queue, event_type, key, outcome AS state, reason, attempt,
    least(greatest(created_at, '0001-01-02 UTC'), '9999-12-30 UTC') AS created_at,
    CASE WHEN started_at IS NOT NULL THEN least(greatest(started_at, '0001-01-02 UTC'), '9999-12-30 UTC') END AS started_at,
    finished_at, worker, history
FROM {schema}.finished
WHERE id = $1;

-- name: show_quarantined
-- What became of a row that went from work into quarantine: its digest names the row of work.
SELECT 'quarantine' AS place, $1::bigint AS id, id AS quarantine_id, kind, queue, event_type, key,
    CASE WHEN resolved_at IS NULL THEN 'quarantined' ELSE resolution END AS state, code, reason, attempt,
    quarantined_at AS finished_at, resolved_by, octet_length(body) AS size, content_type, history,
    CASE WHEN $2::boolean THEN body END AS body, CASE WHEN $2 THEN headers END AS headers
FROM {schema}.quarantine
WHERE digest = sha256(convert_to('work ' || $1::bigint::text, 'UTF8'));

-- name: look
-- An open row, locked until the transaction ends.
SELECT id, kind, queue, state, cancel_at, cancelled_by
FROM {schema}.work
WHERE id = $1
FOR UPDATE;

-- name: cancel
-- Moves a row that does not run to `finished`, as cancelled.
WITH gone AS (
    DELETE FROM {schema}.work
    WHERE id = $1 AND kind = 'job' AND state <> 'running'
    RETURNING id, queue, kind, key, attempt, worker, event_type, created_at, started_at, history
)
INSERT INTO {schema}.finished
    (id, queue, kind, key, outcome, reason, attempt, worker, event_type, created_at, started_at, history)
SELECT id, queue, kind, key, 'cancelled', coalesce($3, 'cancelled'), attempt, worker, event_type, created_at, started_at,
    (CASE WHEN jsonb_typeof(history) <> 'array' THEN '[]'
            WHEN jsonb_array_length(history) >= 20 THEN history - 1 ELSE history END)
        || jsonb_build_array(jsonb_build_object(
            'class', 'cancelled', 'by', $2::text, 'reason', $3::text, 'at', clock_timestamp()))
FROM gone
RETURNING id;

-- name: ask
-- Asks whoever runs a row to stop; it is asked once.
UPDATE {schema}.work
SET cancel_at = clock_timestamp(), cancelled_by = $2, cancel_reason = $3
WHERE id = $1 AND kind = 'job' AND state = 'running' AND cancel_at IS NULL
RETURNING id;

-- name: hurry
-- Makes a scheduled row ready now.
UPDATE {schema}.work
SET state = 'ready', run_at = clock_timestamp(),
    history = (CASE WHEN jsonb_typeof(history) <> 'array' THEN '[]'
            WHEN jsonb_array_length(history) >= 20 THEN history - 1 ELSE history END)
        || jsonb_build_array(jsonb_build_object('class', 'hurried', 'by', $2::text, 'at', clock_timestamp()))
WHERE id = $1 AND state = 'scheduled'
RETURNING id;

-- name: queues
-- Every queue that has open rows, or of which an operator has said something.
WITH open AS (
    SELECT queue AS name, count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
        count(*) FILTER (WHERE state = 'ready') AS ready, count(*) FILTER (WHERE state = 'waiting') AS waiting,
        count(*) FILTER (WHERE state = 'running') AS running,
        extract(epoch FROM clock_timestamp() - min(run_at) FILTER (WHERE state = 'ready' AND isfinite(run_at)))::float8
            AS oldest
    FROM {schema}.work
    WHERE $1::text IS NULL OR queue = $1
    GROUP BY queue
)
SELECT name, coalesce(scheduled, 0) AS scheduled, coalesce(ready, 0) AS ready, coalesce(waiting, 0) AS waiting,
    coalesce(running, 0) AS running, oldest AS oldest_seconds, said.paused_at, said.paused_by, said.reason
FROM open
FULL JOIN (SELECT * FROM {schema}.queue WHERE $1::text IS NULL OR name = $1) AS said USING (name)
ORDER BY name;

-- name: pause
-- Pauses a queue; one that is paused stays as it was.
INSERT INTO {schema}.queue (name, paused_at, paused_by, reason)
VALUES ($1, clock_timestamp(), $2, $3)
ON CONFLICT (name) DO UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, reason = excluded.reason,
    changed_at = clock_timestamp()
WHERE queue.paused_at IS NULL
RETURNING name;

-- name: resume
-- Lets a paused queue run; the row says who did.
UPDATE {schema}.queue
SET paused_at = NULL, paused_by = NULL, reason = 'resumed by ' || $2::text, changed_at = clock_timestamp()
WHERE name = $1 AND paused_at IS NOT NULL
RETURNING name;
