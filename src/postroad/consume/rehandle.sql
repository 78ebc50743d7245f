-- name: allow
-- Lets consumer $1 run again what it has handled until now, where it comes with replay $2; what stands stays as it was.
INSERT INTO {schema}.rehandle (consumer, replay, by, reason)
VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING
RETURNING replay;

-- name: begin
-- Begins message $2 of consumer $1 anew where its owner lets the replay $3 run again: the mark that stood when that was
-- said goes, but for one that an open row owns, and so does what the guard of its key $4 said then. `allowed` says
-- whether it may run whatever its age: no mark that was set since can have expired. It never waits for another process;
-- while one has the message open its mark stays.
WITH allowed AS MATERIALIZED (
    SELECT at, at > coalesce((SELECT low_water FROM {schema}.inbox_mark WHERE consumer = $1), '-infinity') AS young
    FROM {schema}.rehandle
    WHERE consumer = $1 AND replay = $3
), locked AS MATERIALIZED (
    SELECT at, pg_try_advisory_xact_lock(hashtextextended($1::text || ':' || $2::uuid::text, 0)) AS had
    FROM allowed
), forgotten AS (
    DELETE FROM {schema}.inbox
    USING locked
    WHERE consumer = $1 AND message_key = $2 AND outcome IN ('handled', 'dropped') AND had AND inbox.at < locked.at
    RETURNING message_key
), set_back AS (
    UPDATE {schema}.order_guard
    SET sequence = -1
    FROM allowed
    WHERE consumer = $1 AND key = $4 AND order_guard.at < allowed.at
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
SELECT EXISTS (SELECT FROM {schema}.inbox WHERE consumer = $1)
    OR EXISTS (SELECT FROM {schema}.inbox_mark WHERE consumer = $1) AS known;
