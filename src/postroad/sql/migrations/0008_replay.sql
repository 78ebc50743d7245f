-- serves: 1
-- Replays: what is sent again from the log, how far it has come, and which of it a consumer runs again.

-- `cursor` is the seq up to which the log has been looked through, `last` where it ends. What it needs of the log is
-- kept until `keeps_until`: for ever while it runs, for a week after it was stopped.
CREATE TABLE {schema}.replay (
    number      bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id          uuid             NOT NULL UNIQUE,
    chosen      jsonb            NOT NULL,
    target      text,
    rate        double precision NOT NULL CHECK (rate > 0),
    state       text             NOT NULL CHECK (state IN ('running', 'stopped', 'done')),
    cursor      bigint           NOT NULL,
    last        bigint           NOT NULL,
    oldest      timestamptz      NOT NULL,
    newest      timestamptz      NOT NULL,
    total       bigint           NOT NULL,
    sent        bigint           NOT NULL DEFAULT 0,
    redacted    bigint           NOT NULL DEFAULT 0,
    by          text             NOT NULL,
    reason      text             NOT NULL,
    started_at  timestamptz      NOT NULL DEFAULT now(),
    changed_at  timestamptz      NOT NULL DEFAULT now(),
    keeps_until timestamptz      NOT NULL DEFAULT 'infinity'
) WITH (fillfactor = 50);
CREATE INDEX replay_running ON {schema}.replay (number) WHERE state = 'running';

-- Which replay a row belongs to: deliveries carry it.
ALTER TABLE {schema}.outbox ADD COLUMN replay uuid;
CREATE INDEX outbox_replay ON {schema}.outbox (replay) WHERE replay IS NOT NULL;

-- What a consumer runs again of a replay, although it had handled it `at` that time.
CREATE TABLE {schema}.rehandle (
    consumer text        NOT NULL,
    replay   uuid        NOT NULL,
    by       text        NOT NULL,
    reason   text        NOT NULL,
    at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, replay)
);

-- What needs the day of the log, of events kept for `days`, that is the partition `leaf`: 'outbox', 'quarantine',
-- 'replay', or NULL. It is STABLE, so that all is seen in one snapshot: events go from one of the three to another.
CREATE FUNCTION {schema}.day_needed_by(leaf text, days integer, starts timestamptz, ends timestamptz) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    one   record;
    found boolean;
BEGIN
    IF EXISTS (SELECT FROM {schema}.outbox AS o
                WHERE o.recorded >= starts AND o.recorded < ends AND o.retention = days) THEN
        RETURN 'outbox';
    END IF;
    IF EXISTS (SELECT FROM {schema}.quarantine AS q
                WHERE q.kind = 'event' AND q.resolved_at IS NULL
                  AND (q.recorded IS NULL OR (q.recorded >= starts AND q.recorded < ends AND q.retention = days))) THEN
        RETURN 'quarantine';
    END IF;
    FOR one IN SELECT r.cursor, r.last FROM {schema}.replay AS r
                WHERE r.keeps_until > now() AND r.oldest < ends AND r.newest >= starts
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %I.%I WHERE seq > $1 AND seq <= $2)', {schema_text}, leaf)
           INTO found USING one.cursor, one.last;
        IF found THEN
            RETURN 'replay';
        END IF;
    END LOOP;
    RETURN NULL;
END
$body$;
REVOKE ALL ON FUNCTION {schema}.day_needed_by(text, integer, timestamptz, timestamptz) FROM PUBLIC;

-- Drops the partition of `parent` for one day, which must be over by as many days as its rows are kept. Answers
-- 'dropped', 'gone' (there is none), or what needs it: 'outbox', 'quarantine', 'replay', 'failures'.
--
-- First nobody can write to the partition any more (SHARE; readers go on), so that whatever needs it is committed and
-- seen, in one snapshot: an event goes from outbox to quarantine and back in one transaction. Only then is the parent
-- locked, in the order in which readers lock, for the moment that the catalog takes. Each lock is given up after 50 ms:
-- that is how long a publish can be held up. A replay needs what it only reads, so all is looked at once more when
-- nobody reads any longer.
CREATE OR REPLACE FUNCTION {schema}.drop_partition(parent text, day date) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $body$
DECLARE
    leaf    text := parent || '_' || to_char(day, 'YYYYMMDD');
    starts  timestamptz := day::timestamp AT TIME ZONE 'UTC';
    ends    timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
    today   date := (now() AT TIME ZONE 'UTC')::date;
    days    integer := {schema}.kept_days(parent);
    needed  text;
    failed  boolean := false;
BEGIN
    IF days IS NULL OR day IS NULL THEN
        RAISE EXCEPTION 'table % keeps its days', parent USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF day + 1 + days > today THEN
        RAISE EXCEPTION 'partition % has not expired', leaf USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF to_regclass(format('%I.%I', {schema_text}, leaf)) IS NULL THEN
        RETURN 'gone';
    END IF;
    EXECUTE format('LOCK TABLE ONLY %I.%I IN SHARE MODE', {schema_text}, leaf);
    IF parent = 'finished' THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM %I.%I WHERE outcome NOT IN (''handled'', ''dropped'', ''duplicate''))',
                       {schema_text}, leaf)
           INTO failed;
        needed := CASE WHEN failed AND day + 1 + 90 > today THEN 'failures' END;
    ELSE
        needed := {schema}.day_needed_by(leaf, days, starts, ends);
    END IF;
    IF needed IS NOT NULL THEN
        RETURN needed;
    END IF;
    EXECUTE format('LOCK TABLE ONLY %I.%I IN ACCESS EXCLUSIVE MODE', {schema_text}, parent);
    needed := CASE WHEN parent <> 'finished' THEN {schema}.day_needed_by(leaf, days, starts, ends) END;
    IF needed IS NOT NULL THEN
        RETURN needed;
    END IF;
    EXECUTE format('DROP TABLE %I.%I', {schema_text}, leaf);
    RETURN 'dropped';
END
$body$;

-- Deletes expired events from the DEFAULT partition of `parent`, at most `most`, passing over what is needed. How many.
-- One statement, hence one snapshot: an event's row and what needs it are seen together.
CREATE OR REPLACE FUNCTION {schema}.expire_rest(parent text, most integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $body$
DECLARE
    days    integer := {schema}.kept_days(parent);
    deleted integer;
BEGIN
    IF days IS NULL OR parent = 'finished' THEN
        RAISE EXCEPTION 'table % keeps its rows', parent USING ERRCODE = 'invalid_parameter_value';
    END IF;
    EXECUTE format(
        'DELETE FROM %1$I.%2$I WHERE ctid = ANY (ARRAY(
             SELECT e.ctid
               FROM %1$I.%2$I AS e
              WHERE e.recorded < now() - make_interval(days => $1)
                AND NOT EXISTS (SELECT FROM %1$I.outbox AS o WHERE o.seq = e.seq)
                AND NOT EXISTS (SELECT FROM %1$I.quarantine AS q
                                 WHERE q.kind = ''event'' AND q.resolved_at IS NULL
                                   AND (q.seq IS NULL OR q.seq = e.seq))
                AND NOT EXISTS (SELECT FROM %1$I.replay AS r
                                 WHERE r.keeps_until > now() AND e.seq > r.cursor AND e.seq <= r.last
                                   AND e.recorded BETWEEN r.oldest AND r.newest)
              LIMIT $2))',
        {schema_text}, parent || '_rest')
      USING days, most;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$body$;
