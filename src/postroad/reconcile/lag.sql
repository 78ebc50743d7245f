-- name: behind
-- What is still to come for the consumer $1 of the types $2, whose queue of deliveries is $3; each counted to $4. Ages in
-- seconds.
SELECT outbox.count AS outbox, outbox.oldest AS outbox_oldest, work.count AS work, work.oldest AS work_oldest,
    queue.count AS queue, queue.oldest AS queue_oldest,
    (SELECT count(*) FROM {schema}.quarantine WHERE queue = $1 AND resolved_at IS NULL) AS quarantined
FROM (
    SELECT count(*) AS count, extract(EPOCH FROM clock_timestamp() - min(recorded))::float8 AS oldest
    FROM (
        SELECT recorded FROM {schema}.outbox
        WHERE coalesce(target, $1) = $1 AND regexp_replace(route, '\.v[0-9]+$', '') = ANY ($2::text[])
        LIMIT $4
    ) AS waiting
) AS outbox
CROSS JOIN (
    SELECT count(*) AS count, extract(EPOCH FROM clock_timestamp() - min(created_at))::float8 AS oldest
    FROM (SELECT created_at FROM {schema}.work WHERE queue = $1 AND kind <> 'job' LIMIT $4) AS waiting
) AS work
CROSS JOIN (
    SELECT count(*) AS count, extract(EPOCH FROM clock_timestamp() - min(created_at))::float8 AS oldest
    FROM (SELECT created_at FROM {schema}.work WHERE queue = $3 LIMIT $4) AS waiting
) AS queue;

-- name: took
-- Of the latest $2 events that have a mark of the consumer $1 those that it has handled: how many seconds after they were
-- staged. A message's key is a UUID of version 7, in which that time stands; $3 is beyond any of now. Foreign events have
-- others: left out, as is what waits for another attempt or lies in quarantine, whose mark says when it failed.
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS median, max(seconds) AS longest
FROM (
    SELECT extract(EPOCH FROM at)::float8
        - ('x' || left(replace(message_key::text, '-', ''), 12))::bit(48)::bigint / 1000.0 AS seconds
    FROM (
        SELECT message_key, at, outcome FROM {schema}.inbox
        WHERE consumer = $1 AND message_key < $3::uuid
        ORDER BY message_key DESC
        LIMIT $2
    ) AS latest
    WHERE outcome = 'handled' AND substr(message_key::text, 15, 1) = '7'
) AS took;
