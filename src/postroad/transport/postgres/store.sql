-- name: send
-- One row of work for each consumer that subscribes to the type of an event ($3), or for that one alone to which it
-- goes ($4). The consumers of each ticket ($1) come back; a ticket without any is missing. A delivery that is open
-- already stands for its repeat.
WITH sent AS MATERIALIZED (
    SELECT *
    FROM unnest(
        $1::bigint[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text[], $9::text[]
    ) WITH ORDINALITY
        AS given (ticket, key, type, target, body, content_type, headers, exchange, routing_key, place)
), wanted AS MATERIALIZED (
    SELECT sent.*, subscription.consumer
    FROM sent
    JOIN {schema}.subscription ON subscription.event_type = sent.type
    WHERE sent.target IS NULL OR subscription.consumer = sent.target
    ORDER BY sent.place, subscription.consumer
), made AS (
    INSERT INTO {schema}.work
        (id, queue, kind, key, state, run_at, event_type, body, content_type, headers, exchange, routing_key)
    SELECT nextval('{schema}.work_id'), consumer || $10::text, 'delivery', key, 'ready', statement_timestamp(), type,
        body, content_type, headers::jsonb, exchange, routing_key
    FROM wanted
    ON CONFLICT (queue, key) WHERE key IS NOT NULL DO NOTHING
)
SELECT ticket, array_agg(consumer) AS consumers
FROM wanted
GROUP BY ticket;

-- name: ack
-- Deletes deliveries that are in safe hands, fenced; which those were. In order of id, so that two cannot deadlock.
-- The disk is not waited for: what made them safe is on it already, and an ack that a crash of the server takes back
-- brings a duplicate.
WITH quick AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS value
), mine AS MATERIALIZED (
    SELECT work.id
    FROM quick
    CROSS JOIN {schema}.work
    JOIN unnest($1::bigint[], $2::bigint[]) AS held (id, token) ON work.id = held.id AND work.token = held.token
    WHERE work.state = 'running'
    ORDER BY work.id
    FOR UPDATE OF work
)
DELETE FROM {schema}.work
WHERE id = ANY (ARRAY(SELECT id FROM mine))
RETURNING id;

-- name: subscriptions
-- Who subscribes to what: of the consumers $1, or of all where that is NULL.
SELECT consumer, event_type
FROM {schema}.subscription
WHERE $1::text[] IS NULL OR consumer = ANY ($1::text[])
ORDER BY consumer, event_type;

-- name: subscribe
-- Subscribes the consumers $1 to the types $2, pairwise; what stands stays as it is.
INSERT INTO {schema}.subscription (consumer, event_type)
SELECT consumer, event_type
FROM unnest($1::text[], $2::text[]) AS wanted (consumer, event_type)
ORDER BY event_type, consumer
ON CONFLICT DO NOTHING;

-- name: unsubscribe
-- Ends all subscriptions of the consumers $1 but the pairs ($2, $3); which those were.
DELETE FROM {schema}.subscription AS old
WHERE old.consumer = ANY ($1::text[])
    AND NOT EXISTS (
        SELECT FROM unnest($2::text[], $3::text[]) AS wanted (consumer, event_type)
        WHERE wanted.consumer = old.consumer AND wanted.event_type = old.event_type
    )
RETURNING consumer, event_type;

-- name: discard
-- Deletes what waits in the queue $1 and is in nobody's hands; how many.
WITH gone AS (
    DELETE FROM {schema}.work
    WHERE queue = $1 AND kind = 'delivery' AND state = 'ready'
    RETURNING id
)
SELECT count(*) AS count
FROM gone;

-- name: waiting
-- What lies in the queues whose name ends with $1: how many deliveries, counting $2 at most, how many of them are in
-- somebody's hands, and for how long the oldest has waited, in seconds.
SELECT queue, count(*) AS count, count(*) FILTER (WHERE state = 'running') AS running,
    extract(EPOCH FROM clock_timestamp() - min(created_at) FILTER (WHERE isfinite(created_at)))::float8 AS oldest
FROM (
    SELECT queue, state, created_at
    FROM {schema}.work
    WHERE kind = 'delivery' AND right(queue, length($1::text)) = $1::text
    LIMIT $2
) AS counted
GROUP BY queue
ORDER BY queue;

-- name: holding
-- Which of the queues $1 hold anything.
SELECT wanted.queue
FROM unnest($1::text[]) AS wanted (queue)
WHERE EXISTS (SELECT FROM {schema}.work WHERE work.queue = wanted.queue AND work.key IS NOT NULL);

-- name: bound
-- The broker that this database was last bound to.
SELECT broker
FROM {schema}.installation;
