"""Flights are read line by line; what is no flight is reported and the rest goes on."""

from __future__ import annotations

import gzip
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from postroad.demo.flights import SAMPLE, Flight, Malformed, UnreadableFile, read

HEADER = SAMPLE.read_text().splitlines()[0]
GOOD = "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
CANCELLED = "2013,1,1,NA,1630,NA,NA,1815,NA,EV,4308,N18120,EWR,RDU,NA,416,16,30,2013-01-01T21:00:00Z"


def write(folder: Path, *lines: str) -> Path:
    path = folder / "flights.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def test_a_departure_occurred_at_its_scheduled_time_plus_its_delay(tmp_path):
    (flight,) = read(write(tmp_path, GOOD))
    assert flight == Flight(
        "2013-01-01:UA:1545:EWR", "UA", "EWR", "IAH", 2, datetime(2013, 1, 1, 10, 17, tzinfo=UTC), date(2013, 1, 1)
    )


def test_a_flight_without_departure_time_was_cancelled(tmp_path):
    (flight,) = read(write(tmp_path, CANCELLED))
    assert isinstance(flight, Flight)
    assert flight.delay is None
    assert flight.occurred == datetime(2013, 1, 1, 21, 30, tzinfo=UTC)


def test_gzip_is_recognised_by_its_content(tmp_path):
    path = tmp_path / "flights.csv"
    path.write_bytes(gzip.compress(write(tmp_path, GOOD).read_bytes()))
    assert len(list(read(path))) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (GOOD.replace(",2,830", ",late,830"), "dep_delay is not a whole number"),
        (GOOD.replace("2013-01-01T10:00:00Z", "ten"), "time_hour is not a time"),
        (GOOD.replace(",UA,", ",U A!,"), "carrier is not a code of letters and digits"),
        (GOOD.replace("2013,1,1,", "2013,1,99999999,"), "day is out of range"),
        (GOOD.replace("2013,1,1,", "2013,2,30,"), "day is out of range for month"),
        ("2013,1,1", "it has more or fewer fields than the header"),
        (GOOD + ",extra", "it has more or fewer fields than the header"),
        (GOOD.replace("UA", "\ufffd\ufffd"), "carrier is not a code of letters and digits"),
    ],
)
def test_a_malformed_line_is_reported_and_the_rest_goes_on(tmp_path, line, reason):
    first, bad, last = read(write(tmp_path, GOOD, line, CANCELLED))
    assert isinstance(first, Flight)
    assert bad == Malformed(3, reason)
    assert isinstance(last, Flight)


def test_bytes_that_are_not_utf8_cost_only_their_line(tmp_path):
    path = write(tmp_path, GOOD, CANCELLED)
    path.write_bytes(path.read_bytes().replace(b"EWR,RDU", b"EWR,\xff\xfe"))
    good, bad = read(path)
    assert isinstance(good, Flight)
    assert isinstance(bad, Malformed)


@pytest.mark.parametrize("content", [b"\x1f\x8bnot gzip", b"a,b\n1,2\n", b""])
def test_a_file_that_holds_no_flights_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "flights.csv"
    path.write_bytes(content)
    with pytest.raises(UnreadableFile) as refused:
        list(read(path))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UnreadableFile, match="cannot be read"):
        list(read(tmp_path / "nothing.csv"))


def test_the_sample_is_the_first_of_january():
    flights = list(read(SAMPLE))
    assert len(flights) == 842
    assert all(isinstance(flight, Flight) for flight in flights)
    assert sum(flight.delay is None for flight in flights if isinstance(flight, Flight)) == 4
