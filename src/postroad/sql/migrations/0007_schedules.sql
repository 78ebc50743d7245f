-- serves: 1
-- Schedules, their occurrences, and what operators have asked of them.

-- Every set of schedules that a release of an App has started with; the highest number is the one that holds.
CREATE TABLE {schema}.schedule_release (
    app         text        NOT NULL,
    fingerprint text        NOT NULL,
    number      bigint      NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (app, fingerprint)
);

-- A schedule as the newest release that started declares it. `cursor` only grows: everything due up to it is decided.
-- `next_at` is when there is something to do with it, null where there is not.
CREATE TABLE {schema}.schedule (
    id           uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    name         text        NOT NULL UNIQUE,
    app          text        NOT NULL,
    definition   jsonb       NOT NULL,
    revision     integer     NOT NULL DEFAULT 1,
    release      bigint      NOT NULL,
    tz_version   text,
    cursor       timestamptz NOT NULL,
    next_at      timestamptz,
    failures     integer     NOT NULL DEFAULT 0,
    paused_at    timestamptz,
    paused_by    text,
    pause_reason text,
    retired_at   timestamptz,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX schedule_next ON {schema}.schedule (app, next_at) WHERE next_at IS NOT NULL;

-- One run of a schedule, or the reason why there is none. A manual one is known by its request, in `key`. While it is
-- started, `work_id` is its row of work.
CREATE TABLE {schema}.occurrence (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule   uuid        NOT NULL,
    due        timestamptz NOT NULL,
    kind       text        NOT NULL CHECK (kind IN ('scheduled', 'manual', 'backfill')),
    request    text        NOT NULL DEFAULT '',
    key        text        NOT NULL,
    state      text        NOT NULL CHECK (state IN
        ('pending', 'queued', 'started', 'succeeded', 'failed', 'missed', 'skipped', 'cancelled')),
    reason     text,
    start_at   timestamptz NOT NULL,
    overlap    text,
    revision   integer     NOT NULL,
    token      bigint,
    tz_version text,
    queue      text,
    work_id    bigint,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at timestamptz,
    ended_at   timestamptz,
    UNIQUE (schedule, due, kind)
) WITH (
    fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE UNIQUE INDEX occurrence_key ON {schema}.occurrence (key) WHERE kind <> 'scheduled';
CREATE INDEX occurrence_open ON {schema}.occurrence (schedule) WHERE state IN ('pending', 'queued', 'started');
CREATE INDEX occurrence_started ON {schema}.occurrence (id) WHERE state = 'started';
CREATE INDEX occurrence_age ON {schema}.occurrence USING brin (created_at);

-- A range of past due times that somebody wants run; `cursor` is how far it has come.
CREATE TABLE {schema}.schedule_backfill (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule   uuid        NOT NULL,
    from_at    timestamptz NOT NULL,
    to_at      timestamptz NOT NULL,
    cursor     timestamptz,
    overlap    text        NOT NULL,
    rerun      boolean     NOT NULL DEFAULT FALSE,
    planned    bigint      NOT NULL DEFAULT 0,
    passed     bigint      NOT NULL DEFAULT 0,
    by         text        NOT NULL,
    reason     text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at   timestamptz
);
CREATE INDEX schedule_backfill_open ON {schema}.schedule_backfill (id) WHERE ended_at IS NULL;
