"""URLs that name several hosts."""

from __future__ import annotations

from typing import Final

_ENDS: Final = "/?#"  # What ends the authority of a URL (RFC 3986, section 3.2).


def each_host(url: str) -> list[str]:
    """The URL once for each of its hosts, in their order; they stand between commas, as libpq takes them.

    ``amqp://user@one:5672,two:5672/vhost`` is two; a URL with one host, or none, comes back as it is.
    """
    scheme, mark, rest = url.partition("://")
    end = min((rest.find(sign) for sign in _ENDS if sign in rest), default=len(rest))
    user, at, hosts = rest[:end].rpartition("@")
    return [f"{scheme}{mark}{user}{at}{host}{rest[end:]}" for host in hosts.split(",")]
