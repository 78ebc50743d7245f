-- name: add
-- One act. It commits with the act itself.
INSERT INTO {schema}.audit (by, act, subject, items, reason, before, after)
VALUES ($1, $2, $3, $4, $5, $6::text::jsonb, $7::text::jsonb);

-- name: entries
-- Acts, latest first; $2 is an act ('queue.pause') or what it begins with ('queue.').
SELECT id, at, by, act, subject, items, reason, before, after
FROM {schema}.audit
WHERE ($1::text IS NULL OR subject = $1) AND ($2::text IS NULL OR starts_with(act, $2))
    AND ($3::text IS NULL OR by = $3) AND ($4::timestamptz IS NULL OR at >= $4)
ORDER BY id DESC
LIMIT $5;
