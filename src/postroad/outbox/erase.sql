-- name: events
-- The events of the key $1, of the producer $2 or of all, that are not erased yet. It reads the whole log.
SELECT seq, recorded, retention, envelope, EXISTS (SELECT FROM {schema}.outbox WHERE outbox.seq = event.seq) AS unsent
FROM {schema}.event
WHERE key = $1 AND ($2::text IS NULL OR starts_with(type, $2 || '.'))
ORDER BY retention, recorded, seq
FOR UPDATE;

-- name: erase
-- Puts tombstones ($4) in place of events, and takes their key away.
UPDATE {schema}.event
SET envelope = given.tombstone, key = NULL
FROM unnest($1::smallint[], $2::timestamptz[], $3::bigint[], $4::bytea[]) AS given (retention, recorded, seq, tombstone)
WHERE event.retention = given.retention AND event.recorded = given.recorded AND event.seq = given.seq;
