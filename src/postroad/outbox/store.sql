-- Ranges of places are written as rows (shard, place), and conditions as CASE, so that a planner whose statistics lag
-- behind a burst does not guess that few rows fit: it would fetch and sort a whole range (a hundred thousand rows for
-- fifty), rather than follow the primary key.

-- name: fresh
-- Rows beyond the cursors $2 of the shards $1, in place order, at most $3 of each shard and $4 of all.
-- Those that are not due (refused before, or for later) are listed too, so that the cursors can pass them.
SELECT page.*
FROM unnest($1::smallint[], $2::bigint[]) AS held (shard, cursor)
CROSS JOIN LATERAL (
    SELECT
        shard, place, seq, recorded, retention, route, key_hash, target, replay, attempts,
        attempts = 0 AND (available_at IS NULL OR available_at <= now()) AS due
    FROM {schema}.outbox AS o
    WHERE (o.shard, o.place) > (held.shard, held.cursor) AND (o.shard, o.place) <= (held.shard, 9223372036854775807)
    ORDER BY o.shard, o.place
    LIMIT $3
) AS page
ORDER BY page.place
LIMIT $4;

-- name: passing
-- As fresh, but passing over the routes $5, and looking through $6 rows of each shard at most. `top` is how far a shard
-- was looked through, and `seen` how many rows that were, if all that was found of it is listed.
SELECT page.*, held.shard AS of_shard, held.top, held.seen
FROM (
    SELECT given.shard, given.cursor, coalesce(looked.top, given.cursor) AS top, looked.seen
    FROM unnest($1::smallint[], $2::bigint[]) AS given (shard, cursor)
    CROSS JOIN LATERAL (
        SELECT max(ahead.place) AS top, count(*) AS seen
        FROM (
            SELECT o.place
            FROM {schema}.outbox AS o
            WHERE (o.shard, o.place) > (given.shard, given.cursor)
                AND (o.shard, o.place) <= (given.shard, 9223372036854775807)
            ORDER BY o.shard, o.place
            LIMIT $6
        ) AS ahead
    ) AS looked
) AS held
LEFT JOIN LATERAL (
    SELECT
        shard, place, seq, recorded, retention, route, key_hash, target, replay, attempts,
        attempts = 0 AND (available_at IS NULL OR available_at <= now()) AS due
    FROM {schema}.outbox AS o
    WHERE (o.shard, o.place) > (held.shard, held.cursor) AND (o.shard, o.place) <= (held.shard, held.top)
        AND CASE WHEN o.target IS NULL THEN o.route <> ALL($5::text[]) ELSE TRUE END
    ORDER BY o.shard, o.place
    LIMIT $3
) AS page ON TRUE
ORDER BY page.place
LIMIT $4 + cardinality($1);

-- name: behind
-- Due rows of the route $4 above $2 and up to $3 of the shards $1, but for the places $5; at most $6 of them.
SELECT page.*
FROM unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS held (shard, low, high)
CROSS JOIN LATERAL (
    SELECT shard, place, seq, recorded, retention, route, key_hash, target, replay, attempts, TRUE AS due
    FROM {schema}.outbox AS o
    WHERE (o.shard, o.place) > (held.shard, held.low) AND (o.shard, o.place) <= (held.shard, held.high)
        AND CASE
            WHEN o.attempts = 0 AND o.route = $4 AND o.target IS NULL
                AND (o.available_at IS NULL OR o.available_at <= now())
            THEN o.place NOT IN (SELECT unnest($5::bigint[]))
        END
    ORDER BY o.shard, o.place
    LIMIT $6
) AS page
ORDER BY page.place
LIMIT $6;

-- name: refused
-- Refused rows of the route $2 of the shards $1, whether or not their wait is over, but for the places $3 and rows
-- whose reason is $4; at most $5.
SELECT page.*
FROM unnest($1::smallint[]) AS held (shard)
CROSS JOIN LATERAL (
    SELECT shard, place, seq, recorded, retention, route, key_hash, target, replay, attempts, TRUE AS due
    FROM {schema}.outbox AS o
    WHERE o.shard = held.shard AND o.attempts > 0 AND o.route = $2 AND o.target IS NULL
        AND o.place NOT IN (SELECT unnest($3::bigint[]))
        AND o.reason IS DISTINCT FROM $4::text
    ORDER BY o.available_at
    LIMIT $5
) AS page
ORDER BY page.place
LIMIT $5;

-- name: let_go
-- Refused rows of the routes $5 of those shards $4 whose leases are still ours wait no longer, but for rows whose
-- reason is $6.
WITH {fence}, held AS (
    SELECT mine.shard
    FROM unnest($1::text[], $4::smallint[]) AS mine (name, shard)
    JOIN fence USING (name)
), gone AS (
    UPDATE {schema}.outbox AS o
    SET available_at = clock_timestamp()
    FROM held
    WHERE o.shard = held.shard AND o.attempts > 0 AND o.available_at > clock_timestamp()
        AND o.route = ANY($5::text[]) AND o.target IS NULL AND o.reason IS DISTINCT FROM $6::text
    RETURNING o.place
)
SELECT (SELECT count(*) FROM gone) AS count, pg_current_xact_id()::text::bigint AS xid;

