-- serves: 1
-- Acts outside the database, and what is known of their outcome. `token` is whose move it is: the claim of the row of
-- work that sends, or of the look-up. The command is kept until there is an outcome, since a look-up may need it.
CREATE TABLE {schema}.effect (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text        NOT NULL,
    key           text        NOT NULL,
    fingerprint   text        NOT NULL,
    provider_key  text        NOT NULL,
    state         text        NOT NULL CHECK (state IN ('intended', 'sent', 'succeeded', 'rejected', 'unknown',
                                                        'reconciling', 'not_found', 'manual')),
    attempt       integer     NOT NULL DEFAULT 0,
    run           bigint      NOT NULL,
    token         bigint,
    command       bytea,
    outcome       text,
    reason        text,
    looks         integer     NOT NULL DEFAULT 0,
    absences      integer     NOT NULL DEFAULT 0,
    waiting       bigint[]    NOT NULL DEFAULT '{}',
    intended_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    sent_at       timestamptz,
    settles_at    timestamptz,
    valid_until   timestamptz,
    next_check_at timestamptz,
    finished_at   timestamptz,
    UNIQUE (name, key)
) WITH (fillfactor = 70);
CREATE INDEX effect_open     ON {schema}.effect (state, next_check_at) WHERE finished_at IS NULL;
CREATE INDEX effect_waiting  ON {schema}.effect (id)                   WHERE waiting <> '{}';
CREATE INDEX effect_finished ON {schema}.effect (finished_at)          WHERE finished_at IS NOT NULL;
