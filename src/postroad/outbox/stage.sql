-- The author's role may INSERT and draw numbers, nothing else: no RETURNING, no SELECT on tables, no conflict target.

-- The transaction number comes before the place: a dispatcher must be able to see that whoever has drawn one still
-- runs, even if it is held up before its row is written. (CASE fixes the order of evaluation.)

-- name: stage_one
-- Stages one event: numbers are drawn first, so that the log and the outbox get the same seq without reading it back.
WITH drawn AS MATERIALIZED (
    SELECT nextval('{schema}.event_seq') AS seq,
           CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{schema}.outbox_place') END AS place
), logged AS (
    INSERT INTO {schema}.event (seq, id, type, version, key, sequence, occurred, recorded, correlation, causation,
                                retention, envelope)
    SELECT drawn.seq, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11
      FROM drawn
)
INSERT INTO {schema}.outbox (shard, place, seq, recorded, retention, route, key_hash)
SELECT coalesce($13::smallint, (drawn.seq % 16)::smallint), drawn.place, drawn.seq, $7, $10, $12, $14
  FROM drawn;

-- name: stage_many
-- Stages many events in the order given: both numbers grow with it.
WITH given AS MATERIALIZED (
    SELECT nextval('{schema}.event_seq') AS seq,
           CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{schema}.outbox_place') END AS place,
           item.*
      FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::text[], $5::bigint[], $6::timestamptz[],
                  $7::timestamptz[], $8::text[], $9::text[], $10::smallint[], $11::bytea[], $12::text[],
                  $13::smallint[], $14::bigint[])
           WITH ORDINALITY
           AS item (id, type, version, key, sequence, occurred, recorded, correlation, causation, retention, envelope,
                    route, shard, key_hash, ordinality)
     ORDER BY item.ordinality
), logged AS (
    INSERT INTO {schema}.event (seq, id, type, version, key, sequence, occurred, recorded, correlation, causation,
                                retention, envelope)
    SELECT given.seq, given.id, given.type, given.version, given.key, given.sequence, given.occurred, given.recorded,
           given.correlation, given.causation, given.retention, given.envelope
      FROM given
)
INSERT INTO {schema}.outbox (shard, place, seq, recorded, retention, route, key_hash)
SELECT coalesce(given.shard, (given.seq % 16)::smallint), given.place, given.seq, given.recorded, given.retention,
       given.route, given.key_hash
  FROM given;
