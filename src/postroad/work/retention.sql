-- name: thin_finished
-- Deletes finished work of the days before $1, but for failures, those of the days before $2; at most $3. It is for
-- what could not leave as a whole partition.
WITH old AS MATERIALIZED (
    SELECT id, finished_at
    FROM {schema}.finished
    WHERE finished_at < $1::timestamptz
        AND (outcome IN ('handled', 'dropped', 'duplicate') OR finished_at < $2::timestamptz)
    LIMIT $3
)
DELETE FROM {schema}.finished
USING old
WHERE finished.id = old.id AND finished.finished_at = old.finished_at
RETURNING finished.id;

-- name: forget_resolved
-- Deletes rows of quarantine that a person resolved before $1, at most $2.
DELETE FROM {schema}.quarantine
WHERE id = ANY (ARRAY(
    SELECT id
    FROM {schema}.quarantine
    WHERE resolved_at < $1::timestamptz
    LIMIT $2
))
RETURNING id;
