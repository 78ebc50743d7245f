-- serves: 1
-- Retention: expired days of the log leave, unless something needs them; marks of the inbox expire behind a low-water mark.

-- Where a quarantined event lies in the log, so that its day is kept and its body is found again. Empty in rows that
-- releases before this one wrote: such a row keeps every day.
ALTER TABLE {schema}.quarantine ADD COLUMN seq bigint, ADD COLUMN recorded timestamptz, ADD COLUMN retention smallint;

-- Up to where the marks of a consumer may have expired: what was recorded before, and has no mark, may have been handled.
CREATE TABLE {schema}.inbox_mark (
    consumer   text        PRIMARY KEY,
    low_water  timestamptz NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- For how many days the rows of a partitioned table are kept; NULL for those that never leave.
CREATE FUNCTION {schema}.kept_days(parent text) RETURNS integer
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT CASE parent WHEN 'event_7' THEN 7 WHEN 'event_30' THEN 30 WHEN 'event_90' THEN 90 WHEN 'event_400' THEN 400
                       WHEN 'finished' THEN 7 END
$body$;

-- Drops the partition of `parent` for one day, which must be over by as many days as its rows are kept. Answers
-- 'dropped', 'gone' (there is none), or what needs it: 'outbox', 'quarantine', 'failures'.
--
-- First nobody can write to the partition any more (SHARE; readers go on), so that whatever needs it is committed and
-- seen, in one snapshot: an event goes from outbox to quarantine and back in one transaction. A replay that is not
-- finished will be one more line there. Only then is the parent locked, in the order in which readers lock, for the
-- moment that the catalog takes. Each lock is given up after 50 ms: that is how long a publish can be held up.
CREATE FUNCTION {schema}.drop_partition(parent text, day date) RETURNS text
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
        SELECT CASE
                   WHEN EXISTS (SELECT FROM {schema}.outbox AS o
                                 WHERE o.recorded >= starts AND o.recorded < ends AND o.retention = days)
                   THEN 'outbox'
                   WHEN EXISTS (SELECT FROM {schema}.quarantine AS q
                                 WHERE q.kind = 'event' AND q.resolved_at IS NULL
                                   AND (q.recorded IS NULL
                                        OR (q.recorded >= starts AND q.recorded < ends AND q.retention = days)))
                   THEN 'quarantine'
               END
          INTO needed;
    END IF;
    IF needed IS NOT NULL THEN
        RETURN needed;
    END IF;
    EXECUTE format('LOCK TABLE ONLY %I.%I IN ACCESS EXCLUSIVE MODE', {schema_text}, parent);
    EXECUTE format('DROP TABLE %I.%I', {schema_text}, leaf);
    RETURN 'dropped';
END
$body$;

-- Deletes expired events from the DEFAULT partition of `parent`, at most `most`, passing over what is needed. How many.
-- One statement, hence one snapshot: an event's row and what needs it are seen together.
CREATE FUNCTION {schema}.expire_rest(parent text, most integer) RETURNS integer
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
              LIMIT $2))',
        {schema_text}, parent || '_rest')
      USING days, most;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.kept_days(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION {schema}.drop_partition(text, date) FROM PUBLIC;
REVOKE ALL ON FUNCTION {schema}.expire_rest(text, integer) FROM PUBLIC;
