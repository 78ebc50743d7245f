-- name: acquire
-- Take those of the names $1 that are free or expired, for $3 seconds in the name of $2; each take is a new token.
-- It waits for no lock, so that renewals on the same connection do not wait for it: names that look held are passed
-- over without a lock, and so are free ones while a transaction that is fenced by them is open.
WITH free AS MATERIALIZED (
    SELECT lease.name
      FROM {schema}.lease AS lease
     WHERE lease.name = ANY ($1::text[])
       AND (lease.holder IS NULL OR lease.expires_at < clock_timestamp())
     ORDER BY lease.name
       FOR NO KEY UPDATE SKIP LOCKED
), again AS (
    UPDATE {schema}.lease AS lease
       SET holder = $2::uuid, token = lease.token + 1, acquired_at = clock_timestamp(),
           expires_at = clock_timestamp() + make_interval(secs => $3::float8), ttl = make_interval(secs => $3::float8)
      FROM free
     WHERE lease.name = free.name
    RETURNING lease.name, lease.token
), first AS (
    INSERT INTO {schema}.lease AS lease (name, holder, acquired_at, expires_at, ttl)
    SELECT wanted.name, $2::uuid, clock_timestamp(), clock_timestamp() + make_interval(secs => $3::float8),
           make_interval(secs => $3::float8)
      FROM unnest($1::text[]) AS wanted (name)
     WHERE NOT EXISTS (SELECT FROM {schema}.lease AS standing WHERE standing.name = wanted.name)
     ORDER BY wanted.name
        ON CONFLICT (name) DO NOTHING
    RETURNING lease.name, lease.token
)
SELECT name, token FROM again
UNION ALL
SELECT name, token FROM first;

-- name: renew
-- Prolong the leases of holder $3 named in $1 with the tokens $2, unless they are expired; locked in order of name. Those
-- that somebody has locked (a transaction fenced by them is open) are passed over, and said to be: they are not lost.
WITH mine AS MATERIALIZED (
    SELECT lease.name
      FROM {schema}.lease AS lease
      JOIN unnest($1::text[], $2::bigint[]) AS held (name, token)
        ON held.name = lease.name AND held.token = lease.token
     WHERE lease.holder = $3::uuid
       AND lease.expires_at > clock_timestamp()
), free AS MATERIALIZED (
    SELECT lease.name
      FROM {schema}.lease AS lease
      JOIN unnest($1::text[], $2::bigint[]) AS held (name, token)
        ON held.name = lease.name AND held.token = lease.token
     WHERE lease.holder = $3::uuid
     ORDER BY lease.name
       FOR NO KEY UPDATE OF lease SKIP LOCKED
), renewed AS (
    UPDATE {schema}.lease AS lease
       SET expires_at = clock_timestamp() + lease.ttl
      FROM free
     WHERE lease.name = free.name
       AND lease.expires_at > clock_timestamp()
    RETURNING lease.name
)
SELECT name, false AS locked FROM renewed
UNION ALL
SELECT name, true AS locked FROM mine WHERE name NOT IN (SELECT name FROM free);

-- name: standing
-- Which of the names $1 still carry the tokens $2 and holder $3, expired or not.
SELECT lease.name
  FROM {schema}.lease AS lease
  JOIN unnest($1::text[], $2::bigint[]) AS held (name, token)
    ON held.name = lease.name AND held.token = lease.token
 WHERE lease.holder = $3::uuid;

-- name: release
-- Give up the leases of holder $3 named in $1 with the tokens $2: the rows stay, and their tokens.
WITH mine AS MATERIALIZED (
    SELECT lease.name
      FROM {schema}.lease AS lease
      JOIN unnest($1::text[], $2::bigint[]) AS held (name, token)
        ON held.name = lease.name AND held.token = lease.token
     WHERE lease.holder = $3::uuid
     ORDER BY lease.name
       FOR NO KEY UPDATE OF lease
)
UPDATE {schema}.lease AS lease
   SET holder = NULL, expires_at = clock_timestamp()
  FROM mine
 WHERE lease.name = mine.name
RETURNING lease.name;

