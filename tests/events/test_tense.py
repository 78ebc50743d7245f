"""Names of events are in the past tense."""

from __future__ import annotations

import pytest

from postroad.events.tense import is_past


@pytest.mark.parametrize(
    "word",
    [
        "departed", "cancelled", "sent", "paid", "made", "sold", "begun", "lost", "won", "held", "kept", "left", "put",
        "set", "cut", "resent", "overpaid", "rewritten", "withdrawn", "undone", "payment_sent", "agreed", "freed",
        "checked_in", "timed-out", "taken-over", "built", "shipped", "tied",
    ],
)  # fmt: skip
def test_past_participles_are_known(word):
    assert is_past(word)


@pytest.mark.parametrize(
    "word",
    [
        "depart", "create", "need", "feed", "proceed", "speed", "embed", "red", "hundred", "check_in", "send", "ed",
        "departing", "status", "sent_mail", "in", "", "_", "-",
    ],
)  # fmt: skip
def test_other_words_are_not(word):
    assert not is_past(word)
