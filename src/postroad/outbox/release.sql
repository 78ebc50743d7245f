-- name: logged
-- The event at a known place of the log.
SELECT seq, recorded, retention, key, type, version
FROM {schema}.event
WHERE retention = $1 AND recorded = $2 AND seq = $3;

-- name: logged_by_id
-- An event by its id: it reads the whole log, for rows that do not say where their event lies.
SELECT seq, recorded, retention, key, type, version
FROM {schema}.event
WHERE id = $1;

-- name: put_back
-- Puts an event of the log into the outbox again, at a fresh place; the transaction's number comes before the place.
-- One that waits for the target already stands for it.
INSERT INTO {schema}.outbox AS waiting (shard, place, seq, recorded, retention, route, key_hash, target, replay)
SELECT $1, CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{schema}.outbox_place') END,
    $2, $3, $4, $5, $6, $7, $8
ON CONFLICT (seq, target) WHERE target IS NOT NULL DO UPDATE
SET replay = coalesce(waiting.replay, excluded.replay)
RETURNING place;
