-- serves: 1
-- Clones: what tells an installation from a copy of its database, on the same broker or on another.

-- `place` is the table's own address: server, database and table. Of `token` and `next` one at least is marked on the
-- broker that the installation is bound to; both change once a minute, so that those of a copy are soon unknown there.
ALTER TABLE {schema}.installation
    ADD COLUMN place text, ADD COLUMN token uuid, ADD COLUMN next uuid, ADD COLUMN changed_at timestamptz,
    ADD COLUMN adopted_at timestamptz, ADD COLUMN adopted_by text;
