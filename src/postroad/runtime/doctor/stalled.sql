-- name: open_effects
-- Effects without an outcome whose request may have left: by name and whether they wait for a person, how many, one to
-- look at, for how many seconds the oldest, in how many seconds the first key is forgotten, and how many rows wait.
SELECT name, state = 'manual' AS manual, count(*) AS count, (array_agg(id ORDER BY coalesce(sent_at, intended_at)))[1] AS one,
    extract(EPOCH FROM clock_timestamp() - min(coalesce(sent_at, intended_at)))::float8 AS seconds,
    extract(EPOCH FROM min(valid_until) FILTER (WHERE valid_until > clock_timestamp()) - clock_timestamp())::float8
        AS remembered,
    coalesce(sum(cardinality(waiting)), 0)::bigint AS waiting
FROM {schema}.effect
WHERE finished_at IS NULL AND state IN ('sent', 'unknown', 'reconciling', 'manual')
GROUP BY name, manual
ORDER BY seconds DESC;

-- name: paused
-- Schedules that are paused, longest first.
SELECT name, failures, paused_by, pause_reason, extract(EPOCH FROM clock_timestamp() - paused_at)::float8 AS seconds
FROM {schema}.schedule
WHERE paused_at IS NOT NULL AND retired_at IS NULL
ORDER BY paused_at;

-- name: planners
-- Apps with schedules: whether a process plans them, how many there are, the longest overdue of them, and for how many
-- seconds it is. Where the epoch says that a schedule is looked at next, what of it should have started says how late.
SELECT app, held, count(*) AS count, (array_agg(name ORDER BY late DESC NULLS LAST))[1] AS name,
    extract(EPOCH FROM max(late))::float8 AS seconds
FROM (
    SELECT schedule.app, schedule.name,
        EXISTS (
            SELECT FROM {schema}.lease
            WHERE lease.name = 'scheduler:' || schedule.app AND holder IS NOT NULL AND expires_at > clock_timestamp()
        ) AS held,
        clock_timestamp() - CASE WHEN next_at > 'epoch' THEN next_at ELSE (
            SELECT min(start_at) FROM {schema}.occurrence WHERE occurrence.schedule = schedule.id AND state = 'pending'
        ) END AS late
    FROM {schema}.schedule
    WHERE retired_at IS NULL
) AS standing
GROUP BY app, held
ORDER BY app;

-- name: declared
-- Which of the names $1 are schedules that stand.
SELECT name
FROM {schema}.schedule
WHERE name = ANY ($1::text[]) AND retired_at IS NULL;

-- name: retired
-- Schedules that no release declares any more, of which something still waits: how much, and since when it should run.
SELECT schedule.name, count(*) AS count,
    extract(EPOCH FROM clock_timestamp() - min(occurrence.start_at))::float8 AS seconds
FROM {schema}.schedule
JOIN {schema}.occurrence ON occurrence.schedule = schedule.id
LEFT JOIN {schema}.work ON work.id = occurrence.work_id
WHERE retired_at IS NOT NULL AND occurrence.state IN ('pending', 'queued', 'started')
    AND (occurrence.work_id IS NULL OR work.state IN ('ready', 'scheduled', 'waiting'))
GROUP BY schedule.name
ORDER BY seconds DESC;
