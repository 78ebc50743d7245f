-- name: leftovers
-- DEFAULT partitions that hold rows.
SELECT name
FROM (
    SELECT 'event_7_rest' AS name, EXISTS (SELECT FROM {schema}.event_7_rest) AS held
    UNION ALL SELECT 'event_30_rest', EXISTS (SELECT FROM {schema}.event_30_rest)
    UNION ALL SELECT 'event_90_rest', EXISTS (SELECT FROM {schema}.event_90_rest)
    UNION ALL SELECT 'event_400_rest', EXISTS (SELECT FROM {schema}.event_400_rest)
    UNION ALL SELECT 'event_keep_rest', EXISTS (SELECT FROM {schema}.event_keep_rest)
    UNION ALL SELECT 'finished_rest', EXISTS (SELECT FROM {schema}.finished_rest)
) AS rest
WHERE held;

-- name: holders
-- What holds vacuum back in this database, furthest back first. Of other roles' sessions the age in time is NULL
-- without pg_read_all_stats. (Vacuum itself, autovacuum too, is not waited for.)
SELECT kind, name, application, transactions, seconds
FROM (
    SELECT
        'session' AS kind, pid::text AS name, application_name AS application,
        greatest(age(backend_xmin), age(backend_xid)) AS transactions,
        extract(EPOCH FROM clock_timestamp() - xact_start)::float8 AS seconds
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND (datname = current_database() OR datname IS NULL)
        AND backend_type IS DISTINCT FROM 'autovacuum worker'
    UNION ALL
    SELECT
        CASE WHEN active THEN 'replication slot' ELSE 'inactive replication slot' END, slot_name::text, '',
        age(xmin), NULL
    FROM pg_replication_slots
    UNION ALL
    SELECT
        'prepared transaction', gid, owner::text, age(transaction),
        extract(EPOCH FROM clock_timestamp() - prepared)::float8
    FROM pg_prepared_xacts
    WHERE database = current_database()
) AS holder
WHERE transactions IS NOT NULL
ORDER BY transactions DESC
LIMIT 5;

-- name: writers
-- Open transactions that have a number, oldest first: the snapshot of every dispatcher reaches back to the first.
SELECT kind, name, application, transactions, seconds
FROM (
    SELECT
        'session' AS kind, pid::text AS name, application_name AS application, age(backend_xid) AS transactions,
        extract(EPOCH FROM clock_timestamp() - xact_start)::float8 AS seconds
    FROM pg_stat_activity
    WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL
    SELECT
        'prepared transaction', gid, owner::text, age(transaction),
        extract(EPOCH FROM clock_timestamp() - prepared)::float8
    FROM pg_prepared_xacts
) AS writer
ORDER BY transactions DESC
LIMIT 1;

-- name: durability
-- The settings that decide what a crash or a fail-over costs. Standbys are counted; a base backup is none.
SELECT
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS names,
    (SELECT count(*) FROM pg_stat_replication WHERE application_name NOT IN ('pg_basebackup', 'pg_receivewal'))
        AS standbys;

-- name: waiting
-- How many events wait (counted to 100001), and for how many seconds the oldest of each shard's first has.
SELECT
    (SELECT count(*) FROM (SELECT FROM {schema}.outbox LIMIT 100001) AS counted) AS count,
    (
        SELECT extract(EPOCH FROM clock_timestamp() - min(first.recorded))::float8
        FROM generate_series(0, 15) AS number
        CROSS JOIN LATERAL (
            SELECT recorded FROM {schema}.outbox AS o WHERE o.shard = number ORDER BY o.place LIMIT 1
        ) AS first
    ) AS seconds;

-- name: refused
-- Waiting events with attempts, by route and reason, most first.
SELECT route, coalesce(reason, 'no reason') AS reason, count(*) AS count, max(attempts) AS attempts
FROM {schema}.outbox
WHERE attempts > 0
GROUP BY 1, 2
ORDER BY 3 DESC, 1
LIMIT 10;

-- name: quarantined
-- How much lies open in quarantine, and since how many seconds.
SELECT count(*) AS count, extract(EPOCH FROM clock_timestamp() - min(quarantined_at))::float8 AS seconds
FROM {schema}.quarantine
WHERE resolved_at IS NULL;

-- name: unserved
-- Queues of jobs and retries with ready rows and none that runs: how many, for how long the oldest could have run, in
-- seconds, and whether the queue is paused. Deliveries are looked at elsewhere.
SELECT counted.queue, counted.ready, counted.age AS seconds, said.paused_at IS NOT NULL AS paused
FROM (
    SELECT queue, count(*) FILTER (WHERE state = 'ready') AS ready, count(*) FILTER (WHERE state = 'running') AS running,
        extract(EPOCH FROM clock_timestamp() - min(run_at) FILTER (WHERE state = 'ready'))::float8 AS age
    FROM (
        SELECT queue, state, run_at FROM {schema}.work WHERE kind <> 'delivery' AND state IN ('ready', 'running')
        LIMIT 100001
    ) AS looked
    GROUP BY queue
) AS counted
LEFT JOIN {schema}.queue AS said ON said.name = counted.queue
WHERE counted.ready > 0 AND counted.running = 0
ORDER BY counted.age DESC;
