-- serves: 1
-- Reconciliation: how far each has come, and what differs between an authority and its projection.

CREATE TABLE {schema}.reconciliation (
    name         text        PRIMARY KEY,
    token        bigint      NOT NULL,
    pass         bigint      NOT NULL,
    cursor       text,
    compared     bigint      NOT NULL DEFAULT 0,
    began_at     timestamptz,
    ended_at     timestamptz,
    completed_at timestamptz
) WITH (fillfactor = 50);

-- A difference is suspected until it has outlived the time that events need, then open; repaired until a look has shown
-- that it is gone. `since` is the time from which on the authority has said the same.
CREATE TABLE {schema}.drift (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reconciliation text        NOT NULL,
    key            text        NOT NULL,
    kind           text        NOT NULL CHECK (kind IN ('missing', 'extra', 'mismatched')),
    expected       text,
    found          text,
    state          text        NOT NULL CHECK (state IN ('suspected', 'open', 'repaired')),
    pass           bigint      NOT NULL,
    since          timestamptz NOT NULL DEFAULT clock_timestamp(),
    repairs        integer     NOT NULL DEFAULT 0,
    failure        text,
    resolved_at    timestamptz,
    resolution     text
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX drift_standing ON {schema}.drift (reconciliation, key) WHERE resolved_at IS NULL;
CREATE INDEX drift_resolved        ON {schema}.drift (resolved_at)         WHERE resolved_at IS NOT NULL;
