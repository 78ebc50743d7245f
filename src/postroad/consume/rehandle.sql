-- name: allow
-- Lets consumer $1 run the events of replay $2 again; what stands already stays as it was.
INSERT INTO {schema}.rehandle (consumer, replay, by, reason)
VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING
RETURNING replay;

-- name: begin
-- Begins message $2 of consumer $1 anew, once for the replay $3, where its owner has asked for that: its mark goes, but
-- for one that an open row owns, and the guard of its key $4 is set back, once for the replay. `allowed` says whether
-- it may run whatever its age: no mark that was set since can have expired. It never waits for another process; while
-- one has the message open nothing is begun.
WITH allowed AS MATERIALIZED (
    SELECT at > coalesce((SELECT low_water FROM {schema}.inbox_mark WHERE consumer = $1), '-infinity') AS young
    FROM {schema}.rehandle
    WHERE consumer = $1 AND replay = $3
), locked AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended($1::text || ':' || $2::uuid::text, 0)) AS had
    FROM allowed
), begun AS (
    INSERT INTO {schema}.rehandled (consumer, replay, message_key)
    SELECT $1, $3, $2
    FROM locked
    WHERE had
    ON CONFLICT DO NOTHING
    RETURNING message_key
), forgotten AS (
    DELETE FROM {schema}.inbox
    WHERE consumer = $1 AND message_key = $2 AND outcome IN ('handled', 'dropped') AND EXISTS (SELECT FROM begun)
    RETURNING message_key
), set_back AS (
    UPDATE {schema}.order_guard
    SET sequence = -1, replay = $3
    WHERE consumer = $1 AND key = $4 AND replay IS DISTINCT FROM $3 AND EXISTS (SELECT FROM begun)
)
SELECT coalesce((SELECT young FROM allowed), false) AS allowed, EXISTS (SELECT FROM forgotten) AS anew;

-- name: expire
-- Forgets what was let run again before $1; its events are then as old as any.
DELETE FROM {schema}.rehandle
WHERE at < $1
RETURNING replay;

-- name: known
-- How many of the messages $2 consumer $1 has a mark of, and how many of the others are past its window, by their times
-- $3.
SELECT count(*) FILTER (WHERE mark.message_key IS NOT NULL) AS handled,
    count(*) FILTER (WHERE mark.message_key IS NULL AND given.recorded < low.low_water) AS past
FROM unnest($2::uuid[], $3::timestamptz[]) AS given (message_key, recorded)
LEFT JOIN {schema}.inbox AS mark ON mark.consumer = $1 AND mark.message_key = given.message_key
LEFT JOIN {schema}.inbox_mark AS low ON low.consumer = $1;

-- name: lives
-- Whether this database knows consumer $1 at all.
SELECT EXISTS (SELECT FROM {schema}.inbox WHERE consumer = $1) OR EXISTS (SELECT FROM {schema}.inbox_mark WHERE consumer = $1)
    AS known;
