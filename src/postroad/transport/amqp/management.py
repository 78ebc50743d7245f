"""Reading RabbitMQ's management API: what stands on a virtual host, for operators' commands alone.

Source: the HTTP API reference of RabbitMQ's management plugin. Reads only; plain blocking calls, never made by a
running process.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from postroad.errors import AccessRefused, Unavailable
from postroad.transport.amqp.tls import Tls
from postroad.transport.topology import Binding

SETTING: Final = "POSTROAD_MANAGEMENT_URL"
_WITHIN: Final = 10.0
_REFUSED: Final = frozenset({401, 403})
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class SeenQueue:
    """A queue as it stands: its own arguments, and what its policies say; None where they may not be read."""

    name: str
    durable: bool
    arguments: Mapping[str, Any]
    policy: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class SeenExchange:
    """An exchange as it stands; `policy` as of a queue."""

    name: str
    kind: str
    durable: bool
    arguments: Mapping[str, Any]
    policy: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Rights:
    """The patterns of a user on the virtual host, and its tags."""

    configure: str
    write: str
    read: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A virtual host as the management API shows it.

    `between` are bindings from exchange to exchange, with the destination as `queue`. `rights` is None where the
    API's user may not read them, or the user has none.
    """

    version: str
    queues: Mapping[str, SeenQueue]
    exchanges: Mapping[str, SeenExchange]
    bindings: frozenset[Binding]
    between: frozenset[Binding]
    consumed: frozenset[str]
    rights: Rights | None


class Management:
    """A client of the API at `url`, whose user and password may stand in it; `tls` counts for ``https://``."""

    def __init__(self, url: str, tls: Tls | None = None) -> None:
        """Nothing is asked yet.

        Raises:
            SettingsError: a certificate cannot be read.
        """
        parts = urlsplit(url)
        self._base = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        who = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        self._headers = {"Authorization": f"Basic {base64.b64encode(who.encode()).decode()}"}
        # A broker is inside: no proxy of the environment stands between.
        self._opener = build_opener(ProxyHandler({}), HTTPSHandler(context=(tls or Tls()).context()))

    def get(self, *path: str) -> Any:
        """The JSON document at `path`, each part quoted.

        Raises:
            AccessRefused: wrong user or password, or the user's tag is not enough.
            Unavailable: the API cannot be reached within ten seconds, or answers something else.
        """
        where = "/".join(quote(part, safe="") for part in path)
        try:
            request = Request(f"{self._base}/api/{where}", headers=self._headers)  # noqa: S310 - settings allow http(s) alone
            with self._opener.open(request, timeout=_WITHIN) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                code = error.code
            if code in _REFUSED:
                text = f"the management API refuses {path[0]!r} ({code}); correct {SETTING}, or give its user a tag"
                raise AccessRefused("PR303", f"{text} such as monitoring") from None
            if code == _NOT_FOUND:
                text = f"the management API has no {'/'.join(path)!r} ({code}); check {SETTING} and the virtual host"
                raise Unavailable("PR302", text) from None
            raise Unavailable("PR302", f"the management API answers {code} to {path[0]!r}; see {SETTING}") from None
        except (URLError, OSError, ValueError) as error:
            cause = getattr(error, "reason", None)  # A URLError's; it may be a text.
            kind = type(cause if isinstance(cause, Exception) else error).__name__
            text = f"the management API cannot be reached ({kind}); check {SETTING}"
            raise Unavailable("PR302", text) from error

    def readable(self, *path: str) -> Any:
        """As `get`, and None where the user may not, or there is no such thing."""
        try:
            return self.get(*path)
        except Unavailable:  # AccessRefused is one.
            return None


def read_vhost(url: str, *, vhost: str, user: str, tls: Tls | None = None) -> Seen:
    """Everything that the commands need to see of `vhost`, and the rights of the AMQP user `user` there.

    Raises:
        AccessRefused: the API's user may not read queues, exchanges or bindings.
        Unavailable: the API is away.
    """
    api = Management(url, tls)
    policies = Policies.read(api, vhost)
    bindings = [one for one in api.get("bindings", vhost) if one["source"]]
    return Seen(
        version=str(api.get("overview").get("rabbitmq_version", "")),
        queues={one["name"]: _queue(one, policies) for one in api.get("queues", vhost)},
        exchanges={one["name"]: _exchange(one, policies) for one in api.get("exchanges", vhost)},
        bindings=frozenset(_binding(one) for one in bindings if one["destination_type"] == "queue"),
        between=frozenset(_binding(one) for one in bindings if one["destination_type"] == "exchange"),
        consumed=frozenset(one["queue"]["name"] for one in api.get("consumers", vhost)),
        rights=_rights(api, vhost, user),
    )


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of a virtual host, users' and operators'; `readable` says whether they were shown.

    A queue's own listing is no source: of quorum queues 3.10 does not show there what is in effect.
    """

    given: Sequence[Mapping[str, Any]]
    operators: Sequence[Mapping[str, Any]]
    readable: bool

    @classmethod
    def read(cls, api: Management, vhost: str) -> Policies:
        """Ask for both lists; both need the tag policymaker."""
        given, operators = api.readable("policies", vhost), api.readable("operator-policies", vhost)
        return cls(given or [], operators or [], readable=given is not None and operators is not None)

    def of(self, name: str, *kinds: str) -> Mapping[str, Any] | None:
        """What is in effect for `name`: of either list the one of highest priority; of numbers the smaller wins."""
        if not self.readable:
            return None
        merged = dict(_first(self.given, name, kinds))
        for key, value in _first(self.operators, name, kinds).items():
            known = merged.get(key)
            both = isinstance(known, int) and isinstance(value, int)
            merged[key] = min(known, value) if both else value
        return merged


def _first(policies: Sequence[Mapping[str, Any]], name: str, kinds: Sequence[str]) -> Mapping[str, Any]:
    matching = [one for one in policies if one["apply-to"] in {"all", *kinds} and matches(one["pattern"], name)]
    return max(matching, key=lambda one: one["priority"])["definition"] if matching else {}


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern of the broker's finds something in `name`; one that only Erlang can read counts as found."""
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return True


def _queue(shown: Mapping[str, Any], policies: Policies) -> SeenQueue:
    arguments = dict(shown.get("arguments") or {})
    kind = arguments.setdefault("x-queue-type", shown.get("type", "classic"))
    policy = policies.of(shown["name"], "queues", f"{kind}_queues")
    return SeenQueue(shown["name"], bool(shown.get("durable")), arguments, policy)


def _exchange(shown: Mapping[str, Any], policies: Policies) -> SeenExchange:
    name, arguments = shown["name"], dict(shown.get("arguments") or {})
    return SeenExchange(name, shown["type"], bool(shown.get("durable")), arguments, policies.of(name, "exchanges"))


def _binding(shown: Mapping[str, Any]) -> Binding:
    return Binding(shown["source"], shown["destination"], shown["routing_key"])


def _rights(api: Management, vhost: str, user: str) -> Rights | None:
    shown = api.readable("permissions", vhost, user)
    if shown is None:
        return None
    tags = (api.readable("users", user) or {}).get("tags") or ()
    tags = tags.split(",") if isinstance(tags, str) else tags  # Text before 3.9, a list since.
    return Rights(shown["configure"], shown["write"], shown["read"], tuple(tag for tag in tags if tag))
