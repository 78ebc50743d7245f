-- name: forget
-- Takes away the marks of the messages $2 of consumer $1 that have their outcome.
DELETE FROM {schema}.inbox
WHERE consumer = $1 AND message_key = ANY ($2::uuid[]) AND outcome IN ('handled', 'dropped')
RETURNING message_key;

-- name: unguard
-- Takes away the last sequences of the keys $2 of consumer $1: what comes again would be stale.
DELETE FROM {schema}.order_guard
WHERE consumer = $1 AND key = ANY ($2::text[]);
