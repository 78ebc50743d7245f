-- A row has a token while it runs and only then, and no two claims ever have the same: so the token is the fence. The
-- state is not asked beside it, since its index holds the dead versions of all that ran lately.

-- name: delay
-- Puts a failed delivery off: a new row, unless one is open for this key.
INSERT INTO {schema}.work
    (id, queue, kind, key, state, run_at, attempt, event_type, body, content_type, headers, exchange, routing_key,
     history)
VALUES
    (nextval('{schema}.work_id'), $1, $2, $3,
     CASE WHEN $4::interval > interval '0' THEN 'scheduled' ELSE 'ready' END, clock_timestamp() + $4::interval,
     $5, $6, $7, $8, $9::text::jsonb, $10, $11,
     jsonb_build_array($12::text::jsonb || jsonb_build_object('at', clock_timestamp())))
ON CONFLICT (queue, key) WHERE key IS NOT NULL DO NOTHING
RETURNING id;

-- name: delay_again
-- Puts a claimed row off, fenced; its history keeps the first entry and the latest nineteen. One that an operator has
-- cancelled meanwhile is finished instead.
WITH mine AS MATERIALIZED (
    SELECT id, cancel_at IS NOT NULL AS cancelled
    FROM {schema}.work
    WHERE id = $1 AND token = $2
    FOR UPDATE
), gone AS (
    DELETE FROM {schema}.work
    WHERE id = ANY (ARRAY(SELECT id FROM mine WHERE cancelled))
    RETURNING id, queue, kind, key, cancel_reason, attempt, worker, event_type, created_at, started_at, history
), ended AS (
    INSERT INTO {schema}.finished
        (id, queue, kind, key, outcome, reason, attempt, worker, event_type, created_at, started_at, history)
    SELECT id, queue, kind, key, 'cancelled', coalesce(cancel_reason, 'cancelled'), least(attempt, 2147483646) + 1,
        worker, event_type, created_at, started_at, history
    FROM gone
), moved AS (
    UPDATE {schema}.work
    SET state = CASE WHEN $3::interval > interval '0' THEN 'scheduled' ELSE 'ready' END,
        run_at = clock_timestamp() + $3::interval, attempt = $4, suspect = 0,
        worker = NULL, token = NULL, started_at = NULL,
        history = (CASE WHEN jsonb_typeof(history) <> 'array' THEN '[]'
                WHEN jsonb_array_length(history) >= 20 THEN history - 1 ELSE history END)
            || jsonb_build_array($5::text::jsonb || jsonb_build_object('at', clock_timestamp()))
    WHERE id = ANY (ARRAY(SELECT id FROM mine WHERE NOT cancelled))
)
SELECT id
FROM mine;

-- name: give_back
-- Makes claimed rows claimable again, fenced and uncharged; in order of id, so that two of these cannot deadlock.
WITH mine AS MATERIALIZED (
    SELECT id
    FROM {schema}.work
    WHERE id = ANY ($1::bigint[]) AND token = ANY ($2::bigint[])
    ORDER BY id
    FOR UPDATE
)
UPDATE {schema}.work
SET state = 'ready', worker = NULL, token = NULL, started_at = NULL
WHERE id = ANY (ARRAY(SELECT id FROM mine))
RETURNING id;

-- name: finish
-- Moves a claimed row to `finished`, fenced. Only the commit is left, and the server ends the transaction of a process
-- that stands still before it: an author who enqueues under the same key waits for it.
WITH gone AS (
    DELETE FROM {schema}.work
    WHERE id = $1 AND token = $2
    RETURNING id, queue, kind, key, attempt, worker, event_type, created_at, started_at, history
)
INSERT INTO {schema}.finished
    (id, queue, kind, key, outcome, reason, attempt, worker, event_type, created_at, started_at, history)
SELECT id, queue, kind, key, $3, $4, least(attempt, 2147483646) + 1, worker, event_type, created_at, started_at, history
FROM gone
RETURNING id, set_config('idle_in_transaction_session_timeout', '5s', true);

-- name: quarantine
-- Keeps a message until a person decides, unless it is kept already.
INSERT INTO {schema}.quarantine
    (kind, queue, key, digest, class, code, fingerprint, error_type, reason, attempt,
     event_type, body, content_type, headers, exchange, routing_key, history)
VALUES
    ($1, $2, $3, $17, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::text::jsonb, $14, $15,
     jsonb_build_array($16::text::jsonb || jsonb_build_object('at', clock_timestamp())))
