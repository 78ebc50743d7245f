-- name: columns
-- The columns of the schema's tables, but for partitions of a day.
SELECT c.relname AS name, a.attname AS column, format_type(a.atttypid, NULL) AS type
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1::text) AND c.relkind IN ('r', 'p')
    AND NOT c.relispartition;

-- name: indexes
-- The indexes of the schema's tables, but for those of partitions of a day.
SELECT i.relname AS name, c.relname AS of, x.indisvalid AS valid
FROM pg_index AS x
JOIN pg_class AS i ON i.oid = x.indexrelid
JOIN pg_class AS c ON c.oid = x.indrelid
WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1::text) AND c.relname !~ '_20[0-9][0-9][0-9][0-9][0-9][0-9]$|_rest$';

-- name: functions
-- The bodies of the schema's functions.
SELECT proname AS name, prosrc AS body
FROM pg_proc
WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1::text);

-- name: dead
-- Dead rows of the tables that change all the time.
SELECT relname AS name, n_live_tup AS live, n_dead_tup AS dead,
    extract(EPOCH FROM clock_timestamp() - greatest(last_vacuum, last_autovacuum))::float8 AS seconds
FROM pg_stat_user_tables
WHERE schemaname = $1::text
    AND relname IN ('outbox', 'work', 'lease', 'inbox', 'starts', 'order_guard', 'effect', 'schedule', 'occurrence')
ORDER BY n_dead_tup DESC;

-- name: leases
-- Leases that are held and not renewed in time: late (two thirds of their time are over), or over for a minute although
-- something still stands under them: rows of work that run, or events that wait where no shard has an owner.
SELECT name, late, seconds
FROM (
    SELECT name, expires_at >= clock_timestamp() AS late,
        extract(EPOCH FROM clock_timestamp() - (expires_at - ttl))::float8 AS seconds
    FROM {schema}.lease
    WHERE holder IS NOT NULL AND (
        (expires_at >= clock_timestamp() AND expires_at - clock_timestamp() < ttl / 3)
        OR (expires_at < clock_timestamp() - interval '1 minute' AND (
            EXISTS (SELECT FROM {schema}.work WHERE state = 'running' AND work.worker = lease.name)
            OR (starts_with(name, 'shard:') AND EXISTS (SELECT FROM {schema}.outbox)))))
) AS lapsed
ORDER BY late, seconds DESC
LIMIT 20;
