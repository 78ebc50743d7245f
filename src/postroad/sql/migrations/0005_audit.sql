-- serves: 1
-- Who did what to what, when and why. Rows are only ever added: the runtime role may not change or delete one.
CREATE TABLE {schema}.audit (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    by      text        NOT NULL,
    act     text        NOT NULL,
    subject text        NOT NULL,
    items   bigint      NOT NULL DEFAULT 1,
    reason  text,
    before  jsonb,
    after   jsonb
);
CREATE INDEX audit_subject ON {schema}.audit (subject, id);
