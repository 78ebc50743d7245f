-- name: claim
-- Mark message $2 of consumer $1 with outcome $3 and reason $4, unless any mark stands. It never waits for another
-- process: where one has the message open, `had` is false. The mark is durable whatever the role's setting says.
WITH locked AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended($1::text || ':' || $2::uuid::text, 0)) AS had,
           CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                THEN set_config('synchronous_commit', 'on', true) END AS durable
), marked AS (
    INSERT INTO {schema}.inbox (consumer, message_key, outcome, reason)
    SELECT $1, $2, $3, $4
      FROM locked
     WHERE locked.had
    ON CONFLICT DO NOTHING
    RETURNING true AS fresh
)
SELECT locked.had, locked.durable, coalesce((SELECT marked.fresh FROM marked), false) AS fresh,
       (SELECT inbox.outcome FROM {schema}.inbox WHERE inbox.consumer = $1 AND inbox.message_key = $2) AS standing
  FROM locked;

-- name: claim_many
-- The same for a group: marks messages $2, sorted, of consumer $1 as handled; the ones another process has open are
-- passed over. While the group is open no statement of it waits for a lock for more than $3. What comes back is the
-- messages that are not marked by this, or one row without any: so the settings are set in any case.
WITH locked AS MATERIALIZED (
    SELECT wanted.key, pg_try_advisory_xact_lock(hashtextextended($1::text || ':' || wanted.key::text, 0)) AS had
      FROM unnest($2::uuid[]) AS wanted (key)
), careful AS MATERIALIZED (
    SELECT set_config('lock_timeout', $3::text, true) AS patience,
           CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                THEN set_config('synchronous_commit', 'on', true) END AS durable
), marked AS (
    INSERT INTO {schema}.inbox (consumer, message_key, outcome)
    SELECT $1, locked.key, 'handled'
      FROM locked
     WHERE locked.had
    ON CONFLICT DO NOTHING
    RETURNING message_key
), others AS (
    SELECT locked.key, locked.had,
           CASE WHEN NOT locked.had
                THEN (SELECT inbox.outcome FROM {schema}.inbox
                       WHERE inbox.consumer = $1 AND inbox.message_key = locked.key) END AS standing
      FROM locked
     WHERE NOT EXISTS (SELECT FROM marked WHERE marked.message_key = locked.key)
)
SELECT others.key, others.had, others.standing, careful.patience, careful.durable
  FROM careful
  LEFT JOIN others ON true;

-- name: forget
-- Take back the marks of messages $2 that this transaction has set.
DELETE FROM {schema}.inbox
 WHERE consumer = $1 AND message_key = ANY ($2::uuid[]);

-- name: own
-- The same for an owner of the mark (a row of `work`): it turns what was delayed or quarantined into outcome $3.
WITH locked AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended($1::text || ':' || $2::uuid::text, 0)) AS had,
           CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                THEN set_config('synchronous_commit', 'on', true) END AS durable
), marked AS (
    INSERT INTO {schema}.inbox AS mark (consumer, message_key, outcome, reason)
    SELECT $1, $2, $3, $4
      FROM locked
     WHERE locked.had
    ON CONFLICT (consumer, message_key) DO UPDATE
       SET outcome = excluded.outcome, reason = excluded.reason, at = now()
     WHERE mark.outcome IN ('delayed', 'quarantined')
    RETURNING true AS fresh
)
SELECT locked.had, locked.durable, coalesce((SELECT marked.fresh FROM marked), false) AS fresh,
       (SELECT inbox.outcome FROM {schema}.inbox WHERE inbox.consumer = $1 AND inbox.message_key = $2
                                                   AND inbox.outcome IN ('handled', 'dropped')) AS standing
  FROM locked;

-- name: amend
-- Give the mark that this transaction has set another outcome $3 and reason $4.
UPDATE {schema}.inbox
   SET outcome = $3, reason = $4
 WHERE consumer = $1 AND message_key = $2;

-- name: guard
-- Move the last sequence of key $2 up to $3; no row comes back when it stands there already, or higher.
INSERT INTO {schema}.order_guard AS last (consumer, key, sequence)
VALUES ($1, $2, $3)
ON CONFLICT (consumer, key) DO UPDATE
   SET sequence = excluded.sequence, at = now()
 WHERE last.sequence < excluded.sequence
RETURNING last.sequence;

