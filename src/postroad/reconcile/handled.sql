-- Ids are UUIDs of version 7: the time of staging stands in them, so that both sides know the hour of each.

-- name: first
-- Whether consumer $1 has marks of events that were staged before $3, the first mark after that, and the oldest drift of
-- $2. (What is older than 2001 is no time: foreign events have other keys.)
SELECT
    EXISTS (SELECT FROM {schema}.inbox
        WHERE consumer = $1 AND message_key < $3 AND message_key >= '00e40000-0000-7000-8000-000000000000') AS before,
    (SELECT message_key FROM {schema}.inbox WHERE consumer = $1 AND message_key >= $3 ORDER BY message_key LIMIT 1) AS mark,
    (SELECT min(key COLLATE "C") FROM {schema}.drift WHERE reconciliation = $2 AND resolved_at IS NULL) AS drift;

-- name: logged
-- For each hour from $2 to $3 in which events of the types $1 were staged (as hours since 1970, by their ids, which lie
-- from $4 to $5), how many there are, and a digest of their ids.
SELECT ('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 3600000 AS hour, count(*) AS count,
    sum(hashtextextended(id::text, 0)::numeric) AS digest
FROM {schema}.event
WHERE type = ANY ($1::text[]) AND recorded >= $2::timestamptz - interval '1 hour'
    AND recorded < $3::timestamptz + interval '1 hour' AND id >= $4::uuid AND id < $5::uuid
GROUP BY 1;

-- name: marked
-- The same of the marks of consumer $1, with ids from $2 to $3.
SELECT ('x' || left(replace(message_key::text, '-', ''), 12))::bit(48)::bigint / 3600000 AS hour, count(*) AS count,
    sum(hashtextextended(message_key::text, 0)::numeric) AS digest
FROM {schema}.inbox
WHERE consumer = $1 AND message_key >= $2::uuid AND message_key < $3::uuid
GROUP BY 1;

-- name: logged_ids
-- The ids of the events of the types $1 of the hour $2 to $3, from $4 to $5, beyond $6, at most $7.
SELECT id
FROM {schema}.event
WHERE type = ANY ($1::text[]) AND recorded >= $2::timestamptz - interval '1 hour'
    AND recorded < $3::timestamptz + interval '1 hour' AND id >= $4::uuid AND id < $5::uuid AND id > $6::uuid
ORDER BY id
LIMIT $7;

-- name: marked_ids
-- The ids of the marks of consumer $1, from $2 to $3, beyond $4, at most $5.
SELECT message_key AS id
FROM {schema}.inbox
WHERE consumer = $1 AND message_key >= $2::uuid AND message_key < $3::uuid AND message_key > $4::uuid
ORDER BY message_key
LIMIT $5;
