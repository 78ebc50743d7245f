"""What may not travel in an event: fields marked `Sensitive`, and names that look like a credential."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from pydantic import SecretBytes, SecretStr


class Sensitive:
    """Marks a field as protected: ``Annotated[str, Sensitive]``.

    An event with such a field is refused when it is declared (PR103): events are copied to every consumer and kept
    in logs. Publish a reference instead, and let consumers ask the owner, who can check and forget.
    """

    __slots__ = ()


_SECRET_TYPES: Final = (SecretStr, SecretBytes)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ANYWHERE_WORDS: Final = """
accesskey accesstoken apikey authorization cardnumber credential credentials creditcard cvc cvv iban passphrase
passwd password passwords privatekey refreshtoken secret secretkey secrets ssn
"""
_ANYWHERE: Final = frozenset(_ANYWHERE_WORDS.split())
_LAST: Final = frozenset({"bearer", "jwt", "otp", "pin", "pwd", "token", "tokens"})
_PAIRS: Final = frozenset(
    {
        ("access", "key"),
        ("api", "key"),
        ("card", "number"),
        ("credit", "card"),
        ("encryption", "key"),
        ("pin", "code"),
        ("private", "key"),
        ("security", "code"),
        ("session", "key"),
        ("signing", "key"),
        ("social", "security"),
        ("token", "value"),
    },
)


def is_marked(annotations: tuple[object, ...]) -> bool:
    """Whether one of a field's annotations is the `Sensitive` marker, as a class or an instance."""
    return any(item is Sensitive or isinstance(item, Sensitive) for item in annotations)


def is_secret_type(kind: object) -> bool:
    """Whether `kind` is one of pydantic's secret types, whose values must not be written out."""
    return isinstance(kind, type) and issubclass(kind, _SECRET_TYPES)


def is_credential(name: str) -> bool:
    """Whether a field's name says that it holds a credential: ``api_key``, ``userPassword``, ``card_number``."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    return not _ANYWHERE.isdisjoint(words) or words[-1] in _LAST or any(pair in _PAIRS for pair in pairwise(words))
