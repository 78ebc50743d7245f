"""P5 and P14: what cannot be handled is quarantined once, with a safe reason, while the rest goes on."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import Any

import pytest

from road.apps.parcels_next import ParcelMoved as NextParcelMoved
from road.roads import QUEUE, Road, told, until
from road.test_several import envelope, send
from runtime.processes import Running, fetch

pytestmark = pytest.mark.heavy
MARKER = "MARKER-5d1f-of-the-payload"

# --- raw publishes to the owner's exchange --------------------------------------------------------------------------

DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
BINARY = {"ce-id": [MARKER], "ce-type": {"a": MARKER}, "ce-specversion": 1, "ce-source": True}
BAD: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "no JSON": (b"{" + MARKER.encode(), {}, "PR501"),
    "not UTF-8": (b'{"id": "\xff\xfe' + MARKER.encode() + b'"}', {}, "PR501"),
    "a bomb": (DEEP, {}, "PR501"),
    "oversized": (envelope(0, data={"number": 0, "note": MARKER * 50_000}), {}, "PR501"),
    "no id": (envelope(0, id=None), {}, "PR501"),
    "headers of wrong types": (b'{"number": 0}', {"content_type": "application/json", "headers": BINARY}, "PR501"),
    "no content type": (envelope(0), {"content_type": None, "headers": {"x": MARKER}}, "PR501"),
    "unknown type": (envelope(0, type="parcels.parcel.lost"), {}, "PR502"),
    "unknown version": (envelope(0, schemaversion=9), {}, "PR503"),
    "another's type": (envelope(0, type="payments.payment.taken"), {}, "PR504"),
    "another's source": (envelope(0, source="urn:postroad:payments"), {}, "PR504"),
    "a payload that does not fit": (envelope(0, data={"number": MARKER}), {}, "PR505"),
}


def send_bad_between_good(road: Road) -> None:
    """Each twice, as a producer that retries does, and a good event after each."""

    def work(channel: Any) -> None:
        for number, (body, properties, _) in enumerate(BAD.values()):
            send(channel, body, **properties)
            send(channel, body, **properties)
            send(channel, envelope(number + 1))

    road.on_channel(work)


def test_bad_input_at_the_queue_is_quarantined_once_each_and_the_good_between_is_handled(road: Road) -> None:
    board = road.board()
    send_bad_between_good(road)
    until(lambda: len(told(board, "delivery_settled")) == 3 * len(BAD))
    assert road.seen() == Counter(range(1, len(BAD) + 1))
    rows = road.quarantined()
    assert Counter(row["code"] for row in rows) == Counter(code for _, _, code in BAD.values())
    assert MARKER not in str(rows)
    assert MARKER not in str([*board.lines, *board.plain])
    assert board.plain == []
    assert told(board, "service_failed") == []
    stored = {body for (body,) in road.rows("SELECT encode(sha256(body), 'hex') FROM postroad.quarantine")}
    assert stored == {sha256(body).hexdigest() for body, _, _ in BAD.values()}
    left = road.on_channel(lambda channel: channel.queue_declare(QUEUE, passive=True))
    assert left.method.message_count == 0
    assert board.stop() < 10  # With nothing unacked: its receipt says so.
    assert board.wait_for("shutdown_receipt")["given_back"] == 0


@pytest.mark.sabotage
def test_without_the_check_of_owners_anybody_speaks_for_anybody(road: Road) -> None:
    board = road.board(ROAD_WITHOUT="ownership")
    road.on_channel(lambda channel: send(channel, BAD["another's source"][0]))
    board.wait_for("delivery_settled")
    assert road.seen() == Counter([0])
    assert road.quarantined() == []


# --- versions -------------------------------------------------------------------------------------------------------


def a_new_version_meets_an_old_consumer(road: Road, **settings: str) -> Running:
    board = road.board(**settings)
    road.dispatcher()
    road.publish([1])
    road.stage([NextParcelMoved(number=2, place="Lagos")])
    road.publish([3])
    until(lambda: len(told(board, "delivery_settled")) == 3)
    return board


def test_a_v2_event_at_a_v1_consumer_is_quarantined_and_listed_and_v1_goes_on(road: Road) -> None:
    a_new_version_meets_an_old_consumer(road)
    assert road.seen() == Counter([1, 3])
    (row,) = road.quarantined()
    assert (row["code"], row["queue"], row["event_type"]) == ("PR503", "board.moves", "parcels.parcel.moved")
    assert "this is version 2" in row["reason"]
    assert road.count("postroad.inbox", "outcome = 'quarantined'") == 1
    assert road.count("postroad.outbox") == 0


@pytest.mark.sabotage
def test_without_the_check_of_versions_a_v1_consumer_guesses_at_v2(road: Road) -> None:
    a_new_version_meets_an_old_consumer(road, ROAD_WITHOUT="versions")
    assert road.seen() == Counter([1, 2, 3])


# --- payloads stay out of sight -------------------------------------------------------------------------------------

FATES = {"": "ok", "fail:1": "ok", "fail:9": "quarantine", "break": "quarantine", "refuse": "quarantine",
         "give up": "quarantine"}  # fmt: skip
KEPT = """
SELECT row_to_json(r) FROM (SELECT * FROM postroad.inbox) r UNION ALL
SELECT row_to_json(r) FROM (SELECT * FROM postroad.finished) r UNION ALL
SELECT row_to_json(r) FROM (SELECT class, code, fingerprint, error_type, reason, event_type, key, headers, history
                            FROM postroad.quarantine) r
"""


def what_operators_see(road: Road, **settings: str) -> str:
    """Logs at their most talkative, metrics, tables but for the bodies, and what commands print."""
    board, dispatcher = road.board(**settings), road.dispatcher(**settings)
    for number, act in enumerate(FATES):
        road.publish([number], act=act, note=MARKER)
    good = [number for number, fate in enumerate(FATES.values()) if fate == "ok"]
    road.await_seen(good)
    until(lambda: road.count("postroad.quarantine") == len(FATES) - len(good))
    assert road.seen() == Counter(good)
    assert told(board, "delivery_delayed")
    metrics = [fetch(process.ready(), "/metrics")[1] for process in (board, dispatcher)]
    printed = [road.command("quarantine", "list"), road.command("quarantine", "list", "--json")]
    rows = road.rows(KEPT)
    assert len(rows) >= 2 * len(FATES) - len(good)
    for process in (board, dispatcher):
        process.stop()
    logs = [str([process.lines, process.plain]) for process in (board, dispatcher)]
    return "\n".join([*logs, *metrics, *printed, str(rows)])


def test_through_success_failure_retry_and_quarantine_no_payload_is_in_anything_that_operators_see(road: Road) -> None:
    seen = what_operators_see(road)
    assert "ValueError" in seen
    assert MARKER not in seen


@pytest.mark.sabotage
def test_were_foreign_messages_repeated_payloads_would_be_in_logs(road: Road) -> None:
    assert MARKER in what_operators_see(road, ROAD_WITHOUT="discretion")