-- name: fence
-- Those of the names $1 that holder $3 still has with the tokens $2; nobody takes them until the transaction ends. If
-- its process stands still, the server ends it after $4, or sooner if it does so anyhow.
SELECT lease.name, set_config('idle_in_transaction_session_timeout', least_idle.time, true)
  FROM (SELECT CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval
                         BETWEEN interval '1 ms' AND $4::text::interval
                    THEN current_setting('idle_in_transaction_session_timeout') ELSE $4::text END AS time
       ) AS least_idle
 CROSS JOIN {schema}.lease AS lease
  JOIN unnest($1::text[], $2::bigint[]) AS mine (name, token)
    ON mine.name = lease.name AND mine.token = lease.token
 WHERE lease.holder = $3::uuid
 ORDER BY lease.name
   FOR SHARE OF lease;

-- name: living
-- How many leases whose name starts with $1 are held now.
SELECT count(*) AS count
  FROM {schema}.lease
 WHERE starts_with(name, $1::text)
   AND holder IS NOT NULL
   AND expires_at >= clock_timestamp();

-- name: expired
-- The leases whose name starts with $1 that ran out and were not released, oldest first.
SELECT name, token
  FROM {schema}.lease
 WHERE starts_with(name, $1::text)
   AND holder IS NOT NULL
   AND expires_at < clock_timestamp()
 ORDER BY expires_at, name;

-- name: lapsed
-- Those of the names $1 that nobody holds now: expired, released, or (token 0) unknown.
SELECT asked.name, coalesce(lease.token, 0) AS token
  FROM unnest($1::text[]) AS asked (name)
  LEFT JOIN {schema}.lease AS lease ON lease.name = asked.name
 WHERE lease.holder IS NULL OR lease.expires_at < clock_timestamp()
 ORDER BY asked.name;

-- name: advance
-- Take the name $1 away from the holder that let it lapse with token $2: its late writes change nothing from now on. If
-- the process that recovers stands still meanwhile, the server ends its transaction, and another recovers.
UPDATE {schema}.lease
   SET token = token + 1, holder = NULL, expires_at = clock_timestamp()
 WHERE name = $1::text
   AND token = $2::bigint
   AND (holder IS NULL OR expires_at < clock_timestamp())
RETURNING token, set_config('idle_in_transaction_session_timeout', '5s', true);

-- name: prune
-- Delete the leases whose name starts with one of $1 that ran out or were released longer than $2 ago, but for the
-- names $3. Such names are drawn anew for each process: nobody comes back to one, so its token need not be remembered.
DELETE FROM {schema}.lease
 WHERE expires_at < clock_timestamp() - $2::interval
   AND EXISTS (SELECT FROM unnest($1::text[]) AS prefix WHERE starts_with(lease.name, prefix))
   AND name <> ALL ($3::text[])
RETURNING name;

-- name: look
-- Who holds the name $1 now.
SELECT holder, token, expires_at
  FROM {schema}.lease
 WHERE name = $1::text
   AND holder IS NOT NULL
   AND expires_at >= clock_timestamp();

-- name: list
-- Every lease whose name starts with $1, for an operator.
SELECT name, (holder IS NOT NULL AND expires_at >= clock_timestamp()) AS held, holder, token, acquired_at, expires_at,
       meta ->> 'fenced_by' AS fenced_by, meta ->> 'reason' AS reason
  FROM {schema}.lease
 WHERE starts_with(name, $1::text)
 ORDER BY name;

-- name: interrupt
-- Take the name $1 away from whoever holds it, as $2 and for the reason $3.
UPDATE {schema}.lease AS lease
   SET token = token + 1, holder = NULL, expires_at = clock_timestamp(),
       meta = coalesce(meta, '{}'::jsonb) || jsonb_build_object('fenced_by', $2::text, 'reason', $3::text,
                                                                'fenced_at', clock_timestamp())
 WHERE name = $1::text
RETURNING name, FALSE AS held, holder, token, acquired_at, expires_at,
          meta ->> 'fenced_by' AS fenced_by, meta ->> 'reason' AS reason;
