"""URLs that name several hosts."""

from __future__ import annotations

import pytest

from postroad.hosts import each_host
from postroad.sql.manager import masked


@pytest.mark.parametrize(
    ("url", "each"),
    [
        ("amqp://h/v", ["amqp://h/v"]),
        ("amqp://u:p,w@one:1,two:2/v", ["amqp://u:p,w@one:1/v", "amqp://u:p,w@two:2/v"]),
        ("postgresql://u@[::1]:1,[::2]:2/d?a=b,c", ["postgresql://u@[::1]:1/d?a=b,c", "postgresql://u@[::2]:2/d?a=b,c"]),
        ("postgresql://one,two?target_session_attrs=any", [
            "postgresql://one?target_session_attrs=any", "postgresql://two?target_session_attrs=any",
        ]),
        ("postgresql://u@/d?host=%2Frun&port=1", ["postgresql://u@/d?host=%2Frun&port=1"]),
        ("nonsense", ["nonsense"]),
        ("", [""]),
    ],
)  # fmt: skip
def test_the_hosts_between_commas_share_everything_else(url: str, each: list[str]) -> None:
    assert each_host(url) == each


def test_what_is_printed_names_every_host_and_no_password() -> None:
    assert masked("postgresql://u:p@one:1,two/d?target_session_attrs=any") == "database one:1,two/d"
    assert masked("postgresql://u:p@one:x,two/d") == "the database"
