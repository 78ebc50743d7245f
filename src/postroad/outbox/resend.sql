-- name: logged
-- The events of the keys $1 and the types $2, oldest first. It reads the whole log.
SELECT id, seq, recorded, retention, key, type || '.v' || version AS route
FROM {schema}.event
WHERE key = ANY ($1::text[]) AND type = ANY ($2::text[])
ORDER BY seq;

-- name: logged_by_id
-- The events of the ids $1, which were staged from $2 to $3.
SELECT id, seq, recorded, retention, key, type || '.v' || version AS route
FROM {schema}.event
WHERE id = ANY ($1::uuid[]) AND recorded >= $2::timestamptz - interval '1 hour'
    AND recorded <= $3::timestamptz + interval '1 hour'
ORDER BY seq;

-- name: put
-- Puts events of the log into the outbox again for the consumer $7, at fresh places, unless they wait for it already;
-- the transaction's number comes before the place.
INSERT INTO {schema}.outbox (shard, place, seq, recorded, retention, route, key_hash, target)
SELECT shard, CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{schema}.outbox_place') END,
    seq, recorded, retention, route, key_hash, $7
FROM (
    SELECT *
    FROM unnest($1::smallint[], $2::bigint[], $3::timestamptz[], $4::smallint[], $5::text[], $6::bigint[])
        AS given (shard, seq, recorded, retention, route, key_hash)
    ORDER BY seq
) AS ordered
ON CONFLICT DO NOTHING
RETURNING place;
