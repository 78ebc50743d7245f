"""Declarations are checked whole, and told in one error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr, computed_field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import Doc, TypeAliasType, TypedDict

from postroad.errors import UsageError
from postroad.events import Keep, Producer, Sensitive, event_type_of


class Plain(BaseModel):
    """Something happened."""

    number: int = Field(description="A number.")


def a_producer() -> Producer:
    return Producer(f"p{uuid4().hex}")


def refusal(model: object, name: str = "thing.changed", **options: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        a_producer().event(name, **{"version": 1, **options})(model)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_declared_class_comes_back_as_it_was_and_knows_its_type():
    flights = a_producer()

    @flights.event("flight.departed", version=2, retention=Keep.DAYS_7, subscribers="optional")
    class Departed(BaseModel):
        """A flight left the gate."""

        carrier: str = Field(description="Its airline.")

    event_type = event_type_of(Departed(carrier="UA"))
    assert event_type is event_type_of(Departed)
    assert event_type.type == f"{flights.name}.flight.departed"
    assert event_type.routing_key == f"{flights.name}.flight.departed.v2"
    assert (event_type.retention, event_type.subscribers) == (7, "optional")
    assert flights.events == (event_type,)
    assert (flights.source, flights.exchange) == (f"urn:postroad:{flights.name}", f"{flights.name}.events")


def test_a_subclass_of_an_event_is_not_an_event():
    @a_producer().event("thing.changed", version=1)
    class Changed(Plain):
        """Something changed."""

    class More(Changed):
        """More of it."""

    with pytest.raises(UsageError, match=r"More is not declared; .* \[PR109\]"):
        event_type_of(More(number=1))


@pytest.mark.parametrize("name", ["", "Flights", "a.b", "9lives", "postroad", "amq", "a" * 64, "fl ights", "é", None])
def test_a_producers_name_is_one_plain_word(name):
    with pytest.raises(UsageError, match="PR101"):
        Producer(name)


def test_a_producers_schema_is_checked_at_once():
    with pytest.raises(UsageError, match="PR107"):
        Producer("flights", schema='x"; DROP')


@pytest.mark.parametrize(
    "name", ["departed", "flight.Departed", "flight..departed", "a.b.sent.x", "", "flight.departed ", None]
)
def test_an_events_name_is_an_entity_and_a_past_tense(name):
    assert refusal(Plain, name).code == "PR102"


def test_an_event_in_the_present_tense_is_refused_unless_its_author_insists():
    assert "past tense" in str(refusal(Plain, "flight.depart"))
    a_producer().event("flight.flumoxt", version=1, past_tense=True)(type("Local", (Plain,), {"__doc__": "It did."}))


def test_an_event_of_another_producer_is_refused():
    assert "where 'bookings' is a producer, only it may declare it" in str(refusal(Plain, "bookings.booking.made"))


def test_a_name_of_three_words_is_told_the_shape():
    assert "<entity>.<past-tense>, two words under the producer" in str(refusal(Plain, "order.item.added"))


def test_a_repeated_producer_name_is_pointed_out():
    bookings = a_producer()
    with pytest.raises(UsageError, match="must not repeat the producer"):
        bookings.event(f"{bookings.name}.booking.made", version=1)(Plain)


@pytest.mark.parametrize("version", [0, -1, True, "1", 1.0, None, 2**31])
def test_a_version_is_an_integer_from_one(version):
    assert "version must be" in str(refusal(Plain, version=version))


@pytest.mark.parametrize("upcasts", [{1: dict}, {2: dict, 1: "x"}, {0: dict, 1: dict, 2: dict}, {3: dict}])
def test_upcasts_lead_step_by_step_to_the_version(upcasts):
    assert "upcast" in str(refusal(Plain, version=3, upcasts=upcasts))


def test_other_options_are_checked_too():
    text = str(refusal(Plain, compatibility="sideways", subscribers="some", retention=90, max_bytes=0))
    assert "compatibility" in text
    assert "subscribers" in text
    assert "retention" in text
    assert "max_bytes" in text


def test_a_class_without_a_docstring_is_refused():
    class Silent(BaseModel):
        number: int = Field(description="A number.")

    @dataclass
    class Made:
        number: Annotated[int, Doc("A number.")]

    assert "docstring" in str(refusal(Silent))
    assert "docstring" in str(refusal(Made))


def test_a_field_without_a_description_is_refused_wherever_it_lies():
    class Inner(BaseModel):
        """A part."""

        weight: float

    class Outer(BaseModel):
        """Something happened."""

        bare: int
        parts: dict[str, list[Inner | None]] = Field(description="Its parts.")

        @computed_field
        @property
        def doubled(self) -> int:
            return 2 * self.bare

    text = str(refusal(Outer))
    assert "field bare needs a description" in text
    assert "field parts.weight needs a description" in text
    assert "field doubled needs a description" in text


def test_descriptions_of_dataclasses_come_from_metadata_field_or_doc():
    @a_producer().event("thing.changed", version=1)
    @dataclass(frozen=True, slots=True)
    class Changed:
        """Something changed."""

        one: Annotated[int, Field(description="One.")]
        two: Annotated[Inner, Doc("Two.")]
        three: int = field(default=3, metadata={"description": "Three."})

    assert event_type_of(Changed).encode_payload(Changed(1, Inner(2))) == b'{"one":1,"two":{"depth":2},"three":3}'

    @a_producer().event("thing.changed", version=1)
    @pydantic_dataclass
    class Validated:
        """Something changed."""

        one: int = Field(description="One.")

    assert event_type_of(Validated).encode_payload(Validated(1)) == b'{"one":1}'


@pytest.mark.parametrize(
    "name",
    [
        "password", "user_password", "userPassword", "passwd", "client_secret", "secret", "token", "access_token",
        "accessToken", "api_key", "apiKey", "apikey", "credentials", "authorization", "private_key", "card_number",
        "cardNumber", "cvv", "pin", "card_pin", "ssn", "iban", "IBAN", "customer_iban", "AUTHORIZATION",
    ],
)  # fmt: skip
def test_a_field_named_like_a_credential_is_refused(name):
    model = type("Local", (BaseModel,), {
        "__doc__": "It.", "__module__": __name__, "__annotations__": {name: str}, name: Field(description="It."),
    })  # fmt: skip
    error = refusal(model)
    assert error.code == "PR103"
    assert name in str(error)
    assert "reference" in str(error)


@pytest.mark.parametrize(
    "name",
    [
        "key",
        "secretary",
        "pin_count",
        "token_count",
        "pinned",
        "discard_number",
        "card_numbering",
        "shipping",
        "tokenizer",
    ],
)
def test_a_field_with_an_innocent_name_is_accepted(name):
    model = type("Local", (BaseModel,), {
        "__doc__": "It.", "__module__": __name__, "__annotations__": {name: str}, name: Field(description="It."),
        "__qualname__": f"Local_{name}",
    })  # fmt: skip
    a_producer().event("thing.changed", version=1)(model)


@dataclass
class Inner:
    depth: Annotated[int, Doc("How deep.")]


class Deep(TypedDict):
    password: Annotated[str, Doc("It.")]


class Row(NamedTuple):
    iban: Annotated[str, Doc("It.")]


class Inside(BaseModel):
    """A part."""

    cvv: str = Field(description="It.")


class Listed(RootModel[list[Inside]]):
    """Parts."""


Alias = TypeAliasType("Alias", list[Inside] | dict[str, "Alias"])


@pytest.mark.parametrize("kind", [Deep, list[Row], Inside | None, dict[str, tuple[Inside, ...]], Listed, Alias])
def test_a_credential_is_found_wherever_it_lies(kind):
    class Outer(BaseModel):
        """Something happened."""

        part: kind = Field(description="A part.")  # type: ignore[valid-type]

    assert refusal(Outer).code == "PR103"


def test_a_credential_behind_an_alias_is_found():
    class Outer(BaseModel):
        """Something happened."""

        part: str = Field(description="A part.", serialization_alias="password")

    assert refusal(Outer).code == "PR103"


@pytest.mark.parametrize(
    "kind",
    [
        Annotated[str, Sensitive],
        Annotated[str, Sensitive()],
        list[Annotated[str, Sensitive]],
        SecretStr,
        SecretStr | None,
    ],
)
def test_a_sensitive_field_is_refused_and_a_reference_advised(kind):
    class Outer(BaseModel):
        """Something happened."""

        diagnosis: kind = Field(description="What ails them.")

    error = refusal(Outer)
    assert error.code == "PR103"
    assert "publish a reference" in str(error)


def test_models_that_would_publish_the_undeclared_are_refused():
    class Loose(BaseModel):
        """Something happened."""

        model_config = ConfigDict(extra="allow")

    class Root(RootModel[int]):
        """Something happened."""

    assert "extra='allow'" in str(refusal(Loose))
    assert "RootModel" in str(refusal(Root))
    assert "pydantic model or a dataclass" in str(refusal(type("Local", (), {"__doc__": "It."})))


def test_everything_wrong_is_told_at_once():
    class Wrong(BaseModel):
        bare: int
        secret: str

    error = refusal(Wrong, "flight.depart", version=0)
    for part in ("past tense", "version", "docstring", "bare", "credential"):
        assert part in str(error)
    assert error.code == "PR103"


def test_one_type_and_version_has_one_declaration_in_a_process():
    name = f"p{uuid4().hex}"

    def declare(producer: Producer, qualname: str, version: int = 1) -> None:
        model = type("Local", (Plain,), {"__doc__": "It.", "__module__": __name__, "__qualname__": qualname})
        producer.event("thing.changed", version=version)(model)

    first = Producer(name)
    declare(first, "A")
    declare(first, "A", version=2)
    with pytest.raises(UsageError, match=r"declared twice \(.*A, .*B\); keep one \[PR104\]"):
        declare(first, "B")
    with pytest.raises(UsageError, match="PR104"):
        declare(Producer(name), "B")
    with pytest.raises(UsageError, match="PR104"):
        declare(first, "A")
    declare(Producer(name), "A")  # The same class of the same file: its module was loaded again.


def test_a_payload_over_its_limit_is_refused_without_quoting_it():
    @a_producer().event("thing.changed", version=1, max_bytes=20)
    class Changed(BaseModel):
        """Something changed."""

        text: str = Field(description="Its text.")

    event_type = event_type_of(Changed)
    assert len(event_type.encode_payload(Changed(text="x" * 9))) == 20
    with pytest.raises(UsageError, match=r"has 21 bytes, its limit is 20; .* \[PR106\]") as caught:
        event_type.encode_payload(Changed(text="x" * 10))
    assert "xxx" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["hush", "\ud800", object()])
def test_a_payload_that_does_not_fit_is_refused_without_quoting_it(wrong):
    @a_producer().event("thing.changed", version=1)
    @dataclass
    class Changed:
        """Something changed."""

        number: Annotated[int, Doc("A number.")]

    with pytest.raises(UsageError, match=r"does not fit its declaration .* \[PR107\]") as caught:
        event_type_of(Changed).encode_payload(Changed(wrong))
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_payload_that_does_not_fit_is_told_by_its_fields_and_never_by_a_value():
    class Inner(BaseModel):
        depth: int = Field(description="How deep.")

    @a_producer().event("thing.changed", version=1)
    class Changed(BaseModel):
        """Something changed."""

        number: int = Field(description="A number.")
        inner: Inner = Field(description="What is inside.")

    forged = Changed.model_construct(number="[field_name='hush', input_value=", inner=Inner.model_construct(depth="x"))
    with pytest.raises(UsageError, match=r"does not fit its declaration \(field number, depth\) \[PR107\]"):
        event_type_of(Changed).encode_payload(forged)


def test_the_class_of_an_event_is_no_event():
    @a_producer().event("thing.changed", version=1)
    class Changed(BaseModel):
        """Something changed."""

    with pytest.raises(UsageError, match=r"Changed is the class of .*thing.changed itself; publish an instance"):
        event_type_of(Changed).encode_payload(Changed)


def test_a_model_that_cannot_be_built_is_refused():
    class Unbuilt(BaseModel):
        """Something happened."""

        part: Missing = Field(description="A part.")  # type: ignore[name-defined]  # noqa: F821

    @dataclass
    class Other:
        """Something happened."""

        part: Annotated[Missing, Doc("A part.")]  # type: ignore[name-defined]  # noqa: F821

    class Odd:
        pass

    class Foreign(BaseModel):
        """Something happened."""

        model_config = ConfigDict(arbitrary_types_allowed=True)

        part: Odd = Field(description="A part.")

    for model in (Unbuilt, Other, Foreign):
        assert "cannot build" in str(refusal(model))
