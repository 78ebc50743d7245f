"""A web application that publishes with psycopg; Postroad is nothing but a library to it.

Each request to /<number> commits a row of its own and an event. WSGI_DATABASE_URL names the author's database.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import psycopg

from postroad.psycopg import within
from road.apps.parcels import ParcelMoved
from road.apps.whole import app as whole

Start = Callable[[str, list[tuple[str, str]]], object]

_here = threading.local()  # One connection for each worker and thread: none is made before the fork.


def app(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Publish, and say which process did."""
    assert whole.name == "whole"  # The App is imported, with or without --preload, and never entered.
    number = int(environ["PATH_INFO"].lstrip("/"))
    connection = getattr(_here, "connection", None)
    if connection is None:
        connection = _here.connection = psycopg.connect(os.environ["WSGI_DATABASE_URL"])
    with connection.transaction():
        connection.execute("INSERT INTO parcel VALUES (%s)", (number,))
        within(connection).publish(ParcelMoved(number=number))
    start("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
