"""The start of a process whose database restarts in the middle of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from postroad.clock import seconds
from postroad.errors import Unavailable
from postroad.runtime import process
from postroad.runtime.app import App
from postroad.runtime.settings import POSTGRES, Role, Settings
from postroad.testing.servers import TcpProxy

AWAY = 0.5
STEPS = pytest.mark.parametrize(
    ("owner", "step"), [(process.migrations, "check"), (process, "refuse_pooler"), (process.Keeper, "start")],
    ids=["check", "refuse_pooler", "keeper"],
)  # fmt: skip


@pytest.fixture
def line(runtime_url: str) -> Iterator[TcpProxy]:
    with TcpProxy(urlsplit(runtime_url).port or 0) as proxy:
        yield proxy


@pytest.fixture
def app(line: TcpProxy, runtime_url: str) -> App:
    url = runtime_url.replace(f":{urlsplit(runtime_url).port}/", f":{line.port}/")
    settings = Settings(
        database_url=url, direct_url=url, broker_url=POSTGRES, roles=frozenset({Role.MAINTAIN}),
        start_timeout=seconds(30),
    )  # fmt: skip
    return App("starting", settings=settings)


def restarting(line: TcpProxy, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str) -> list[str]:
    """Have the database go away as this step begins for the first time, and come back a moment later."""
    real: Callable[..., Awaitable[Any]] = getattr(owner, step)
    tries: list[str] = []

    async def step_(*args: Any, **given: Any) -> Any:
        tries.append(step)
        if len(tries) == 1:
            line.cut()
            asyncio.get_running_loop().call_later(AWAY, line.heal)
        return await real(*args, **given)

    monkeypatch.setattr(owner, step, step_)
    return tries


@STEPS
async def test_a_database_that_restarts_in_any_step_of_the_start_is_waited_for(
    app: App, line: TcpProxy, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str
) -> None:
    tries = restarting(line, monkeypatch, owner, step)
    async with app:
        assert len(tries) > 1


@pytest.mark.sabotage
@STEPS
async def test_sabotage_tried_once_each_step_ends_the_process(
    app: App, line: TcpProxy, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str
) -> None:
    async def once(self: process.Process, reach: Callable[..., Awaitable[Any]]) -> Any:
        return await reach(self.settings.start_timeout)

    monkeypatch.setattr(process.Process, "_patient", once)
    restarting(line, monkeypatch, owner, step)
    with pytest.raises(Unavailable):
        async with app:
            pass
