"""The supervisor: services are started again, reported, and stopped in their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from postroad.clock import ManualClock
from postroad.errors import AccessRefused, PostroadError, Unavailable, UsageError
from postroad.owner import Readiness
from postroad.runtime.executor import Tasks
from postroad.runtime.supervisor import Supervisor, Tier
from postroad.signals import Signal, Signals
from postroad.signals.catalog import ServiceFailed, ServiceReady, ServiceStarted, TaskFailed

Run = Callable[[asyncio.Event, Readiness], Awaitable[None]]


class Made:
    """A service made of a function."""

    def __init__(self, name: str, run: Run) -> None:
        self.name = name
        self._run = run

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        await self._run(stop, ready)


@pytest.fixture
def heard() -> list[Signal]:
    return []


@pytest.fixture
async def supervisor(heard: list[Signal]) -> Supervisor:
    signals = Signals(heard.append)
    return Supervisor(Tasks(signals), signals=signals, clock=ManualClock(), chance=lambda: 0.0)


async def works(stop: asyncio.Event, ready: Readiness) -> None:
    ready.up()
    await stop.wait()


async def end(supervisor: Supervisor, tier: Tier = Tier.WORK) -> None:
    supervisor.tell(tier)
    async with asyncio.timeout(5):
        while supervisor.running(tier):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_service_is_ready_when_it_says_so_and_stops_when_told(
    supervisor: Supervisor, heard: list[Signal]
) -> None:
    supervisor.start(Made("x", works))
    assert [(state.ready, state.reason) for state in supervisor.states] == [(False, "starting")]
    async with asyncio.timeout(5):
        await supervisor.wait_ready()
    await end(supervisor)
    assert heard == [ServiceStarted("x"), ServiceReady("x", True), ServiceReady("x", False, "stopped")]


@pytest.mark.parametrize("how", ["raises", "returns"])
async def test_a_service_that_ends_by_itself_is_reported_and_started_again(
    supervisor: Supervisor, heard: list[Signal], how: str
) -> None:
    starts = 0

    async def flaky(stop: asyncio.Event, ready: Readiness) -> None:
        nonlocal starts
        starts += 1
        if starts == 3:
            await works(stop, ready)
        elif how == "raises":
            raise ValueError("secret")

    supervisor.start(Made("x", flaky))
    async with asyncio.timeout(5):
        await supervisor.wait_ready()
    failures = [signal for signal in heard if isinstance(signal, ServiceFailed)]
    assert [failure.error_type for failure in failures] == [{"raises": "ValueError", "returns": "Returned"}[how]] * 2
    assert [failure.delay_seconds for failure in failures] == [0.1, 0.2]
    assert "secret" not in repr(failures)
    await end(supervisor)


@pytest.mark.parametrize("error", [AccessRefused("PR303", "no"), UsageError("PR101", "wrong")])
async def test_an_essential_service_that_is_refused_at_its_start_is_fatal(
    supervisor: Supervisor, error: PostroadError
) -> None:
    async def refused(stop: asyncio.Event, ready: Readiness) -> None:
        raise error

    supervisor.start(Made("x", refused))
    async with asyncio.timeout(5):
        assert await supervisor.fatal is error


@pytest.mark.parametrize("case", ["absence", "not essential", "was ready"])
async def test_anything_else_is_not_fatal(supervisor: Supervisor, heard: list[Signal], case: str) -> None:
    failed = asyncio.Event()

    async def fails(stop: asyncio.Event, ready: Readiness) -> None:
        if failed.is_set():
            await works(stop, ready)
            return
        if case == "was ready":
            ready.up()
        failed.set()
        raise Unavailable("PR302", "away") if case == "absence" else AccessRefused("PR303", "no")

    supervisor.start(Made("x", fails), essential=case != "not essential")
    async with asyncio.timeout(5):
        await failed.wait()
        while not any(isinstance(signal, ServiceFailed) for signal in heard):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await supervisor.wait_ready()
    assert not supervisor.fatal.done()
    await end(supervisor)


async def test_an_error_while_stopping_is_reported_and_not_started_again(
    supervisor: Supervisor, heard: list[Signal]
) -> None:
    async def fails_late(stop: asyncio.Event, ready: Readiness) -> None:
        await works(stop, ready)
        raise KeyError("secret")

    supervisor.start(Made("x", fails_late))
    await supervisor.wait_ready()
    await end(supervisor)
    assert any(isinstance(signal, TaskFailed) and signal.error_type == "KeyError" for signal in heard)
    assert sum(isinstance(signal, ServiceStarted) for signal in heard) == 1


async def test_the_ground_goes_on_while_what_stands_on_it_stops(supervisor: Supervisor) -> None:
    supervisor.start(Made("ground", works), tier=Tier.GROUND)
    supervisor.start(Made("work", works))
    await supervisor.wait_ready()
    await end(supervisor, Tier.WORK)
    assert supervisor.holding(Tier.GROUND) == ["ground"]
    await end(supervisor, Tier.GROUND)


async def test_two_services_of_one_name_are_refused(supervisor: Supervisor) -> None:
    supervisor.start(Made("x", works))
    with pytest.raises(UsageError, match="PR104"):
        supervisor.start(Made("x", works))
    await end(supervisor)
