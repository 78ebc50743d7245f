"""The health pages, and what they make of bad requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.errors import UsageError
from postroad.runtime.executor import Tasks
from postroad.runtime.health import LIVE_SECONDS, Health, Pulse, Vitals
from postroad.runtime.supervisor import ServiceState
from postroad.signals import Signals


class Patient:
    """What the pages look at, to be changed by a test."""

    def __init__(self) -> None:
        self.age = 0.0
        self.phase = "running"
        self.states = [ServiceState("work", True, "")]

    def vitals(self) -> Vitals:
        return Vitals(
            pulses=[lambda: self.age], phase=lambda: self.phase, states=lambda: self.states, metrics=lambda: b"up 1\n"
        )


@pytest.fixture
def patient() -> Patient:
    return Patient()


@pytest.fixture
async def health(patient: Patient) -> AsyncIterator[Health]:
    tasks = Tasks(Signals())
    health = Health(patient.vitals(), host="127.0.0.1", port=0, owner=tasks, signals=Signals())
    await health.start()
    yield health
    health.stop()
    assert await tasks.join(within=seconds(5)) == ()


async def ask(health: Health, request: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", health.port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


async def page(health: Health, path: str) -> tuple[int, dict[str, object]]:
    status, body = await ask(health, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return status, json.loads(body)


async def test_live_while_the_loops_go_round(health: Health, patient: Patient) -> None:
    assert await page(health, "/health/live") == (200, {"live": True, "seconds_since_beat": 0.0})
    patient.age = LIVE_SECONDS + 1
    assert (await page(health, "/health/live"))[0] == 503


async def test_ready_when_every_service_is(health: Health, patient: Patient) -> None:
    assert (await page(health, "/health/ready?verbose"))[0] == 200
    patient.states = [ServiceState("work", True, ""), ServiceState("transport", False, "not connected")]
    status, content = await page(health, "/health/ready")
    assert status == 503
    assert content["services"] == {
        "work": {"ready": True, "reason": ""}, "transport": {"ready": False, "reason": "not connected"},
    }  # fmt: skip


@pytest.mark.parametrize("phase", ["starting", "stopping"])
async def test_not_ready_before_the_start_is_over_nor_after_the_first_word(
    health: Health, patient: Patient, phase: str
) -> None:
    patient.phase = phase
    status, content = await page(health, "/health/ready")
    assert (status, content["phase"]) == (503, phase)


async def test_metrics(health: Health) -> None:
    assert await ask(health, b"GET /metrics HTTP/1.0\r\n\r\n") == (200, b"up 1\n")
    assert await ask(health, b"HEAD /metrics HTTP/1.1\r\n\r\n") == (200, b"")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", 404), (b"GET /health/live/../../etc HTTP/1.1\r\n\r\n", 404),
        (b"POST /health/live HTTP/1.1\r\n\r\n", 405), (b"DELETE /metrics HTTP/1.1\r\n\r\n", 405),
        (b"\x16\x03\x01\r\n\r\n", 400), (b"GET /health/live\r\n\r\n", 400), (b"\r\n\r\n", 400),
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 431),
    ],
)  # fmt: skip
async def test_a_bad_request_is_refused(health: Health, request_: bytes, status: int) -> None:
    assert (await ask(health, request_))[0] == status
    assert (await page(health, "/health/live"))[0] == 200


async def test_a_client_that_says_nothing_is_dropped(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.runtime.health._READ_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", health.port)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_a_loop_that_is_blocked_still_answers_through_the_other_thread(health: Health) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", health.port)
    writer.write(b"GET /health/live HTTP/1.1\r\n\r\n")
    await writer.drain()
    time.sleep(0.5)  # noqa: ASYNC251 - the block
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_port_that_is_taken_is_a_wrong_setting(health: Health, patient: Patient) -> None:
    other = Health(patient.vitals(), host="127.0.0.1", port=health.port, owner=Tasks(Signals()), signals=Signals())
    with pytest.raises(UsageError, match="POSTROAD_HEALTH_PORT"):
        await other.start()


async def test_the_pulse_ages_until_it_beats() -> None:
    pulse = Pulse(SYSTEM_CLOCK)
    await asyncio.sleep(0.05)
    assert pulse.age >= 0.05
    pulse.beat()
    assert pulse.age < 0.05
