-- `{chosen}` is which events of the log a replay is about, by the parameters $1 to $9: ids, types, versions, keys,
-- correlation, recorded since and before, occurred since and before; of each NULL means all.

-- name: counts
-- What of the log is chosen, by type and version; $10 is how a tombstone begins. It reads the days that are chosen.
SELECT type, version, count(*) AS count,
    count(*) FILTER (WHERE substring(envelope FROM 1 FOR length($10::bytea)) = $10) AS redacted,
    min(recorded) AS oldest, max(recorded) AS newest, min(seq) AS first, max(seq) AS last
FROM {schema}.event
WHERE {chosen}
GROUP BY type, version
ORDER BY type, version;

-- name: dropped
-- The days from $1 to $2 of which the events of a class are gone, by how long it keeps them; $3 is the schema's name.
-- Before the installation there was nothing.
SELECT {schema}.kept_days(parent.name) AS days, min(day)::date AS first, max(day)::date AS last, count(*)::int AS count
FROM unnest(ARRAY['event_7', 'event_30', 'event_90', 'event_400']) AS parent (name)
CROSS JOIN generate_series(
    greatest($1::timestamptz, (SELECT created_at FROM {schema}.installation)) AT TIME ZONE 'UTC',
    least($2::timestamptz, now()) AT TIME ZONE 'UTC', interval '1 day'
) AS day
WHERE day::date + 1 + {schema}.kept_days(parent.name) <= (now() AT TIME ZONE 'UTC')::date
    AND to_regclass(format('%I.%I', $3::text, parent.name || '_' || to_char(day, 'YYYYMMDD'))) IS NULL
GROUP BY parent.name
ORDER BY days;

-- name: page
-- Looks through $14 events of the log after the seq $10, up to $11, recorded from $12 to $13; of them the first $15
-- that are chosen. Always one row at least: how far it looked, and through how many. $16 is how a tombstone begins.
WITH looked AS MATERIALIZED (
    SELECT seq, recorded, retention, id, type, version, key, occurred, correlation,
        substring(envelope FROM 1 FOR length($16::bytea)) = $16 AS redacted
    FROM {schema}.event
    WHERE seq > $10 AND seq <= $11 AND recorded >= $12 AND recorded <= $13
    ORDER BY seq
    LIMIT $14
), found AS (
    SELECT *
    FROM looked
    WHERE {chosen}
    ORDER BY seq
    LIMIT $15
)
SELECT (SELECT max(seq) FROM looked) AS reached, (SELECT count(*) FROM looked) AS looked, found.*
FROM (SELECT 1) AS one
LEFT JOIN found ON TRUE
ORDER BY found.seq;

-- name: add
-- A replay; it runs from its commit on, unless its state says otherwise.
INSERT INTO {schema}.replay
    (id, chosen, target, rate, state, cursor, last, oldest, newest, total, by, reason, keeps_until)
VALUES ($1, $2::text::jsonb, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
    CASE WHEN $5 = 'running' THEN 'infinity' ELSE now() + $13::interval END)
RETURNING number;

-- name: running
-- The replays that run, oldest first.
SELECT number, rate
FROM {schema}.replay
WHERE state = 'running'
ORDER BY number;

-- name: lock
-- A replay as it stands, for whoever moves it on; no row where it does not run.
SELECT *, clock_timestamp() AS now
FROM {schema}.replay
WHERE number = $1 AND state = 'running'
FOR UPDATE;

-- name: open
-- How many rows of a replay wait in the outbox, counting $2 at most, how many of them were refused, and a reason.
SELECT count(*) AS count, count(*) FILTER (WHERE attempts > 0) AS refused,
    min(reason) FILTER (WHERE attempts > 0) AS reason
FROM (SELECT attempts, reason FROM {schema}.outbox WHERE replay = $1 LIMIT $2) AS mine;

-- name: taken
-- The first of the events $2 that another replay has in the outbox for the target $1.
SELECT min(seq) AS seq
FROM {schema}.outbox
WHERE target = $1 AND seq = ANY ($2::bigint[]) AND replay <> $3;

-- name: put
-- Puts events of the log into the outbox again, in order, at fresh places; the transaction's number comes before them.
-- One that waits for the target already stands for its repeat.
INSERT INTO {schema}.outbox (shard, place, seq, recorded, retention, route, key_hash, target, replay)
SELECT given.shard, CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{schema}.outbox_place') END, given.seq,
    given.recorded, given.retention, given.route, given.key_hash, $7::text, $8::uuid
