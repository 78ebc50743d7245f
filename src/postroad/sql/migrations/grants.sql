-- name: owner
-- What the role needs that migrates: to make the schema, which is its own from then on. It grants the others theirs.
DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database()); END $$;

-- name: runtime
-- What the runtime role may do: everything with rows, nothing with tables.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role};
GRANT INSERT, UPDATE, DELETE ON {schema}.event, {schema}.outbox, {schema}.lease, {schema}.inbox, {schema}.starts,
    {schema}.order_guard, {schema}.work, {schema}.quarantine, {schema}.finished, {schema}.installation,
    {schema}.inbox_mark, {schema}.queue, {schema}.subscription, {schema}.effect, {schema}.schedule, {schema}.occurrence,
    {schema}.schedule_release, {schema}.schedule_backfill, {schema}.replay, {schema}.rehandle TO {role};
GRANT INSERT, UPDATE, DELETE ON {schema}.reconciliation, {schema}.drift TO {role};
GRANT INSERT ON {schema}.audit TO {role};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};
GRANT EXECUTE ON FUNCTION {schema}.make_partition(text, date), {schema}.drop_partition(text, date),
    {schema}.expire_rest(text, integer), {schema}.kept_days(text) TO {role};

-- name: author
-- What an author's role may do: stage, and nothing else.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT INSERT ON {schema}.event, {schema}.outbox, {schema}.work TO {role};
GRANT USAGE ON SEQUENCE {schema}.event_seq, {schema}.outbox_place, {schema}.work_id TO {role};
