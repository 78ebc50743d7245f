"""What the broker's refusals and pika's exceptions mean in Postroad's terms; the only place that translates them."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from typing import Final

from pika import exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectionWorkflowFailed, AMQPConnectorStackTimeout

from postroad.errors import AccessRefused, PostroadError, TopologyError, Unavailable
from postroad.transport.amqp.tls import CA, CERTIFICATE

SETTING: Final = "POSTROAD_BROKER_URL"

ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED, NOT_ALLOWED = 403, 404, 405, 406, 530
MESSAGE_FAULTS: Final = frozenset({311, 313, ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED})
"""Codes with which a broker closes the channel because of the very message that was published on it."""

# pika hides the broker's answer in the text of its guess ("Probable..."): ConnectionClosedByBroker: (403) '...'
_CLOSED = re.compile(r"ConnectionClosedByBroker: \((\d+)\) (?P<quote>['\"])(.*)(?P=quote)", re.DOTALL)
_UNEQUAL = re.compile(
    r"inequivalent arg '(?P<argument>[^']+)' for (?P<kind>queue|exchange) '(?P<name>[^']+)' in vhost '[^']*': "
    r"received (?P<declared>.+) but current is (?P<found>.+)"
)
_VALUE = re.compile(r"(?:the value )?'(?P<value>[^']*)'(?: of type '[^']*')?")
# OpenSSL's names, which pika may have left in a text: "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] ..."
_ALERT = re.compile(r"\[SSL: (\w*ALERT_(?:\w*CERTIFICATE\w*|UNKNOWN_CA|ACCESS_DENIED))\]")
_NO_TLS: Final = "WRONG_VERSION_NUMBER"
_LONGEST_REASON: Final = 300
_WORDS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (socket.gaierror, "the host name is not known"),
    (ConnectionRefusedError, "nothing listens there"),
    (AMQPConnectorStackTimeout, "no answer in time"),
    (TimeoutError, "no answer in time"),
    (exceptions.ConnectionOpenAborted, "no answer in time"),  # Nobody but our own time limits aborts.
    (exceptions.AMQPHeartbeatTimeout, "missed heartbeats"),
    (exceptions.ConnectionClosedByClient, "closed by us"),
    (exceptions.StreamLostError, "the stream broke"),
)


def refused_connection(error: BaseException, *, place: str) -> AccessRefused | Unavailable:
    """What a failed attempt to connect to `place` (host, port and vhost, no password) means."""
    mistrust = _mistrust(error)
    if mistrust:
        return AccessRefused("PR303", f"the broker at {place}: {mistrust}")
    code, text = _answer(error)
    if code == ACCESS_REFUSED:
        return AccessRefused(
            "PR303", f"the broker at {place} refuses user and password; correct them in {SETTING} ({text})"
        )
    if code == NOT_ALLOWED:
        return AccessRefused(
            "PR303",
            f"the broker at {place} refuses the virtual host ({text}); name one that exists and that the user may"
            f" enter in {SETTING}",
        )
    return Unavailable("PR302", f"the broker at {place} cannot be reached ({reason(error)}); see {SETTING}")


def _mistrust(error: BaseException) -> str:
    """What is wrong with a certificate, ours or the broker's, which a person must put right; else empty."""
    for inner in _chain(error):
        if isinstance(inner, ssl.SSLCertVerificationError):
            why = shorten(inner.verify_message)
            return f"its certificate is not trusted ({why}); use the host name that it is for, and give its CA in {CA}"
        if isinstance(inner, ssl.SSLError) and inner.reason == _NO_TLS:
            return f"it does not speak TLS on this port; use the port of its TLS listener (5671) in {SETTING}"
        alert = next(filter(None, (_ALERT.search(text) for text in _texts(inner))), None)
        if alert is not None:
            return f"it does not trust our certificate ({alert[1]}); give one that it knows in {CERTIFICATE}"
    return ""


def _texts(error: BaseException) -> list[str]:
    return [str(argument) for argument in error.args if isinstance(argument, str)]


def lost_connection(error: BaseException) -> Unavailable:
    """What the loss of a connection that stood means."""
    return Unavailable("PR302", f"the connection to the broker was lost ({reason(error)})")


def refused_declaration(code: int, text: str, *, what: str) -> PostroadError:
    """What a channel closed over a declaration of `what` means: a difference, a missing thing, or missing rights."""
    if code == ACCESS_REFUSED:
        return AccessRefused(
            "PR303", f"the broker user may not declare {what} ({shorten(text)}); grant it, or apply as the deployer"
        )
    if code == NOT_FOUND:
        return TopologyError(
            "PR205", f"{what} does not exist ({shorten(text)}); run: postroad topology apply MODULE:APP"
        )
    difference = unequal(text)
    if difference is not None:
        return TopologyError("PR205", difference)
    return TopologyError("PR205", f"the broker refuses {what} ({code} {shorten(text)})")


def unequal(text: str) -> str | None:
    """One line that says how a thing on the broker differs from its declaration, read from the text of a 406."""
    match = _UNEQUAL.search(text)
    if match is None:
        return None
    kind, name, argument = match["kind"], match["name"], match["argument"]
    return (
        f"{kind} {name!r} has {argument} {_value(match['found'])}, declared {_value(match['declared'])};"
        f" arguments cannot be changed: empty and delete the {kind}, then run: postroad topology apply MODULE:APP"
    )


def reason(error: BaseException) -> str:
    """One short line about a pika or socket error: the broker's own words where it said some; never a password."""
    code, text = _answer(error)
    if code:
        return f"{code} {text}"
    for inner in _chain(error):
        for kind, words in _WORDS:
            if isinstance(inner, kind):
                return words
        if isinstance(inner, OSError) and inner.strerror:
            return shorten(inner.strerror)
    return type(error).__name__


def shorten(text: str) -> str:
    """A broker's text on one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"


def _answer(error: BaseException) -> tuple[int, str]:
    for inner in _chain(error):
        if isinstance(inner, exceptions.ConnectionClosedByBroker | exceptions.ChannelClosedByBroker):
            return inner.reply_code, shorten(inner.reply_text)
        for argument in inner.args:
            match = _CLOSED.search(argument) if isinstance(argument, str) else None
            if match is not None:
                return int(match[1]), shorten(match[3])
    return 0, ""


def _chain(error: BaseException, depth: int = 8) -> Iterator[BaseException]:
    """The error and those it wraps: pika keeps them in arguments, in `exceptions` and in `exception`."""
    yield error
    if depth == 0:
        return
    wrapped = list(error.exceptions) if isinstance(error, AMQPConnectionWorkflowFailed) else []
    wrapped += [error.__cause__, getattr(error, "exception", None), *error.args]
    for inner in wrapped:
        if isinstance(inner, BaseException):
            yield from _chain(inner, depth - 1)


def _value(text: str) -> str:
    text = text.strip()
    if text.startswith("none"):
        return "unset"
    match = _VALUE.match(text)
    return repr(match["value"]) if match else shorten(text)
