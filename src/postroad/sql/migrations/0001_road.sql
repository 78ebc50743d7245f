-- serves: 1
-- The tables of the road: log, outbox, leases, inbox, work, quarantine.

CREATE SEQUENCE {schema}.event_seq;
CREATE SEQUENCE {schema}.outbox_place;
CREATE SEQUENCE {schema}.work_id;
CREATE SEQUENCE {schema}.work_token;

-- The log: every event ever staged, as the bytes that travel. Partitioned by retention class, then by day.
CREATE TABLE {schema}.event (
    seq          bigint      NOT NULL,
    id           uuid        NOT NULL,
    type         text        NOT NULL,
    version      integer     NOT NULL,
    key          text,
    sequence     bigint,
    occurred     timestamptz NOT NULL,
    recorded     timestamptz NOT NULL,
    correlation  text        NOT NULL,
    causation    text,
    retention    smallint    NOT NULL,
    envelope     bytea       NOT NULL
) PARTITION BY LIST (retention);

CREATE TABLE {schema}.event_7 PARTITION OF {schema}.event
    (PRIMARY KEY (seq, recorded)) FOR VALUES IN (7) PARTITION BY RANGE (recorded);
CREATE TABLE {schema}.event_30 PARTITION OF {schema}.event
    (PRIMARY KEY (seq, recorded)) FOR VALUES IN (30) PARTITION BY RANGE (recorded);
CREATE TABLE {schema}.event_90 PARTITION OF {schema}.event
    (PRIMARY KEY (seq, recorded)) FOR VALUES IN (90) PARTITION BY RANGE (recorded);
CREATE TABLE {schema}.event_400 PARTITION OF {schema}.event
    (PRIMARY KEY (seq, recorded)) FOR VALUES IN (400) PARTITION BY RANGE (recorded);
CREATE TABLE {schema}.event_keep PARTITION OF {schema}.event
    (PRIMARY KEY (seq, recorded)) FOR VALUES IN (0) PARTITION BY RANGE (recorded);

CREATE TABLE {schema}.event_7_rest    PARTITION OF {schema}.event_7    DEFAULT;
CREATE TABLE {schema}.event_30_rest   PARTITION OF {schema}.event_30   DEFAULT;
CREATE TABLE {schema}.event_90_rest   PARTITION OF {schema}.event_90   DEFAULT;
CREATE TABLE {schema}.event_400_rest  PARTITION OF {schema}.event_400  DEFAULT;
CREATE TABLE {schema}.event_keep_rest PARTITION OF {schema}.event_keep DEFAULT;

-- What still waits to be sent. Narrow; inserted and deleted only, on the good path.
CREATE TABLE {schema}.outbox (
    shard        smallint    NOT NULL,
    place        bigint      NOT NULL,
    seq          bigint      NOT NULL,
    recorded     timestamptz NOT NULL,
    retention    smallint    NOT NULL,
    route        text        NOT NULL,
    key_hash     bigint,
    target       text,
    available_at timestamptz,
    attempts     integer     NOT NULL DEFAULT 0,
    reason       text,
    PRIMARY KEY (shard, place)
) WITH (
    fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05
);
CREATE INDEX outbox_waiting ON {schema}.outbox (shard, available_at) WHERE attempts > 0;
CREATE UNIQUE INDEX outbox_target ON {schema}.outbox (seq, target) WHERE target IS NOT NULL;

-- Names held for a while. Tokens only grow: a released or expired lease keeps its row. Never UNLOGGED:
-- crash recovery would empty it and start the tokens again.
CREATE TABLE {schema}.lease (
    name         text        PRIMARY KEY,
    holder       uuid,
    token        bigint      NOT NULL DEFAULT 1,
    acquired_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz NOT NULL,
    ttl          interval    NOT NULL,
    meta         jsonb
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- What a consumer has handled, dropped, put off or given up.
CREATE TABLE {schema}.inbox (
    consumer     text        NOT NULL,
    message_key  uuid        NOT NULL,
    outcome      text        NOT NULL CHECK (outcome IN ('handled', 'dropped', 'delayed', 'quarantined')),
    reason       text,
    at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message_key)
) WITH (fillfactor = 95, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX inbox_age ON {schema}.inbox USING brin (at);

-- Starts of redelivered messages that nothing has answered yet.
CREATE TABLE {schema}.starts (
    consumer     text        NOT NULL,
    message_key  uuid        NOT NULL,
    start        integer     NOT NULL,
    process      uuid        NOT NULL,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, message_key, start)
);

-- The last sequence that a consumer has seen of each key; only for consumers that ask for order.
CREATE TABLE {schema}.order_guard (
    consumer     text        NOT NULL,
    key          text        NOT NULL,
    sequence     bigint      NOT NULL,
    at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, key)
) WITH (fillfactor = 70);

