"""Sign somebody up: python sign_up.py ada@example.org. Nothing of Postroad's needs to run for it."""

from __future__ import annotations

import os
import sys

import psycopg
from accounts import sign_up

if __name__ == "__main__":
    with psycopg.connect(os.environ["POSTROAD_DATABASE_URL"]) as connection:
        sign_up(connection, sys.argv[1])
