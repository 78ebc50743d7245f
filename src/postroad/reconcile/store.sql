-- A row of `reconciliation` says how far the open pass of it has come. Its token is new with every run: an older run
-- that goes on writes nothing any more.

-- name: begin
-- Takes a reconciliation over for a run ($3: one that has it already, by its token), and goes on with the open pass, or
-- begins one where there is none, or where $2 says so.
INSERT INTO {schema}.reconciliation AS one (name, token, pass, began_at)
VALUES ($1, 1, 1, clock_timestamp())
ON CONFLICT (name) DO UPDATE
SET token = one.token + 1,
    pass = CASE WHEN $2::boolean OR one.began_at IS NULL THEN one.pass + 1 ELSE one.pass END,
    cursor = CASE WHEN $2::boolean OR one.began_at IS NULL THEN NULL ELSE one.cursor END,
    compared = CASE WHEN $2::boolean OR one.began_at IS NULL THEN 0 ELSE one.compared END,
    began_at = CASE WHEN $2::boolean OR one.began_at IS NULL THEN clock_timestamp() ELSE one.began_at END
WHERE $3::bigint IS NULL OR one.token = $3
RETURNING token, pass, cursor, compared;

-- name: note
-- A page was compared: moves the cursor to $3 after $4 keys, and notes the differences ($5 to $8), fenced by the token
-- $2. What differs for longer than $9, although the authority says the same all that time, is drift.
WITH fenced AS (
    UPDATE {schema}.reconciliation
    SET cursor = $3, compared = $4
    WHERE name = $1 AND token = $2
    RETURNING pass, began_at
), noted AS (
    INSERT INTO {schema}.drift AS standing (reconciliation, key, kind, expected, found, state, pass)
    SELECT $1, given.key, given.kind, given.expected, given.found, 'suspected', fenced.pass
    FROM fenced
    CROSS JOIN unnest($5::text[], $6::text[], $7::text[], $8::text[]) AS given (key, kind, expected, found)
    ON CONFLICT (reconciliation, key) WHERE resolved_at IS NULL DO UPDATE
    SET kind = excluded.kind, expected = excluded.expected, found = excluded.found, pass = excluded.pass,
        since = CASE WHEN standing.expected IS DISTINCT FROM excluded.expected THEN clock_timestamp()
            ELSE standing.since END,
        state = CASE WHEN standing.expected IS DISTINCT FROM excluded.expected THEN 'suspected'
            WHEN standing.state = 'open' OR standing.since <= (SELECT began_at FROM fenced) - $9::interval THEN 'open'
            ELSE standing.state END
)
SELECT pass
FROM fenced;

-- name: finish
-- The open pass has come to its end: what it has not met is drift no more, and what was only suspected never was.
WITH fenced AS (
    UPDATE {schema}.reconciliation
    SET began_at = NULL, cursor = NULL, ended_at = clock_timestamp()
    WHERE name = $1 AND token = $2
    RETURNING pass
), gone AS (
    UPDATE {schema}.drift
    SET resolved_at = clock_timestamp(), resolution = CASE state WHEN 'repaired' THEN 'repaired' ELSE 'gone' END
    FROM fenced
    WHERE drift.reconciliation = $1 AND drift.resolved_at IS NULL AND drift.state IN ('open', 'repaired')
        AND drift.pass < fenced.pass
), noise AS (
    DELETE FROM {schema}.drift
    USING fenced
    WHERE drift.reconciliation = $1 AND drift.resolved_at IS NULL AND drift.state = 'suspected'
        AND drift.pass < fenced.pass
)
SELECT pass
FROM fenced;

-- name: counts
-- What stands of a reconciliation, by state and kind, and in how many seconds the youngest suspicion is $2 old.
SELECT state, kind, count(*) AS count, min(since) AS oldest,
    extract(EPOCH FROM max(since) + $2::interval - clock_timestamp())::float8 AS wait
FROM {schema}.drift
WHERE reconciliation = $1 AND resolved_at IS NULL
GROUP BY state, kind;

-- name: complete
-- A run has looked at everything, and waited where it had to.
UPDATE {schema}.reconciliation
SET completed_at = clock_timestamp()
WHERE name = $1 AND token = $2;

-- name: list
-- Every reconciliation that has run, with what stands of it.
SELECT one.name, one.pass, one.compared, one.began_at, one.ended_at, one.completed_at,
    count(drift.id) FILTER (WHERE drift.state = 'open' AND drift.kind = 'missing') AS missing,
    count(drift.id) FILTER (WHERE drift.state = 'open' AND drift.kind = 'extra') AS extra,
    count(drift.id) FILTER (WHERE drift.state = 'open' AND drift.kind = 'mismatched') AS mismatched,
    count(drift.id) FILTER (WHERE drift.state = 'suspected') AS suspected,
    count(drift.id) FILTER (WHERE drift.state = 'repaired') AS repaired,
    min(drift.since) FILTER (WHERE drift.state = 'open') AS oldest
FROM {schema}.reconciliation AS one
LEFT JOIN {schema}.drift ON drift.reconciliation = one.name AND drift.resolved_at IS NULL
GROUP BY one.name
ORDER BY one.name;

-- name: drift
-- What differs, or did ($3: of that state), oldest first.
SELECT id, reconciliation, key, kind, state, since, repairs, failure, expected, found, resolved_at, resolution
FROM {schema}.drift
WHERE ($1::text IS NULL OR reconciliation = $1) AND ($2::text IS NULL OR kind = $2)
    AND CASE WHEN $3 = 'resolved' THEN resolved_at IS NOT NULL ELSE resolved_at IS NULL AND state = $3 END
ORDER BY id
LIMIT $4;

-- name: preview
-- What a repair would touch.
SELECT kind, count(*) AS count, extract(EPOCH FROM clock_timestamp() - min(since))::float8 AS seconds, max(id) AS last
FROM {schema}.drift
WHERE reconciliation = $1 AND resolved_at IS NULL AND state = 'open'
    AND ($2::text IS NULL OR kind = $2) AND ($3::text IS NULL OR key = $3)
GROUP BY kind
ORDER BY kind;

-- name: take
-- The next open drift beyond the row $4, up to $5; locked, and what others hold is passed over.
SELECT id, key, kind, expected, found, since
FROM {schema}.drift
WHERE reconciliation = $1 AND resolved_at IS NULL AND state = 'open'
    AND ($2::text IS NULL OR kind = $2) AND ($3::text IS NULL OR key = $3) AND id > $4 AND id <= $5
ORDER BY id
LIMIT $6
FOR UPDATE SKIP LOCKED;

-- name: repaired
-- Something was done about these: the next look that comes late enough says whether it helped.
UPDATE {schema}.drift
SET state = 'repaired', since = clock_timestamp(), repairs = repairs + 1, failure = NULL
WHERE id = ANY ($1::bigint[]);

-- name: failed
-- The repair of one failed; it stays open.
UPDATE {schema}.drift
SET repairs = repairs + 1, failure = $2
WHERE id = $1;

-- name: forget
-- Deletes a batch of drift that was resolved before $1.
DELETE FROM {schema}.drift
WHERE id = ANY (ARRAY(SELECT id FROM {schema}.drift WHERE resolved_at < $1::timestamptz LIMIT $2))
RETURNING id;

-- name: of_key
-- How many rows, standing or resolved, have the key $1.
SELECT count(*) AS count
FROM {schema}.drift
WHERE key = $1;

-- name: erase
-- Deletes every row of the key $1: where it still differs, the next look finds it anew.
DELETE FROM {schema}.drift
WHERE key = $1;