ON CONFLICT DO NOTHING
RETURNING id;

-- name: quarantine_claimed
-- Moves a claimed row into quarantine, fenced; one that is kept there already under its key stands for it. Without a key
-- nothing does: the digest names the row. A job's priority is kept among its headers. One that an operator has cancelled
-- meanwhile is finished instead.
WITH gone AS (
    DELETE FROM {schema}.work
    WHERE id = $1 AND token = $2
    RETURNING *, CASE kind WHEN 'job' THEN headers || jsonb_build_object('priority', priority) ELSE headers END AS kept
), ended AS (
    INSERT INTO {schema}.finished
        (id, queue, kind, key, outcome, reason, attempt, worker, event_type, created_at, started_at, history)
    SELECT id, queue, kind, key, 'cancelled', coalesce(cancel_reason, 'cancelled'), least(attempt, 2147483646) + 1,
        worker, event_type, created_at, started_at, history
    FROM gone
    WHERE cancel_at IS NOT NULL
), moved AS (
    INSERT INTO {schema}.quarantine
        (kind, queue, key, digest, class, code, fingerprint, error_type, reason, attempt,
         event_type, body, content_type, headers, exchange, routing_key, history)
    SELECT CASE kind WHEN 'job' THEN 'job' ELSE 'delivery' END, queue, key,
        sha256(convert_to('work ' || id, 'UTF8')), $3, $4, $5, $6, $7, $8,
        event_type, body, content_type, kept, exchange, routing_key,
        history || jsonb_build_array($9::text::jsonb || jsonb_build_object('at', clock_timestamp()))
    FROM gone
    WHERE cancel_at IS NULL
    ON CONFLICT DO NOTHING
)
SELECT id
FROM gone;

-- name: quarantine_state
-- How much lies open in quarantine per queue, and the age of the oldest in seconds.
SELECT queue, count(*) AS depth, extract(epoch FROM clock_timestamp() - min(quarantined_at))::float8 AS oldest
FROM {schema}.quarantine
WHERE resolved_at IS NULL
GROUP BY queue
ORDER BY queue;

