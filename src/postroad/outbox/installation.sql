-- name: look
-- The installation, where it stands now, and which running server that is; $1 is how long its tokens last.
-- The start of the server tells it from a physical copy, which has the same identifiers: 62 bits are enough for that.
SELECT
    one.id::text AS id, one.broker, one.place, one.token::text AS token, one.next::text AS next, here.place AS here,
    hashtextextended(here.place || '/' || extract(EPOCH FROM pg_postmaster_start_time()), 0) & 4611686018427387903
        AS instance,
    coalesce(one.changed_at + $1 <= now(), TRUE) AS due
FROM (
    SELECT concat_ws('/', system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()),
        '{schema}.installation'::regclass::oid) AS place
    FROM pg_control_system()
) AS here
CROSS JOIN LATERAL (SELECT * FROM {schema}.installation ORDER BY created_at LIMIT 1) AS one;

-- name: prepare
-- Begin to bind at the place $1. What was copied before it was ever bound gets an id of its own.
UPDATE {schema}.installation
SET id = CASE WHEN place = $1 THEN id ELSE gen_random_uuid() END,
    next = CASE WHEN place = $1 AND next IS NOT NULL THEN next ELSE gen_random_uuid() END,
    place = $1
WHERE token IS NULL;

-- name: bind
-- The token $1 is marked on the broker $2: the installation is bound to that.
UPDATE {schema}.installation
SET broker = $2, token = next, next = gen_random_uuid(), changed_at = now()
WHERE token IS NULL AND next = $1::text::uuid;

-- name: advance
-- The token $2 is marked on the broker $3, and its predecessor $1 no more.
UPDATE {schema}.installation
SET broker = $3, token = next, next = gen_random_uuid(), changed_at = now()
WHERE token = $1::text::uuid AND next = $2::text::uuid
RETURNING id;

-- name: adopt
-- Bound to nothing any more, with an id of its own, by a person's ($1) decision: the next to look binds it.
UPDATE {schema}.installation
SET id = gen_random_uuid(), broker = NULL, place = NULL, token = NULL, next = NULL, adopted_at = now(),
    adopted_by = $1;

-- name: waiting
-- How many events wait, and for how many seconds the oldest has.
SELECT count(*) AS count, coalesce(extract(EPOCH FROM now() - min(recorded)), 0)::float8 AS oldest
FROM {schema}.outbox;

-- name: discard
-- Delete what waits; the events stay in the log.
WITH gone AS (
    DELETE FROM {schema}.outbox
    RETURNING place
)
SELECT count(*) AS count FROM gone;
