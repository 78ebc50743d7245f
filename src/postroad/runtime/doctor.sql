-- name: server
-- The server's version, this connection's role, and whether that role is above all rights.
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS shown,
       current_user::text AS role, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS super;

-- name: rights
-- What the current role lacks of the runtime role's rights; $1 is the schema's name.
SELECT format('%s on %s', privilege, name) AS lacking
  FROM (VALUES ('SELECT, INSERT, UPDATE, DELETE',
                ARRAY['event', 'outbox', 'lease', 'inbox', 'starts', 'order_guard', 'work', 'quarantine', 'finished',
                      'installation', 'inbox_mark']),
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
-- Whether the current role may use the schema at all; $1 is its name.
SELECT has_schema_privilege($1::text, 'USAGE') AS usable
  FROM pg_namespace WHERE nspname = $1::text;
