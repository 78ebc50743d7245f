"""The dispatcher and its database connections."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from dispatching import an_event
from postroad.clock import seconds
from postroad.testing.servers import TcpProxy
from support import until


@pytest.mark.timeout(60)
async def test_connections_that_lead_nowhere_hold_up_dispatch_for_one_patience(
    author, broker, process, runtime_url, database_rows, monkeypatch
):
    monkeypatch.setattr("postroad.sql.manager.OWN_PATIENCE", seconds(1))
    port = urlsplit(runtime_url).port
    with TcpProxy(port) as line:
        await process(broker, url=runtime_url.replace(f":{port}", f":{line.port}"))
        first = await author.stage(*[an_event() for _ in range(5)])
        await until(lambda: len(broker.ids()) == 5)
        line.strand()
        second = await author.stage(*[an_event() for _ in range(5)])
        async with asyncio.timeout(15):
            while await database_rows.fetchval("SELECT count(*) FROM postroad.outbox"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert list(dict.fromkeys(broker.ids())) == [*first, *second]
