-- name: work
-- Messages in work that may be of a key: it stands somewhere in body ($1, $2) or headers ($3).
SELECT id, body, content_type, headers, state = 'running' AS running
FROM {schema}.work
WHERE kind <> 'job'
    AND (position($1::bytea IN body) > 0 OR position($2::bytea IN body) > 0 OR position(convert_to($3::text, 'UTF8') IN body) > 0
        OR position($3::text IN headers::text) > 0)
ORDER BY id
FOR UPDATE;

-- name: quarantine
-- The same in quarantine, open or resolved.
SELECT id, body, content_type, headers, false AS running
FROM {schema}.quarantine
WHERE kind <> 'job'
    AND (position($1::bytea IN body) > 0 OR position($2::bytea IN body) > 0 OR position(convert_to($3::text, 'UTF8') IN body) > 0
        OR position($3::text IN headers::text) > 0)
ORDER BY id
FOR UPDATE;

-- name: jobs
-- Requests of jobs that may name a key: $1, or as JSON writes it ($2, $3).
SELECT id, body, state = 'running' AS running
FROM {schema}.work
WHERE kind = 'job' AND (position($1::bytea IN body) > 0 OR position($2::bytea IN body) > 0
    OR position(convert_to($3::text, 'UTF8') IN body) > 0)
ORDER BY id
FOR UPDATE;

-- name: quarantined_jobs
-- The same in quarantine, open or resolved.
SELECT id, body, false AS running
FROM {schema}.quarantine
WHERE kind = 'job' AND (position($1::bytea IN body) > 0 OR position($2::bytea IN body) > 0
    OR position(convert_to($3::text, 'UTF8') IN body) > 0)
ORDER BY id
FOR UPDATE;

-- name: erase_jobs
-- Takes their requests from jobs that run; they are cancelled, so that none of them is read again.
UPDATE {schema}.work
SET body = $2
WHERE id = ANY ($1::bigint[]);

-- name: erase_work
-- Puts tombstones ($2) in place of messages in work; their next run drops them.
UPDATE {schema}.work
SET body = given.tombstone, content_type = 'application/cloudevents+json', headers = '{}'
FROM unnest($1::bigint[], $2::bytea[]) AS given (id, tombstone)
WHERE work.id = given.id;

-- name: erase_quarantine
-- The same in quarantine; what is open is resolved as redacted, by $3.
UPDATE {schema}.quarantine
SET body = given.tombstone, headers = '{}',
    content_type = CASE kind WHEN 'job' THEN content_type ELSE 'application/cloudevents+json' END,
    resolution = CASE WHEN resolved_at IS NULL THEN 'redacted' ELSE resolution END,
    resolved_by = CASE WHEN resolved_at IS NULL THEN $3 ELSE resolved_by END,
    resolved_at = coalesce(resolved_at, clock_timestamp())
FROM unnest($1::bigint[], $2::bytea[]) AS given (id, tombstone)
WHERE quarantine.id = given.id;
