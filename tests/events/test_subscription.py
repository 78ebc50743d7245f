"""Subscriptions read tolerantly, and refuse without quoting."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from postroad.errors import ContractError, UsageError
from postroad.events import Producer, Subscription, as_subscription


class Partial(BaseModel):
    carrier: str
    delay: int | None = None


DEPARTED = Subscription("flights.flight.departed", version=2, model=Partial)


def test_a_partial_model_ignores_what_it_does_not_name():
    assert DEPARTED.decode({"carrier": "UA", "tail": "N1", "more": [1]}) == Partial(carrier="UA")
    assert DEPARTED.owner == "flights"


@pytest.mark.parametrize("version", [1, 3])
def test_another_version_is_refused(version):
    assert not DEPARTED.accepts(version)
    with pytest.raises(ContractError, match="PR503"):
        DEPARTED.decode({"carrier": "UA"}, version=version)


def test_a_misfit_names_declared_fields_and_quotes_nothing():
    class Guarded(Partial):
        model_config = ConfigDict(extra="forbid")

        @field_validator("carrier")
        @classmethod
        def _known(cls, value: str) -> str:
            message = f"unknown carrier {value}"
            raise ValueError(message)

    reader = Subscription("flights.flight.departed", version=2, model=Guarded)
    with pytest.raises(ContractError) as caught:
        reader.decode({"carrier": "hush", "delay": "hush", "hush": 1})
    assert caught.value.code == "PR505"
    assert "hush" not in str(caught.value)
    assert "carrier: value_error" in str(caught.value)
    assert "delay: int_parsing" in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_strict_model_reads_what_json_can_say():
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)

        at: datetime
        tags: set[str]

    reader = Subscription("flights.flight.departed", version=2, model=Strict)
    read = reader.decode({"at": "2026-01-01T00:00:00Z", "tags": ["a"]})
    assert read == Strict(at=datetime(2026, 1, 1, tzinfo=UTC), tags={"a"})


def test_older_payloads_are_lifted_step_by_step():
    def second(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "carrier": data["airline"]}

    def third(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "delay": 7}

    reader = Subscription("flights.flight.departed", version=3, model=Partial, upcasts={1: second, 2: third})
    assert reader.decode({"airline": "UA"}, version=1) == Partial(carrier="UA", delay=7)
    assert reader.decode({"carrier": "DL"}, version=2) == Partial(carrier="DL", delay=7)
    with pytest.raises(ContractError, match=r"upcast of .* from v1 failed \(KeyError\) \[PR505\]"):
        reader.decode({}, version=1)


@pytest.mark.parametrize("name", ["departed", "flight.departed", "a.b.c.d", "Flights.flight.departed", "", None])
def test_a_subscription_names_a_whole_type(name):
    with pytest.raises(UsageError, match="PR101"):
        Subscription(name, version=1, model=Partial)


def test_everything_wrong_with_a_subscription_is_told_at_once():
    class Odd:
        pass

    with pytest.raises(UsageError) as caught:
        Subscription("flights", version=0, model=Odd)
    assert "the type must be" in str(caught.value)
    assert "version must be" in str(caught.value)
    assert "cannot build the model" in str(caught.value)


@pytest.mark.parametrize("model", [dict, int, dict[str, int], None])
def test_a_model_has_fields(model):
    with pytest.raises(UsageError, match=r"the model must be a class with fields.* \[PR101\]"):
        Subscription("flights.flight.departed", version=1, model=model)


def test_a_decorated_class_reads_its_own_event():
    producer = Producer(f"p{uuid4().hex}")

    @producer.event("thing.changed", version=1)
    class Changed(BaseModel):
        """Something changed."""

        number: int = Field(description="A number.", alias="n")

    reader = as_subscription(Changed)
    assert (reader.type, reader.version, reader.model) == (f"{producer.name}.thing.changed", 1, Changed)
    assert reader.decode({"n": 1}) == Changed(n=1)
    assert as_subscription(DEPARTED) is DEPARTED
    assert as_subscription(producer.events[0]) == reader
    for stranger in (Partial, Changed(n=1), "flights.flight.departed"):
        with pytest.raises(UsageError, match="PR109"):
            as_subscription(stranger)