-- Claimable work: retries, jobs, deliveries. Hot and small; finished rows leave.
CREATE TABLE {schema}.work (
    id           bigint      PRIMARY KEY,
    queue        text        NOT NULL,
    kind         text        NOT NULL CHECK (kind IN ('retry', 'job', 'delivery')),
    key          text,
    state        text        NOT NULL CHECK (state IN ('scheduled', 'ready', 'running', 'waiting')),
    priority     smallint    NOT NULL DEFAULT 0,
    run_at       timestamptz NOT NULL DEFAULT now(),
    attempt      integer     NOT NULL DEFAULT 0,
    suspect      integer     NOT NULL DEFAULT 0,
    worker       text,
    token        bigint,
    created_at   timestamptz NOT NULL DEFAULT now(),
    started_at   timestamptz,
    event_type   text,
    body         bytea       NOT NULL,
    content_type text        NOT NULL,
    headers      jsonb       NOT NULL DEFAULT '{}',
    exchange     text,
    routing_key  text,
    history      jsonb       NOT NULL DEFAULT '[]'
) WITH (
    fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
CREATE UNIQUE INDEX work_open_key ON {schema}.work (queue, key) WHERE key IS NOT NULL;
CREATE INDEX work_ready     ON {schema}.work (queue, priority, run_at, id) WHERE state = 'ready' AND suspect = 0;
CREATE INDEX work_suspect   ON {schema}.work (queue, priority, run_at, id) WHERE state = 'ready' AND suspect > 0;
CREATE INDEX work_scheduled ON {schema}.work (run_at)                      WHERE state = 'scheduled';
CREATE INDEX work_running   ON {schema}.work (worker)                      WHERE state = 'running';

-- Kept, not tried again until a person says so.
CREATE TABLE {schema}.quarantine (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind           text        NOT NULL CHECK (kind IN ('delivery', 'event', 'job', 'dead-letter')),
    queue          text        NOT NULL,
    key            text,
    digest         bytea       NOT NULL,
    class          text        NOT NULL,
    code           text        NOT NULL,
    fingerprint    text        NOT NULL,
    error_type     text        NOT NULL,
    reason         text        NOT NULL,
    event_type     text,
    body           bytea       NOT NULL,
    content_type   text        NOT NULL,
    headers        jsonb       NOT NULL DEFAULT '{}',
    exchange       text,
    routing_key    text,
    attempt        integer     NOT NULL DEFAULT 0,
    history        jsonb       NOT NULL DEFAULT '[]',
    quarantined_at timestamptz NOT NULL DEFAULT now(),
    resolved_at    timestamptz,
    resolution     text,
    resolved_by    text
);
CREATE UNIQUE INDEX quarantine_open_key    ON {schema}.quarantine (queue, key)
    WHERE resolved_at IS NULL AND key IS NOT NULL;
CREATE UNIQUE INDEX quarantine_open_digest ON {schema}.quarantine (queue, digest)
    WHERE resolved_at IS NULL AND key IS NULL;

-- What ran and is resolved.
CREATE TABLE {schema}.finished (
    id          bigint      NOT NULL,
    queue       text        NOT NULL,
    kind        text        NOT NULL,
    key         text,
    outcome     text        NOT NULL,
    reason      text,
    attempt     integer     NOT NULL,
    worker      text,
    event_type  text,
    created_at  timestamptz NOT NULL,
    started_at  timestamptz,
    finished_at timestamptz NOT NULL DEFAULT now(),
    history     jsonb       NOT NULL DEFAULT '[]',
    PRIMARY KEY (id, finished_at)
) PARTITION BY RANGE (finished_at);
CREATE TABLE {schema}.finished_rest PARTITION OF {schema}.finished DEFAULT;

-- The identity of this installation, and the broker that it is bound to.
CREATE TABLE {schema}.installation (
    id         uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    broker     text,
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO {schema}.installation DEFAULT VALUES;

-- Makes the partition of `parent` for one day and attaches it. 'kept' means that the parent's DEFAULT already has
-- rows of that day: they stay there, since moving them would make authors wait.
CREATE FUNCTION {schema}.make_partition(parent text, day date) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    name    text := parent || '_' || to_char(day, 'YYYYMMDD');
    starts  timestamptz := day::timestamp AT TIME ZONE 'UTC';
    ends    timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
    clock   text := CASE parent WHEN 'finished' THEN 'finished_at' ELSE 'recorded' END;
    found   boolean;
BEGIN
    IF parent NOT IN ('event_7', 'event_30', 'event_90', 'event_400', 'event_keep', 'finished') THEN
        RAISE EXCEPTION 'table % is not partitioned by day', parent USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF to_regclass(format('%I.%I', {schema_text}, name)) IS NOT NULL THEN
        RETURN 'exists';
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %I.%I WHERE %I >= $1 AND %I < $2)',
                   {schema_text}, parent || '_rest', clock, clock)
       INTO found USING starts, ends;
    IF found THEN
        RETURN 'kept';
    END IF;
    EXECUTE format('CREATE TABLE %1$I.%2$I (LIKE %1$I.%3$I INCLUDING ALL)', {schema_text}, name, parent);
    EXECUTE format('ALTER TABLE %1$I.%3$I ATTACH PARTITION %1$I.%2$I FOR VALUES FROM (%4$L) TO (%5$L)',
                   {schema_text}, name, parent, starts, ends);
    RETURN 'made';
END
$body$;
REVOKE ALL ON FUNCTION {schema}.make_partition(text, date) FROM PUBLIC;
