-- An effect's `token` says whose move it is: the claim of the row of work that may send, or the look-up in progress. No
-- two claims ever have the same, so that it fences every step; one sequence serves both.

-- name: durable
-- Makes the commit of this transaction durable, whatever the role's setting says: what is forgotten would be done again.
SELECT CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
            THEN set_config('synchronous_commit', 'on', true) END AS durable,
       set_config('idle_in_transaction_session_timeout', '5s', true) AS patience;

-- name: intend
-- Notes an intent, unless the key is known.
INSERT INTO {schema}.effect (name, key, fingerprint, provider_key, state, run, token, command)
VALUES ($1, $2, $3, $4, 'intended', $5, $6, $7)
ON CONFLICT (name, key) DO NOTHING;

-- name: look
-- Locks the effect of a key; whether its sender still has its row, and how the times stand by the database's clock.
SELECT effect.id, effect.state, effect.fingerprint, effect.provider_key, effect.attempt, effect.outcome, effect.reason,
    effect.looks, effect.absences, effect.token, effect.sent_at, effect.command, effect.key,
    EXISTS (SELECT FROM {schema}.work WHERE work.id = effect.run AND work.token = effect.token) AS alive,
    coalesce(effect.settles_at - clock_timestamp(), interval '0') AS settles_in,
    effect.valid_until - clock_timestamp() AS remembered
FROM {schema}.effect
WHERE effect.name = $1 AND effect.key = $2
FOR UPDATE OF effect;

-- name: adopt
-- An intent becomes this run's: nothing was sent, and whoever had it before sends nothing any more.
UPDATE {schema}.effect
SET run = $2, token = $3
WHERE id = $1 AND state = 'intended';

-- name: wait
-- Notes that a row of work waits for the outcome.
UPDATE {schema}.effect
SET waiting = waiting || $2::bigint
WHERE id = $1 AND NOT waiting @> ARRAY[$2::bigint];

-- name: send
-- The request is about to leave: from this run's intent, from a proven absence, or ($5) as the look-up of an unknown.
-- A provider that never saw the key begins to remember it now. A command that was erased is kept again: to look it up. A
-- repeat may take $8, and may not leave where the provider forgets the key before its end.
UPDATE {schema}.effect
SET state = 'sent', run = $2, token = $3, attempt = attempt + 1, absences = 0, looks = CASE WHEN $5 THEN looks ELSE 0 END,
    reason = NULL, sent_at = clock_timestamp(), settles_at = clock_timestamp() + $4::interval, next_check_at = NULL,
    valid_until = CASE WHEN $5 THEN valid_until ELSE clock_timestamp() + $6::interval END,
    command = coalesce(command, $7)
WHERE id = $1
    AND ((state = 'intended' AND token = $3) OR state = 'not_found'
        OR ($5 AND state = 'unknown' AND valid_until > clock_timestamp() + $8::interval))
RETURNING attempt, sent_at;

-- name: settle
-- The owner answered: the outcome is recorded for good, and the command is dropped.
UPDATE {schema}.effect
SET state = $3, outcome = $4, command = NULL, token = NULL, next_check_at = NULL, finished_at = clock_timestamp()
WHERE id = $1 AND token = $2 AND state = 'sent'
RETURNING id;

-- name: doubt
-- Nobody knows what became of what was sent.
UPDATE {schema}.effect
SET state = $3, reason = $4, token = NULL, next_check_at = clock_timestamp()
WHERE id = $1 AND token = $2 AND state = 'sent'
RETURNING id;

-- name: doubt_orphans
-- What was sent by runs that have lost their row, or are gone: of effects $1, each becomes state $2 of the same place.
UPDATE {schema}.effect
SET state = wanted.state, reason = 'its run ended before there was an answer', token = NULL,
    next_check_at = clock_timestamp()
FROM unnest($1::text[], $2::text[]) AS wanted (name, state)
WHERE effect.name = wanted.name AND effect.state = 'sent'
    AND NOT EXISTS (SELECT FROM {schema}.work WHERE work.id = effect.run AND work.token = effect.token)
RETURNING effect.id, effect.name, effect.state;

