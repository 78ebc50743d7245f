-- serves: 1
-- Jobs on the table of work, what operators say about queues, and who subscribes where there is no broker.

-- `due` is the time that a job was first meant to run: retries move `run_at` and leave it. A cancellation is asked for
-- by `cancel_at`, and heard by whoever runs the row.
ALTER TABLE {schema}.work
    ADD COLUMN due timestamptz, ADD COLUMN progress real, ADD COLUMN note text,
    ADD COLUMN cancel_at timestamptz, ADD COLUMN cancelled_by text, ADD COLUMN cancel_reason text;

-- What an operator has said about a queue; a queue without a row runs.
CREATE TABLE {schema}.queue (
    name       text        PRIMARY KEY,
    paused_at  timestamptz,
    paused_by  text,
    reason     text,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- Which consumers want which event types, where PostgreSQL is the transport: dispatch writes a row of work for each.
CREATE TABLE {schema}.subscription (
    consumer   text        NOT NULL,
    event_type text        NOT NULL,
    since      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (event_type, consumer)
);
