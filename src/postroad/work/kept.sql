-- name: groups
-- What lies open in quarantine by fault, the group that has lain longest first. A group is of one fingerprint.
SELECT fingerprint, count(*) AS count, min(quarantined_at) AS oldest, max(quarantined_at) AS latest,
    array_agg(DISTINCT queue) AS queues, array_remove(array_agg(DISTINCT event_type), NULL) AS event_types,
    min(class) AS failure, min(code) AS code, min(error_type) AS error_type,
    (array_agg(reason ORDER BY id DESC))[1] AS reason
FROM {schema}.quarantine
WHERE resolved_at IS NULL AND ($1::bigint IS NULL OR id = $1) AND ($2::text IS NULL OR queue = $2)
    AND ($3::text IS NULL OR fingerprint = $3) AND ($4::text IS NULL OR class = $4) AND ($5::text IS NULL OR code = $5)
    AND ($6::text IS NULL OR event_type = $6) AND ($7::timestamptz IS NULL OR quarantined_at >= $7)
    AND ($8::timestamptz IS NULL OR quarantined_at < $8)
GROUP BY fingerprint
ORDER BY min(quarantined_at), fingerprint
LIMIT $9;

-- name: list
-- What lies open in quarantine, latest first, without bodies or headers.
SELECT id, kind, queue, key, class, code, fingerprint, error_type, reason, event_type, attempt,
    octet_length(body) AS size, content_type, exchange, routing_key, quarantined_at
FROM {schema}.quarantine
WHERE resolved_at IS NULL AND ($1::bigint IS NULL OR id = $1) AND ($2::text IS NULL OR queue = $2)
    AND ($3::text IS NULL OR fingerprint = $3) AND ($4::text IS NULL OR class = $4) AND ($5::text IS NULL OR code = $5)
    AND ($6::text IS NULL OR event_type = $6) AND ($7::timestamptz IS NULL OR quarantined_at >= $7)
    AND ($8::timestamptz IS NULL OR quarantined_at < $8)
ORDER BY id DESC
LIMIT $9;

-- name: totals
-- How much of it there is in each queue, since when, its latest id, and how much of it nobody can release: a delivery
-- without a key, whose identity nothing vouches for.
SELECT queue, count(*) AS count, extract(epoch FROM clock_timestamp() - min(quarantined_at))::float8 AS oldest,
    max(id) AS last, count(*) FILTER (
        WHERE kind IN ('delivery', 'dead-letter') AND key IS NULL AND NOT headers ? 'amqp-properties') AS unreleasable
FROM {schema}.quarantine
WHERE resolved_at IS NULL AND ($1::bigint IS NULL OR id = $1) AND ($2::text IS NULL OR queue = $2)
    AND ($3::text IS NULL OR fingerprint = $3) AND ($4::text IS NULL OR class = $4) AND ($5::text IS NULL OR code = $5)
    AND ($6::text IS NULL OR event_type = $6) AND ($7::timestamptz IS NULL OR quarantined_at >= $7)
    AND ($8::timestamptz IS NULL OR quarantined_at < $8)
GROUP BY queue
ORDER BY queue;

-- name: next
-- The next $11 of it behind the id $9 and up to $10, in the order in which they were quarantined, locked.
SELECT id, kind
FROM {schema}.quarantine
WHERE resolved_at IS NULL AND ($1::bigint IS NULL OR id = $1) AND ($2::text IS NULL OR queue = $2)
    AND ($3::text IS NULL OR fingerprint = $3) AND ($4::text IS NULL OR class = $4) AND ($5::text IS NULL OR code = $5)
    AND ($6::text IS NULL OR event_type = $6) AND ($7::timestamptz IS NULL OR quarantined_at >= $7)
    AND ($8::timestamptz IS NULL OR quarantined_at < $8) AND id > $9 AND id <= $10
ORDER BY id
LIMIT $11
FOR UPDATE;

-- name: show
-- One row, open or resolved; its body and headers only where $2 asks for them.
SELECT id, kind, queue, key, class, code, fingerprint, error_type, reason, event_type, attempt,
    octet_length(body) AS size, content_type, exchange, routing_key, quarantined_at,
    resolved_at, resolution, resolved_by, history,
    CASE WHEN $2::boolean THEN body END AS body, CASE WHEN $2 THEN headers END AS headers
FROM {schema}.quarantine
WHERE id = $1;

-- name: discard
-- Resolves open rows as discarded, as $2 and for the reason $3; which those were.
UPDATE {schema}.quarantine
SET resolved_at = clock_timestamp(), resolution = 'discarded', resolved_by = $2,
    history = (CASE WHEN jsonb_typeof(history) <> 'array' THEN '[]'
            WHEN jsonb_array_length(history) >= 20 THEN history - 1 ELSE history END)
        || jsonb_build_array(jsonb_build_object(
            'class', 'discarded', 'by', $2::text, 'reason', $3::text, 'at', clock_timestamp()))
WHERE id = ANY ($1::bigint[]) AND resolved_at IS NULL
RETURNING id;
