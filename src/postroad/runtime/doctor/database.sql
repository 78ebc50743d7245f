-- name: server
-- The server's version, and how this connection reaches it.
SELECT
    current_setting('server_version_num')::int AS version,
    current_setting('server_version') AS shown,
    coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), FALSE) AS encrypted,
    coalesce(host(inet_client_addr()), '') AS client;

-- name: role
-- The current role and its powers; $1 is the schema's name.
SELECT
    current_user::text AS role, rolsuper AS super,
    array_remove(ARRAY[
        CASE WHEN rolcreaterole THEN 'CREATEROLE' END, CASE WHEN rolcreatedb THEN 'CREATEDB' END,
        CASE WHEN rolreplication THEN 'REPLICATION' END, CASE WHEN rolbypassrls THEN 'BYPASSRLS' END,
        CASE WHEN owner THEN 'ownership of the schema' END,
        CASE WHEN NOT owner AND creates THEN 'CREATE on the schema' END
    ], NULL) AS powers
FROM pg_roles,
    LATERAL (
        SELECT
            coalesce(bool_or(pg_has_role(current_user, nspowner, 'USAGE')), FALSE) AS owner,
            coalesce(bool_or(has_schema_privilege(oid, 'CREATE')), FALSE) AS creates
        FROM pg_namespace
        WHERE nspname = $1::text
    ) AS schema
WHERE rolname = current_user;

-- name: rights
-- What the current role lacks of the runtime role's rights; $1 is the schema's name.
SELECT format('%s on %s', privilege, name) AS lacking
  FROM (VALUES ('SELECT, INSERT, UPDATE, DELETE',
                ARRAY['event', 'outbox', 'lease', 'inbox', 'starts', 'order_guard', 'work', 'quarantine', 'finished',
                      'installation', 'inbox_mark', 'reconciliation', 'drift']),
               ('SELECT', ARRAY['migration'])) AS wanted (privileges, names),
       unnest(names) AS name, unnest(string_to_array(privileges, ', ')) AS privilege
 WHERE to_regclass(format('%I.%I', $1::text, name)) IS NOT NULL
   AND NOT has_table_privilege(format('%I.%I', $1::text, name), privilege)
UNION ALL
SELECT format('USAGE on %s', name)
  FROM unnest(ARRAY['event_seq', 'outbox_place', 'work_id', 'work_token']) AS name
 WHERE to_regclass(format('%I.%I', $1::text, name)) IS NOT NULL
   AND NOT has_sequence_privilege(format('%I.%I', $1::text, name), 'USAGE');

-- name: usable
-- Whether the current role may use the schema at all; $1 is its name. No row: there is none.
SELECT has_schema_privilege($1::text, 'USAGE') AS usable
  FROM pg_namespace WHERE nspname = $1::text;

-- name: author_exists
-- Whether there is a role $1.
SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1::text);

-- name: author
-- Where role $2 differs from an author's rights in schema $1: what is held though not wanted, or wanted and not held.
WITH relation AS (
    SELECT oid, relname::text AS name, relkind = 'S' AS is_sequence
    FROM pg_class
    WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1::text) AND relkind IN ('r', 'p', 'S')
), judged AS (
    SELECT
        format('%s on %s', privilege, name) AS what,
        has_table_privilege($2::text, oid, privilege) AS held,
        privilege = 'INSERT' AND name IN ('event', 'outbox', 'work') AS wanted
    FROM relation, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS privilege
    WHERE NOT is_sequence
    UNION ALL
    SELECT
        format('%s on %s', privilege, name),
        has_sequence_privilege($2::text, oid, privilege),
        privilege = 'USAGE' AND name IN ('event_seq', 'outbox_place', 'work_id')
    FROM relation, unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) AS privilege
    WHERE is_sequence
    UNION ALL
    SELECT format('USAGE on schema %s', nspname), has_schema_privilege($2::text, oid, 'USAGE'), TRUE
    FROM pg_namespace WHERE nspname = $1::text
    UNION ALL
    SELECT format('CREATE on schema %s', nspname), has_schema_privilege($2::text, oid, 'CREATE'), FALSE
    FROM pg_namespace WHERE nspname = $1::text
)
SELECT what, held FROM judged WHERE held <> wanted ORDER BY held, what;

-- name: installation
-- Which installation this database is.
SELECT id::text FROM {schema}.installation ORDER BY created_at LIMIT 1;

-- name: room
-- What server, database and role allow in connections (-1: no limit of their own), and what is taken.
SELECT
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', TRUE)::int, 0) AS server,
    (SELECT datconnlimit FROM pg_database WHERE datname = current_database()) AS database,
    (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS role,
    count(*) AS server_taken,
    count(*) FILTER (WHERE datname = current_database()) AS database_taken,
    count(*) FILTER (WHERE usename = current_user) AS role_taken
FROM pg_stat_activity
WHERE datid IS NOT NULL AND pid <> pg_backend_pid();
