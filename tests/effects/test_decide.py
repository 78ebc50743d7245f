"""The state chart as pure decisions: what a run may do, and what a look-up means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from effects.bench import charges
from effects.provider import BlindCards
from postroad.clock import hours, seconds
from postroad.effects import Absent, Done, Found, Refused, Unknown
from postroad.effects.decide import Move, State, concluded, doubtful, move
from postroad.effects.store import Entry

ENTRY = Entry(
    id=1, key="k", state=State.UNKNOWN, fingerprint="f", provider_key="p", attempt=1, outcome=None, reason=None,
    looks=0, absences=0, token=7, sent_at=None, alive=False, settles_in=seconds(0), remembered=None,
)  # fmt: skip
LOOKING = charges(answers=2)
BLIND = charges(BlindCards, key_window=hours(1))


@pytest.mark.parametrize(
    ("state", "more", "wanted"),
    [
        (State.SUCCEEDED, {}, Move.RETURN),
        (State.REJECTED, {}, Move.RETURN),
        (State.INTENDED, {"token": 9}, Move.SEND),
        (State.INTENDED, {"alive": True}, Move.WAIT),
        (State.INTENDED, {}, Move.SEND),
        (State.SENT, {"alive": True}, Move.WAIT),
        (State.SENT, {"alive": True, "token": 9}, Move.WAIT),
        (State.SENT, {}, Move.DOUBT),
        (State.UNKNOWN, {}, Move.WAIT),
        (State.RECONCILING, {}, Move.WAIT),
        (State.NOT_FOUND, {}, Move.SEND),
        (State.MANUAL, {}, Move.WAIT),
    ],
)
def test_a_run_may_do_this(state, more, wanted):
    entry = replace(ENTRY, state=state, **more)
    assert move(LOOKING, entry, "f", token=9) is wanted
    assert move(LOOKING, entry, "other", token=9) is Move.CONFLICT


@pytest.mark.parametrize(
    ("remembered", "wanted"), [(None, Move.WAIT), (seconds(0.4), Move.WAIT), (hours(1), Move.REPEAT)]
)
def test_without_a_look_up_the_request_is_repeated_while_its_key_is_remembered(remembered, wanted):
    assert move(BLIND, replace(ENTRY, remembered=remembered), "f", token=9) is wanted
    assert move(LOOKING, replace(ENTRY, remembered=remembered), "f", token=9) is Move.WAIT


def test_what_is_in_doubt_is_looked_up_or_repeated_or_left_to_a_person():
    assert [doubtful(one) for one in (LOOKING, BLIND, charges(BlindCards))] == [
        State.UNKNOWN, State.UNKNOWN, State.MANUAL,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "more", "state", "said"),
    [
        (Found(Done("r")), {}, State.SUCCEEDED, "done"),
        (Found(Refused("c")), {}, State.REJECTED, "refused"),
        (Found(None), {}, State.UNKNOWN, "unknown"),  # type: ignore[arg-type]
        (Found(Done(7)), {}, State.UNKNOWN, "unknown"),  # type: ignore[arg-type]
        (Unknown, {}, State.UNKNOWN, "unknown"),
        (Unknown(), {}, State.UNKNOWN, "unknown"),
        ("nonsense", {}, State.UNKNOWN, "unknown"),
        (None, {}, State.UNKNOWN, "failed"),
        (Absent, {"settles_in": seconds(5), "absences": 1}, State.UNKNOWN, "absent"),
        (Absent, {}, State.UNKNOWN, "absent"),
        (Absent(), {"absences": 1}, State.NOT_FOUND, "absent"),
        (Found(Done("r")), {"settles_in": seconds(5)}, State.SUCCEEDED, "done"),
    ],
)
def test_a_look_up_means_this(answer, more, state, said):
    found = concluded(LOOKING, replace(ENTRY, **more), answer, chance=0.5)
    assert (found.state, found.answer) == (state, said)
    assert (found.next_in > seconds(0)) is (state is State.UNKNOWN)


def test_agreement_counts_from_anew_after_any_other_answer():
    once = concluded(LOOKING, ENTRY, Absent, chance=0.5)
    assert once.absences == 1
    assert concluded(LOOKING, replace(ENTRY, absences=1), Unknown, chance=0.5).absences == 0


def test_past_the_window_no_absence_is_believed_and_a_find_still_is():
    effect = charges(key_window=hours(1))
    late = replace(ENTRY, remembered=seconds(-1))
    assert concluded(effect, late, Absent, chance=0.5).state is State.MANUAL
    assert concluded(effect, late, Found(Done("r")), chance=0.5).state is State.SUCCEEDED
    assert concluded(effect, replace(ENTRY, remembered=hours(1)), Absent, chance=0.5).state is State.NOT_FOUND