-- name: low_water
-- Up to where marks of consumer $1 may have expired. A statement of its own, after the mark was set: whoever deleted a
-- mark that would have stood in the way has committed by then, and this with it.
SELECT low_water
  FROM {schema}.inbox_mark
 WHERE consumer = $1;

-- name: pages
-- How many pages the inbox has, or 0 where no mark is older than $1.
SELECT CASE WHEN EXISTS (SELECT FROM {schema}.inbox WHERE at < $1::timestamptz)
            THEN pg_relation_size('{schema}.inbox') / current_setting('block_size')::int ELSE 0 END AS pages;

-- name: expire
-- Deletes marks older than $3 from the pages $1 to $2, at most $4, but for those of open rows; first it says for each
-- consumer up to where they are gone, with $5 for clocks that differ.
WITH old AS MATERIALIZED (
    SELECT mark.ctid, mark.consumer, mark.at
      FROM {schema}.inbox AS mark
     WHERE mark.ctid >= format('(%s,0)', $1::bigint)::tid AND mark.ctid < format('(%s,0)', $2::bigint)::tid
       AND mark.at < $3::timestamptz
       AND NOT EXISTS (SELECT FROM {schema}.work
                        WHERE work.queue = mark.consumer AND work.key = mark.message_key::text)
       AND NOT EXISTS (SELECT FROM {schema}.quarantine AS kept
                        WHERE kept.queue = mark.consumer AND kept.key = mark.message_key::text
                          AND kept.resolved_at IS NULL)
     LIMIT $4
), published AS (
    INSERT INTO {schema}.inbox_mark AS standing (consumer, low_water)
    SELECT old.consumer, max(old.at) + $5::interval
      FROM old
     GROUP BY old.consumer
     ORDER BY old.consumer
    ON CONFLICT (consumer) DO UPDATE
       SET low_water = greatest(standing.low_water, excluded.low_water), changed_at = now()
)
DELETE FROM {schema}.inbox AS mark
 WHERE mark.ctid = ANY (ARRAY(SELECT old.ctid FROM old)) AND mark.at < $3::timestamptz
RETURNING mark.consumer;

-- name: ensure
-- The marks of rows that are released from quarantine: one stands already, unless the row was kept without it.
INSERT INTO {schema}.inbox (consumer, message_key, outcome, reason)
SELECT consumer, message_key, 'quarantined', reason
FROM unnest($1::text[], $2::uuid[], $3::text[]) AS given (consumer, message_key, reason)
ORDER BY consumer, message_key
ON CONFLICT DO NOTHING;

-- name: start
-- Note that process $3 starts message $2 of consumer $1, unless $4 starts by other processes stand unanswered, or an
-- outcome does. It never waits: while another process has the message open, `had` is false and nothing is noted.
WITH locked AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended($1::text || ':' || $2::uuid::text, 0)) AS had
), found AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE process <> $3::uuid) AS unanswered, coalesce(max(start), 0) AS last
      FROM {schema}.starts
     WHERE consumer = $1 AND message_key = $2
), begun AS (
    INSERT INTO {schema}.starts (consumer, message_key, start, process)
    SELECT $1, $2, found.last + 1, $3
      FROM locked
     CROSS JOIN found
     WHERE locked.had AND found.unanswered < $4::bigint
       AND NOT EXISTS (SELECT FROM {schema}.inbox WHERE inbox.consumer = $1 AND inbox.message_key = $2)
    ON CONFLICT DO NOTHING
    RETURNING start
)
SELECT locked.had, found.unanswered, EXISTS (SELECT FROM begun) AS noted,
       (SELECT inbox.outcome FROM {schema}.inbox WHERE inbox.consumer = $1 AND inbox.message_key = $2) AS standing
  FROM locked
 CROSS JOIN found;

-- name: answered
-- Remove all starts of message $2: it has an outcome.
DELETE FROM {schema}.starts
 WHERE consumer = $1 AND message_key = $2;

-- name: take_back
-- Remove what process $3 has noted of messages $2: it lives, and they ended without an outcome.
DELETE FROM {schema}.starts
 WHERE consumer = $1 AND message_key = ANY ($2::uuid[]) AND process = $3;

-- name: expire_starts
-- Delete starts older than $1, at most $2: what they are of has not come for long.
DELETE FROM {schema}.starts
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM {schema}.starts WHERE at < $1::timestamptz LIMIT $2))
RETURNING consumer;