-- name: between
-- Due rows above $2 and up to $3 of the shards $1, but for the places $4 and the routes $6; at most $5 of them.
-- Always one row at least: it says what the snapshot's oldest running transaction is, and how long the search took.
WITH found AS MATERIALIZED (
    SELECT page.*
    FROM unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS held (shard, low, high)
    CROSS JOIN LATERAL (
        SELECT shard, place, seq, recorded, retention, route, key_hash, target, replay, attempts, TRUE AS due
        FROM {schema}.outbox AS o
        WHERE (o.shard, o.place) > (held.shard, held.low) AND (o.shard, o.place) <= (held.shard, held.high)
            AND CASE
                WHEN o.attempts = 0 AND (o.available_at IS NULL OR o.available_at <= now())
                    AND (o.target IS NOT NULL OR o.route <> ALL($6::text[]))
                THEN o.place NOT IN (SELECT unnest($4::bigint[]))
            END
        ORDER BY o.shard, o.place
        LIMIT $5
    ) AS page
    ORDER BY page.place
    LIMIT $5
)
SELECT
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest,
    extract(EPOCH FROM clock_timestamp() - statement_timestamp())::float8 AS seconds,
    found.*
FROM (SELECT count(*) FROM found) AS whole
LEFT JOIN found ON TRUE
ORDER BY found.place;

-- name: retries
-- Refused rows of the shards $1 whose wait is over, longest over first, but for the places $2 and the routes $4; at
-- most $3.
SELECT page.*
FROM unnest($1::smallint[]) AS held (shard)
CROSS JOIN LATERAL (
    SELECT
        shard, place, seq, recorded, retention, route, key_hash, target, replay, attempts, TRUE AS due, available_at
    FROM {schema}.outbox AS o
    WHERE o.shard = held.shard AND o.attempts > 0 AND o.available_at <= now()
        AND o.place NOT IN (SELECT unnest($2::bigint[]))
        AND (o.target IS NOT NULL OR o.route <> ALL($4::text[]))
    ORDER BY o.available_at, o.place
    LIMIT $3
) AS page
ORDER BY page.available_at, page.place
LIMIT $3;

-- name: bodies
-- The events of the sequence numbers $8, recorded from $6 to $7, of the retention classes $1 to $5.
-- Single parameters, not an array: only those prune partitions while a plan is used again.
SELECT seq, id::text AS id, correlation, envelope
FROM {schema}.event
WHERE retention IN ($1::smallint, $2::smallint, $3::smallint, $4::smallint, $5::smallint)
    AND recorded BETWEEN $6 AND $7
    AND seq = ANY($8::bigint[]);

-- name: waiting
-- Refused rows of the shards $1, in place order, at most $2; a row whose reason is $3 holds back no key and no route.
SELECT
    shard, place, reason,
    CASE WHEN reason IS DISTINCT FROM $3::text THEN key_hash END AS key_hash,
    CASE WHEN reason IS DISTINCT FROM $3::text AND target IS NULL THEN route END AS route
FROM {schema}.outbox
WHERE shard = ANY($1::smallint[]) AND attempts > 0
ORDER BY place
LIMIT $2;

-- name: clear
-- Delete the rows ($5 shard, $6 place) of those shards $4 whose leases are still ours; which those are.
WITH {fence}, held AS (
    SELECT mine.shard
    FROM unnest($1::text[], $4::smallint[]) AS mine (name, shard)
    JOIN fence USING (name)
), gone AS (
    DELETE FROM {schema}.outbox AS o
    USING unnest($5::smallint[], $6::bigint[]) AS sent (shard, place)
    JOIN held USING (shard)
    WHERE o.shard = sent.shard AND o.place = sent.place
    RETURNING o.place
)
SELECT
    (SELECT count(*) FROM gone) AS count,
    ARRAY(SELECT shard FROM held) AS shards,
    pg_current_xact_id()::text::bigint AS xid;

-- name: charge
-- Charge the rows ($5 shard, $6 place) up to an attempt ($7), with a reason ($8) and a wait in seconds ($9); fenced as
-- clear. The attempt is given, not counted: a charge whose commit was not heard of may be repeated.
WITH {fence}, held AS (
    SELECT mine.shard
    FROM unnest($1::text[], $4::smallint[]) AS mine (name, shard)
    JOIN fence USING (name)
), charged AS (
    UPDATE {schema}.outbox AS o
    SET attempts = refused.attempt,
        reason = refused.reason,
        available_at = clock_timestamp() + make_interval(secs => refused.wait)
    FROM unnest($5::smallint[], $6::bigint[], $7::integer[], $8::text[], $9::float8[])
        AS refused (shard, place, attempt, reason, wait)
    JOIN held USING (shard)
    WHERE o.shard = refused.shard AND o.place = refused.place
    RETURNING o.place
)
SELECT
    (SELECT count(*) FROM charged) AS count,
    ARRAY(SELECT shard FROM held) AS shards,
    pg_current_xact_id()::text::bigint AS xid;

-- name: remove
-- Delete one row whose event went into quarantine; the transaction holds the fence.
DELETE FROM {schema}.outbox
WHERE shard = $1 AND place = $2
RETURNING place;

-- name: replan
-- Plans that this connection keeps may date from when the outbox was empty: whole tables are read then.
DISCARD PLANS;

-- name: mark
-- A transaction number of our own: whatever began before it is smaller.
SELECT pg_current_xact_id()::text::bigint AS xid;

-- name: state
-- How many rows wait per route, counting $1 at most, and the age of the oldest head of a shard in seconds.
WITH oldest AS (
    SELECT min(head.recorded) AS recorded
    FROM generate_series(0, 15) AS number
    CROSS JOIN LATERAL (
        SELECT recorded
        FROM {schema}.outbox AS o
        WHERE o.shard = number::smallint
        ORDER BY o.place
        LIMIT 1
    ) AS head
)
SELECT counted.route, count(*) AS pending,
    coalesce(extract(EPOCH FROM clock_timestamp() - (SELECT recorded FROM oldest)), 0)::float8 AS oldest
FROM (SELECT route FROM {schema}.outbox LIMIT $1) AS counted
GROUP BY counted.route
ORDER BY counted.route;
