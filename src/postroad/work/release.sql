-- name: look
-- One row of quarantine, locked until the transaction ends.
SELECT id, kind, queue, key, code, resolved_at, exchange, routing_key, seq, recorded, retention,
    headers ? 'amqp-properties' AS legacy, headers ->> 'postroad-replay' AS replay
FROM {schema}.quarantine
WHERE id = $1
FOR UPDATE;

-- name: of_work
-- The row of quarantine that the row $1 of work became: its digest says so.
SELECT id
FROM {schema}.quarantine
WHERE digest = sha256(convert_to('work ' || $1::bigint::text, 'UTF8'));

-- name: back_to_work
-- Turns rows of quarantine into ready rows of their queues, in order of id, with a fresh budget, and resolves them;
-- nothing of a row while a row of work is open for the same key. A delivery needs a key, which its inbox knows it by, but one of another's queue
-- (amqp-properties), which has one once it can be read; a job needs none, and has its priority among its headers. The
-- history keeps its first entry and the latest nineteen. An array says which were made: a join of the two was a nested
-- loop, whose cost is the square of the rows.
WITH numbered AS MATERIALIZED (
    SELECT kept.*, nextval('{schema}.work_id') AS number
    FROM (
        SELECT *
        FROM {schema}.quarantine
        WHERE id = ANY ($1::bigint[]) AND resolved_at IS NULL
            AND (kind = 'job' OR (kind IN ('delivery', 'dead-letter')
                AND (key IS NOT NULL OR headers ? 'amqp-properties')))
        ORDER BY id
    ) AS kept
), made AS (
    INSERT INTO {schema}.work
        (id, queue, kind, key, state, priority, run_at, due, attempt, event_type, body, content_type, headers, exchange,
         routing_key, history)
    SELECT number, queue, CASE kind WHEN 'job' THEN 'job' ELSE 'retry' END, key, 'ready',
        CASE kind WHEN 'job' THEN coalesce((headers ->> 'priority')::smallint, 0) ELSE 0 END, statement_timestamp(),
        CASE kind WHEN 'job' THEN statement_timestamp() END, 0, event_type, body, content_type,
        CASE kind WHEN 'job' THEN headers - 'priority' ELSE headers END, exchange, routing_key,
        (CASE WHEN jsonb_typeof(history) <> 'array' THEN '[]'
                WHEN jsonb_array_length(history) >= 20 THEN history - 1 ELSE history END)
            || jsonb_build_array(jsonb_build_object('class', 'released', 'by', $2::text, 'at', clock_timestamp()))
    FROM numbered
    ORDER BY number
    ON CONFLICT (queue, key) WHERE key IS NOT NULL DO NOTHING
    RETURNING id
)
UPDATE {schema}.quarantine
SET resolved_at = clock_timestamp(), resolution = 'retried', resolved_by = $2
FROM numbered
WHERE quarantine.id = numbered.id AND numbered.number = ANY (ARRAY(SELECT id FROM made))
RETURNING quarantine.id, numbered.number, quarantine.kind, quarantine.queue, quarantine.key, quarantine.code;

-- name: resolve
-- Resolves a row of quarantine as retried.
UPDATE {schema}.quarantine
SET resolved_at = clock_timestamp(), resolution = 'retried', resolved_by = $2
WHERE id = $1 AND resolved_at IS NULL
RETURNING id;

-- name: place
-- Notes where the event of an open row lies in the log.
UPDATE {schema}.quarantine
SET seq = $3, recorded = $4, retention = $5
WHERE queue = $1 AND key = $2 AND resolved_at IS NULL;
