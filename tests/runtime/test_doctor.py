"""The doctor's pure judgements; what it sees of real servers is in tests/cli."""

from __future__ import annotations

import pytest

from postroad.runtime.doctor import _broker_version


@pytest.mark.parametrize(
    ("server", "judgement"),
    [
        ("RabbitMQ 3.10.8", "ok"), ("RabbitMQ 4.0.5", "ok"), ("RabbitMQ 4.2.0-rc.1", "ok"),
        ("RabbitMQ 3.9.29", "problem"),
        ("LavinMQ 2.0", "warning"), ("", "warning"),
    ],
)  # fmt: skip
def test_the_doctor_judges_the_brokers_version(server: str, judgement: str) -> None:
    assert _broker_version(server).judgement == judgement
