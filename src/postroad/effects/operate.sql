-- name: list
-- Effects, those without an outcome first, then latest first; $1 is a name, $2 a state, and $3 says that all are meant.
SELECT id, name, key, state, attempt, outcome, reason, looks, intended_at, sent_at, next_check_at, finished_at, run
FROM {schema}.effect
WHERE ($1::text IS NULL OR name = $1) AND ($2::text IS NULL OR state = $2)
    AND ($3::boolean OR $2 IS NOT NULL OR finished_at IS NULL)
ORDER BY finished_at IS NOT NULL, id DESC
LIMIT $4;

-- name: left
-- Effects that are left to a person, by name, those that have waited longest first; of $1, intended from $2 to $3.
SELECT name, count(*) AS count, min(intended_at) AS oldest, max(intended_at) AS latest,
    extract(epoch FROM clock_timestamp() - min(intended_at))::float8 AS oldest_seconds, max(id) AS last,
    coalesce((array_agg(reason ORDER BY id DESC))[1], '') AS reason
FROM {schema}.effect
WHERE state = 'manual' AND finished_at IS NULL AND ($1::text IS NULL OR name = $1)
    AND ($2::timestamptz IS NULL OR intended_at >= $2) AND ($3::timestamptz IS NULL OR intended_at < $3)
GROUP BY name
ORDER BY min(intended_at), name;

-- name: next_left
-- The next $6 of them behind the id $4 and up to $5, locked.
SELECT id
FROM {schema}.effect
WHERE state = 'manual' AND finished_at IS NULL AND name = $1
    AND ($2::timestamptz IS NULL OR intended_at >= $2) AND ($3::timestamptz IS NULL OR intended_at < $3)
    AND id > $4 AND id <= $5
ORDER BY id
LIMIT $6
FOR UPDATE;

-- name: show
-- One effect, without the command.
SELECT id, name, key, state, attempt, outcome, reason, looks, intended_at, sent_at, next_check_at, finished_at, run,
    provider_key, fingerprint, absences, settles_at, valid_until, cardinality(waiting) AS waiting
FROM {schema}.effect
WHERE id = $1;

-- name: lock
-- One effect, locked until the transaction ends.
SELECT id, name, key, state, outcome
FROM {schema}.effect
WHERE id = $1
FOR UPDATE;

-- name: look_up
-- A person wants it to be looked up now; one that was left to a person, too.
UPDATE {schema}.effect
SET state = 'unknown', next_check_at = clock_timestamp(), token = NULL, absences = 0
WHERE id = $1;

-- name: resolve
-- A person says what became of it; a look-up in progress changes nothing any more.
UPDATE {schema}.effect
SET state = $2, outcome = $3, reason = $4, token = NULL, next_check_at = NULL, absences = 0,
    command = CASE WHEN $2 = 'not_found' THEN command END,
    finished_at = CASE WHEN $2 <> 'not_found' THEN clock_timestamp() END
WHERE id = $1;

-- name: commands
-- Effects whose command is kept and may name a key: $1, or as JSON writes it ($2, $3); locked.
SELECT id, key, state, command
FROM {schema}.effect
WHERE command IS NOT NULL AND (key = convert_from($1::bytea, 'UTF8') OR position($1::bytea IN command) > 0
    OR position($2::bytea IN command) > 0 OR position(convert_to($3::text, 'UTF8') IN command) > 0)
ORDER BY id
FOR UPDATE;

-- name: erase
-- Takes the commands from effects of which nothing is looked up.
UPDATE {schema}.effect
SET command = NULL
WHERE id = ANY ($1::bigint[]);
