-- name: missing
-- The partitions that do not stand yet, from today to $1 days ahead; $2 is the schema's name.
SELECT parent, day::date AS day
  FROM unnest(ARRAY['event_7', 'event_30', 'event_90', 'event_400', 'event_keep', 'finished']) AS parent,
       generate_series((now() AT TIME ZONE 'UTC')::date, (now() AT TIME ZONE 'UTC')::date + $1::int,
                       interval '1 day') AS day
 WHERE to_regclass(format('%I.%I', $2::text, parent || '_' || to_char(day, 'YYYYMMDD'))) IS NULL
 ORDER BY day, parent;

-- name: make
-- Make and attach one partition.
SELECT {schema}.make_partition($1::text, $2::date);

-- name: days_ahead
-- For how many days from today no partition is missing, at most 60; $1 is the schema's name.
SELECT coalesce(min(ahead), 60)::int
  FROM generate_series(0, 59) AS ahead,
       unnest(ARRAY['event_7', 'event_30', 'event_90', 'event_400', 'event_keep', 'finished']) AS parent
 WHERE to_regclass(format('%I.%I', $1::text, parent || '_'
                          || to_char((now() AT TIME ZONE 'UTC')::date + ahead, 'YYYYMMDD'))) IS NULL;

-- name: expired
-- The days whose rows have all been kept long enough, oldest first; $1 is the schema's name.
SELECT parent.name AS parent, day.day
  FROM unnest(ARRAY['event_7', 'event_30', 'event_90', 'event_400', 'finished']) AS parent (name)
  JOIN pg_inherits AS child ON child.inhparent = to_regclass(format('%I.%I', $1::text, parent.name))
  JOIN pg_class AS leaf ON leaf.oid = child.inhrelid AND leaf.relname ~ ('^' || parent.name || '_[0-9]+$')
 CROSS JOIN LATERAL (SELECT to_date(right(leaf.relname, 8), 'YYYYMMDD') AS day) AS day
 WHERE day.day + 1 + {schema}.kept_days(parent.name) <= (now() AT TIME ZONE 'UTC')::date
 ORDER BY day.day, parent.name;

-- name: drop
-- Drop one expired partition, or say what needs it.
SELECT {schema}.drop_partition($1::text, $2::date);

-- name: expire_rest
-- Delete expired events from the DEFAULT partition of $1, at most $2.
SELECT {schema}.expire_rest($1::text, $2::int);
