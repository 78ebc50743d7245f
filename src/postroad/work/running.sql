-- name: finish_many
-- Moves claimed rows to `finished` with one outcome, each fenced by its token: no two claims ever have the same, and a
-- row that does not run has none. Not by the state: its index holds the dead versions of all that ran lately.
WITH gone AS (
    DELETE FROM {schema}.work
    WHERE id = ANY ($1::bigint[]) AND token = ANY ($2::bigint[])
    RETURNING id, queue, kind, key, attempt, worker, event_type, created_at, started_at, history
)
INSERT INTO {schema}.finished
    (id, queue, kind, key, outcome, reason, attempt, worker, event_type, created_at, started_at, history)
SELECT id, queue, kind, key, $3, $4, least(attempt, 2147483646) + 1, worker, event_type, created_at, started_at, history
FROM gone
RETURNING id;

-- name: hold
-- Holds a claimed row until the transaction ends: nobody can take it before that commits. Only the commit is left, and
-- the server ends the transaction of a process that stands still before it.
SELECT id, set_config('idle_in_transaction_session_timeout', '5s', true)
FROM {schema}.work
WHERE id = $1 AND token = $2
FOR SHARE;

-- name: report
-- Notes how far a claimed row has come, fenced; whether somebody has cancelled it.
UPDATE {schema}.work
SET progress = $3, note = $4
WHERE id = $1 AND token = $2
RETURNING cancel_at IS NOT NULL AS cancelled, cancel_reason;

-- name: asked
-- What operators ask of workers: which rows that run under these leases are cancelled, which of these queues are paused.
SELECT token, NULL AS queue, cancel_reason AS reason
FROM {schema}.work
WHERE state = 'running' AND worker = ANY ($1::text[]) AND cancel_at IS NOT NULL
UNION ALL
SELECT NULL, name, reason
FROM {schema}.queue
WHERE paused_at IS NOT NULL AND name = ANY ($2::text[]);

-- name: bring_forward
-- Makes rows ready that are put off, since what they wait for is there; which of $1 run now, and may be put off yet.
WITH woken AS (
    UPDATE {schema}.work
    SET state = 'ready', run_at = clock_timestamp()
    WHERE id = ANY ($1::bigint[]) AND state = 'scheduled'
)
SELECT id
FROM {schema}.work
WHERE id = ANY ($1::bigint[]) AND state = 'running';

-- name: fleet
-- Takes the turn to claim from a queue whose jobs are counted over all processes, until the transaction ends.
-- The server ends that of a process that stands still, so that the others go on.
SELECT pg_try_advisory_xact_lock(hashtextextended('postroad.fleet.' || $1::text || ':' || $2::text, 0)) AS ours,
       set_config('idle_in_transaction_session_timeout', '5s', true);

-- name: count_running
-- How many rows of a queue run, in all processes together.
SELECT count(*) AS count
FROM {schema}.work
WHERE state = 'running' AND queue = $1;
