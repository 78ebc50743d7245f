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
-- passed over. While the group is open no statement of it waits for a lock for more than $3.
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
)
SELECT locked.key, locked.had, marked.message_key IS NOT NULL AS fresh,
       CASE WHEN NOT locked.had
            THEN (SELECT inbox.outcome FROM {schema}.inbox
                   WHERE inbox.consumer = $1 AND inbox.message_key = locked.key) END AS standing
  FROM careful
 CROSS JOIN locked
  LEFT JOIN marked ON marked.message_key = locked.key;

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
