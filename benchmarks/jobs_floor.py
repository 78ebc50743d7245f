"""The floor for jobs: a bare SKIP LOCKED loop on asyncpg, with a token and no other safety.

Usage: jobs_floor.py jobs COUNT with BENCH_DATABASE_URL set; prints one JSON line {"rate": per second}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from uuid import uuid4

import asyncpg
import uvloop

BATCH = 100
TABLES = """
DROP SCHEMA IF EXISTS floor_jobs CASCADE;
CREATE SCHEMA floor_jobs;
CREATE TABLE floor_jobs.job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind text, args jsonb, state text NOT NULL DEFAULT 'ready',
    run_at timestamptz NOT NULL DEFAULT now(), attempt int NOT NULL DEFAULT 0, token uuid, leased_until timestamptz
) WITH (fillfactor = 80);
CREATE INDEX ON floor_jobs.job (run_at, id) WHERE state = 'ready';
"""
FILL = """
INSERT INTO floor_jobs.job (kind, args)
SELECT 'noop', jsonb_build_object('data', $2::text) FROM generate_series(1, $1::int)
"""
CLAIM = """
UPDATE floor_jobs.job
SET state = 'running', attempt = attempt + 1, token = $1, leased_until = clock_timestamp() + interval '60 s'
WHERE id = ANY (ARRAY(
    SELECT id FROM floor_jobs.job WHERE state = 'ready' AND run_at <= now() ORDER BY run_at, id LIMIT $2
    FOR UPDATE SKIP LOCKED))
RETURNING id, kind, args, attempt
"""
DONE = "DELETE FROM floor_jobs.job WHERE id = ANY ($1::bigint[]) AND token = $2"


async def main(count: int) -> None:
    connection = await asyncpg.connect(os.environ["BENCH_DATABASE_URL"])
    await connection.execute(TABLES)
    await connection.execute(FILL, count, "b" * 380)
    await connection.execute("VACUUM ANALYZE floor_jobs.job")
    token, began = uuid4(), time.perf_counter()
    while rows := await connection.fetch(CLAIM, token, BATCH):
        for row in rows:
            json.loads(row["args"])
        await connection.execute(DONE, [row["id"] for row in rows], token)
    sys.stdout.write(json.dumps({"rate": count / (time.perf_counter() - began)}) + "\n")
    await connection.close()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[2])))