-- name: claim
-- Claims up to $2 effects of the names $1 that are due to be looked up, each for $3 of the same place: a look-up that
-- dies leaves them to the next after that, and its late answer changes nothing.
WITH due AS MATERIALIZED (
    SELECT effect.id, wanted.lease
    FROM {schema}.effect
    JOIN unnest($1::text[], $3::interval[]) AS wanted (name, lease) ON wanted.name = effect.name
    WHERE effect.state IN ('unknown', 'reconciling') AND effect.next_check_at <= clock_timestamp()
        AND effect.finished_at IS NULL
    ORDER BY effect.next_check_at
    LIMIT $2
    FOR UPDATE OF effect SKIP LOCKED
)
UPDATE {schema}.effect
SET state = 'reconciling', token = nextval('{schema}.work_token'), next_check_at = clock_timestamp() + due.lease
FROM due
WHERE effect.id = due.id
RETURNING effect.id, effect.name, effect.state, effect.fingerprint, effect.provider_key, effect.attempt, effect.outcome,
    effect.reason, effect.looks, effect.absences, effect.token, effect.sent_at, effect.command, effect.key,
    true AS alive, coalesce(effect.settles_at - clock_timestamp(), interval '0') AS settles_in,
    effect.valid_until - clock_timestamp() AS remembered;

-- name: conclude
-- A look-up has its answer: for good, for another request, for a person, or to be looked up again. An absence that is
-- noted after the provider may have forgotten the key proves nothing: it is left for the next look-up to say so.
UPDATE {schema}.effect
SET state = $3, outcome = $4, reason = $5, absences = $6, looks = looks + 1, token = NULL,
    next_check_at = CASE WHEN $3 = 'unknown' THEN clock_timestamp() + $7::interval END,
    command = CASE WHEN $3 IN ('succeeded', 'rejected') THEN NULL ELSE command END,
    finished_at = CASE WHEN $3 IN ('succeeded', 'rejected') THEN clock_timestamp() END
WHERE id = $1 AND token = $2 AND state = 'reconciling'
    AND ($3 <> 'not_found' OR valid_until IS NULL OR valid_until > clock_timestamp())
RETURNING id;

-- name: past_window
-- Unknown outcomes of effects $1, which nothing can look up, once the provider may have forgotten their keys: $2 of the
-- same place before it does.
UPDATE {schema}.effect
SET state = 'manual', reason = 'the provider may have forgotten the key, and there is no look-up', next_check_at = NULL
FROM unnest($1::text[], $2::interval[]) AS wanted (name, margin)
WHERE effect.name = wanted.name AND effect.state = 'unknown'
    AND (effect.valid_until IS NULL OR effect.valid_until - wanted.margin <= clock_timestamp())
RETURNING effect.id, effect.name;

-- name: awaited
-- Effects that rows of work wait for, and that have an outcome, or may be sent, by now; at most $1.
SELECT id, waiting
FROM {schema}.effect
WHERE waiting <> '{}'
    AND (state IN ('succeeded', 'rejected', 'not_found')
        OR (state = 'intended'
            AND NOT EXISTS (SELECT FROM {schema}.work WHERE work.id = effect.run AND work.token = effect.token)))
ORDER BY id
LIMIT $1;

-- name: told
-- Those rows of work need not be told any more.
UPDATE {schema}.effect
SET waiting = ARRAY(SELECT unnest(waiting) EXCEPT SELECT unnest($2::bigint[]))
WHERE id = $1;

-- name: state
-- Effects without an outcome, per name and state, and the age of the oldest in seconds.
SELECT name, state, count(*) AS count,
    extract(epoch FROM clock_timestamp() - min(coalesce(sent_at, intended_at)))::float8 AS oldest
FROM {schema}.effect
WHERE finished_at IS NULL
GROUP BY name, state
ORDER BY name, state;

-- name: forget
-- Deletes up to $2 effects whose outcome was known before $1; those without one stay, whatever their age.
DELETE FROM {schema}.effect
WHERE id = ANY (ARRAY(
    SELECT id
    FROM {schema}.effect
    WHERE finished_at < $1::timestamptz
    LIMIT $2
))
RETURNING id;
