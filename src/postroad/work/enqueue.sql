-- The author's role may INSERT and draw numbers, and SELECT nothing: no column can be returned, no conflict target named.

-- name: enqueue
-- Writes jobs in the order given, and answers with each one's number and whether it is new. A row is inserted right
-- after its number was noted in a setting of the transaction, from which RETURNING reads it: that takes no right to
-- read columns. Keys are inserted in one order, so that two authors cannot wait for each other.
WITH given AS MATERIALIZED (
    SELECT nextval('{schema}.work_id') AS id, coalesce(item.asked, clock_timestamp()) AS due, item.*
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::timestamptz[], $7::smallint[])
        WITH ORDINALITY AS item (queue, key, name, body, headers, asked, priority, ordinality)
), made AS (
    INSERT INTO {schema}.work
        (id, queue, kind, key, state, priority, run_at, due, event_type, body, content_type, headers)
    SELECT set_config('postroad.enqueued', sorted.id::text, TRUE)::bigint, sorted.queue, 'job', sorted.key,
        CASE WHEN sorted.asked > clock_timestamp() THEN 'scheduled' ELSE 'ready' END, sorted.priority, sorted.due,
        sorted.due, sorted.name, sorted.body, 'application/json', sorted.headers::jsonb
    FROM (SELECT * FROM given ORDER BY given.queue, given.key, given.id) AS sorted
    ON CONFLICT DO NOTHING
    RETURNING current_setting('postroad.enqueued')::bigint AS id
)
SELECT given.id, made.id IS NOT NULL AS new
FROM given
LEFT JOIN made ON made.id = given.id
ORDER BY given.ordinality;