FROM unnest($1::smallint[], $2::bigint[], $3::timestamptz[], $4::smallint[], $5::text[], $6::bigint[]) WITH ORDINALITY
    AS given (shard, seq, recorded, retention, route, key_hash, ordinality)
ORDER BY given.ordinality
ON CONFLICT (seq, target) WHERE target IS NOT NULL DO NOTHING;

-- name: move
-- Moves a replay on, and ends it where $5 says so: then the keys that were asked for, perhaps persons', are forgotten.
UPDATE {schema}.replay
SET cursor = $2, sent = sent + $3, redacted = redacted + $4, changed_at = clock_timestamp(),
    state = CASE WHEN $5 THEN 'done' ELSE state END,
    chosen = CASE WHEN $5 THEN chosen - 'keys' ELSE chosen END,
    keeps_until = CASE WHEN $5 THEN now() ELSE keeps_until END
WHERE number = $1;

-- name: look
-- A replay, locked until the transaction ends.
SELECT *
FROM {schema}.replay
WHERE number = $1
FOR UPDATE;

-- name: list
-- Replays, latest first, with what of them waits in the outbox.
SELECT replay.*, waiting.count AS waiting, waiting.refused, waiting.reason AS trouble
FROM {schema}.replay
CROSS JOIN LATERAL (
    SELECT count(*) AS count, count(*) FILTER (WHERE attempts > 0) AS refused,
        min(outbox.reason) FILTER (WHERE attempts > 0) AS reason
    FROM {schema}.outbox
    WHERE outbox.replay = replay.id
) AS waiting
WHERE $1::bigint IS NULL OR replay.number = $1
ORDER BY replay.number DESC
LIMIT $2;

-- name: withdraw
-- Takes what a replay has in the outbox for one consumer out again; the least seq of that.
WITH gone AS (
    DELETE FROM {schema}.outbox
    WHERE replay = $1 AND target IS NOT NULL
    RETURNING seq
)
SELECT min(seq) AS seq, count(*) AS count
FROM gone;

-- name: passed
-- How many events are chosen of those after the seq $10, up to $11, recorded from $12 to $13, and how many others of
-- them are erased; $14 is how a tombstone begins.
SELECT count(*) FILTER (WHERE substring(envelope FROM 1 FOR length($14::bytea)) <> $14) AS live,
    count(*) FILTER (WHERE substring(envelope FROM 1 FOR length($14::bytea)) = $14) AS redacted
FROM {schema}.event
WHERE {chosen} AND seq > $10 AND seq <= $11 AND recorded >= $12 AND recorded <= $13;

-- name: halt
-- Stops a replay: it begins again after the seq $2, what it met since, $3 events and $4 erased ones, is to come again,
-- and what it needs is kept for $5.
UPDATE {schema}.replay
SET state = 'stopped', cursor = least(cursor, $2), sent = greatest(0, sent - $3),
    redacted = greatest(0, redacted - $4), changed_at = clock_timestamp(), keeps_until = now() + $5::interval
WHERE number = $1;

-- name: resume
-- Lets a replay run again, at the rate $2 if that is given.
UPDATE {schema}.replay
SET state = 'running', rate = coalesce($2, rate), changed_at = clock_timestamp(), keeps_until = 'infinity'
WHERE number = $1;

-- name: ids
-- The ids of what is chosen after the seq $10, at most $11, with their times: to be looked for in a consumer's inbox.
-- What is erased ($12 is how a tombstone begins) is not sent.
SELECT seq, id, recorded
FROM {schema}.event
WHERE {chosen} AND seq > $10 AND substring(envelope FROM 1 FOR length($12::bytea)) <> $12
ORDER BY seq
LIMIT $11;

-- name: of_key
-- The replays that were asked for the key $1 and are not done.
SELECT number
FROM {schema}.replay
WHERE state <> 'done' AND chosen -> 'keys' ? $1
FOR UPDATE;

-- name: erase
-- Forgets the key $2 of the replays $1: what they are about is erased.
UPDATE {schema}.replay
SET chosen = jsonb_set(chosen, ARRAY['keys'], (chosen -> 'keys') - $2::text)
WHERE number = ANY ($1::bigint[]);