-- name: claim
-- Claims ready rows of a queue, best priority first, oldest first, from the start. A time that Python cannot hold (an
-- infinite one, one before Christ) comes back as the nearest that it can: one such row would else fail every claim.
WITH taken AS MATERIALIZED (
    SELECT id
    FROM {schema}.work
    WHERE queue = $1 AND state = 'ready' AND suspect = 0
    ORDER BY priority, run_at, id
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.work
SET state = 'running', worker = $3, token = nextval('{schema}.work_token'), started_at = clock_timestamp()
WHERE id = ANY (ARRAY(SELECT id FROM taken))
RETURNING id, token, queue, kind, key, priority, attempt, suspect,
    least(greatest(run_at, '0001-01-02 UTC'), '9999-12-30 UTC') AS run_at,
    CASE WHEN due IS NOT NULL THEN least(greatest(due, '0001-01-02 UTC'), '9999-12-30 UTC') END AS due,
    least(greatest(created_at, '0001-01-02 UTC'), '9999-12-30 UTC') AS created_at,
    clock_timestamp() - least(greatest(coalesce(due, created_at), '0001-01-02 UTC'), '9999-12-30 UTC') AS age,
    event_type, body, content_type, headers, exchange, routing_key, cancel_at IS NOT NULL AS cancelled, cancel_reason;

-- name: claim_on
-- Claims ready rows of a queue that come after a position, given per priority: dead versions of rows claimed before,
-- which a held transaction keeps in the index, are not walked over again.
WITH taken AS MATERIALIZED (
    SELECT next.id
    FROM unnest($4::smallint[], $5::timestamptz[], $6::bigint[]) AS reached (priority, run_at, id)
    CROSS JOIN LATERAL (
        SELECT work.id
        FROM {schema}.work
        WHERE work.queue = $1 AND work.priority = reached.priority AND work.state = 'ready' AND work.suspect = 0
            AND (work.run_at, work.id) > (reached.run_at, reached.id)
        ORDER BY work.run_at, work.id
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ) AS next
    LIMIT $2
)
UPDATE {schema}.work
SET state = 'running', worker = $3, token = nextval('{schema}.work_token'), started_at = clock_timestamp()
WHERE id = ANY (ARRAY(SELECT id FROM taken))
RETURNING id, token, queue, kind, key, priority, attempt, suspect,
    least(greatest(run_at, '0001-01-02 UTC'), '9999-12-30 UTC') AS run_at,
    CASE WHEN due IS NOT NULL THEN least(greatest(due, '0001-01-02 UTC'), '9999-12-30 UTC') END AS due,
    least(greatest(created_at, '0001-01-02 UTC'), '9999-12-30 UTC') AS created_at,
    clock_timestamp() - least(greatest(coalesce(due, created_at), '0001-01-02 UTC'), '9999-12-30 UTC') AS age,
    event_type, body, content_type, headers, exchange, routing_key, cancel_at IS NOT NULL AS cancelled, cancel_reason;

-- name: claim_suspect
-- Claims one row that was running when its worker died, to be run alone.
WITH taken AS MATERIALIZED (
    SELECT id
    FROM {schema}.work
    WHERE queue = $1 AND state = 'ready' AND suspect > 0
    ORDER BY priority, run_at, id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.work
SET state = 'running', worker = $2, token = nextval('{schema}.work_token'), started_at = clock_timestamp()
WHERE id = ANY (ARRAY(SELECT id FROM taken))
RETURNING id, token, queue, kind, key, priority, attempt, suspect,
    least(greatest(run_at, '0001-01-02 UTC'), '9999-12-30 UTC') AS run_at,
    CASE WHEN due IS NOT NULL THEN least(greatest(due, '0001-01-02 UTC'), '9999-12-30 UTC') END AS due,
    least(greatest(created_at, '0001-01-02 UTC'), '9999-12-30 UTC') AS created_at,
    clock_timestamp() - least(greatest(coalesce(due, created_at), '0001-01-02 UTC'), '9999-12-30 UTC') AS age,
    event_type, body, content_type, headers, exchange, routing_key, cancel_at IS NOT NULL AS cancelled, cancel_reason;

-- name: make_due
-- Makes due rows claimable, a bounded batch; statement_timestamp() since a volatile clock could not use the index.
WITH due AS MATERIALIZED (
    SELECT id
    FROM {schema}.work
    WHERE state = 'scheduled' AND run_at <= statement_timestamp()
    ORDER BY run_at
    LIMIT $1
    FOR UPDATE SKIP LOCKED
), moved AS (
    UPDATE {schema}.work
    SET state = 'ready'
    WHERE id = ANY (ARRAY(SELECT id FROM due))
    RETURNING queue
)
SELECT queue, count(*) AS count
FROM moved
GROUP BY queue;

-- name: running_workers
-- The leases under which rows are running.
SELECT DISTINCT worker
FROM {schema}.work
WHERE state = 'running' AND worker IS NOT NULL;

-- name: recover
-- Gives back what dead workers were running: suspect, and charged only if it ran alone. A delivery is never suspect
-- here: its consumer counts the starts of what comes again, as it does with a broker.
WITH lost AS MATERIALIZED (
    SELECT id
    FROM {schema}.work
    WHERE state = 'running' AND worker = ANY ($1::text[])
    ORDER BY id
    LIMIT $2
    FOR UPDATE SKIP LOCKED
), moved AS (
    UPDATE {schema}.work
    SET state = 'ready', attempt = least(attempt, 2147483646)
            + CASE WHEN suspect > 0 OR kind = 'delivery' THEN 1 ELSE 0 END,
        suspect = least(suspect, 2147483646) + CASE kind WHEN 'delivery' THEN 0 ELSE 1 END,
        worker = NULL, token = NULL, started_at = NULL,
        history = (CASE WHEN jsonb_typeof(history) <> 'array' THEN '[]'
                WHEN jsonb_array_length(history) >= 20 THEN history - 1 ELSE history END)
            || jsonb_build_array(jsonb_build_object(
                'class', 'interrupted', 'reason', 'its worker died', 'at', clock_timestamp()))
    WHERE id = ANY (ARRAY(SELECT id FROM lost))
    RETURNING queue
)
SELECT queue, count(*) AS count
FROM moved
GROUP BY queue;

-- name: suspects
-- Which of these queues have a suspect to run.
SELECT DISTINCT queue
FROM {schema}.work
WHERE state = 'ready' AND suspect > 0 AND queue = ANY ($1::text[]);

-- name: held_by
-- The rows that run under a lease.
SELECT id, token
FROM {schema}.work
WHERE state = 'running' AND worker = $1;
