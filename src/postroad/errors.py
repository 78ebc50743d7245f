"""The exception tree of Postroad, with stable codes."""

from __future__ import annotations

from typing import Final

CODES: Final[dict[str, str]] = {
    "PR101": "a declaration is not valid",
    "PR102": "an event type is declared wrongly",
    "PR103": "a field would carry a credential or a protected record",
    "PR104": "a name is declared twice",
    "PR105": "a publish happened outside a transaction",
    "PR106": "a payload is larger than its limit",
    "PR107": "a value given to a public call is not valid",
    "PR108": "an extra is not installed",
    "PR109": "the event is not declared by its producer",
    "PR110": "a process was forked after its App had started",
    "PR111": "a handler tried to control its transaction",
    "PR112": "a row of quarantine cannot be tried again",
    "PR113": "a row of work does not allow what was asked",
    "PR114": "an effect does not allow what was asked",
    "PR115": "a replay does not allow what was asked",
    "PR201": "a setting is missing or not valid",
    "PR202": "the schema is missing",
    "PR203": "the schema is older than this release needs",
    "PR204": "the schema no longer serves this release",
    "PR205": "the topology on the broker differs from the declared one",
    "PR301": "the database cannot be reached",
    "PR302": "the broker cannot be reached",
    "PR303": "access was refused",
    "PR304": "another process holds the lock",
    "PR310": "the executor takes nothing more",
    "PR311": "a background task was cancelled",
    "PR401": "a lease was lost",
    "PR402": "a lease or lock is held by another",
    "PR403": "a lock was lost with its connection",
    "PR501": "an envelope is not valid",
    "PR502": "an event type is not known here",
    "PR503": "a schema version is not accepted here",
    "PR504": "an event came from an exchange that its owner does not own",
    "PR505": "a payload does not fit its model",
    "PR506": "a handler exceeded its time limit",
    "PR507": "the retry budget is spent",
    "PR508": "a body that must exist is missing from the log",
    "PR509": "the broker refuses an event for good",
    "PR510": "a delivery is older than what its consumer remembers",
    "PR511": "a delivery kills the process that starts it",
    "PR512": "the broker took a message out of its consumer's queue",
    "PR513": "a job is not known here",
    "PR514": "an effect's key was used with another request",
}
"""Every code and its meaning; ``docs/errors.md`` lists the same, and a test compares the two."""


class PostroadError(Exception):
    """Anything that Postroad raises: one line that says what, where and what to do, with a stable code.

    `code` is a key of `CODES`, `message` the line without it. The text never holds a payload.
    """

    def __init__(self, code: str, message: str) -> None:
        """Join `message` and `code` into the one line that a person reads."""
        if code not in CODES:
            unknown = f"unknown error code {code!r}"
            raise ValueError(unknown)
        self.code = code
        self.message = message
        super().__init__(f"{message} [{code}]")


class UsageError(PostroadError):
    """Yours: the call, declaration or setting must change before it can work."""


class SettingsError(UsageError):
    """Yours: settings are missing or not valid; every one of them is named."""


class SchemaError(UsageError):
    """Yours: the database schema is missing, too old, or too new for this release."""


class TopologyError(UsageError):
    """Yours: the broker's queues, exchanges or bindings differ from the declared ones."""


class Unavailable(PostroadError):
    """Theirs: a database or broker cannot be reached, or refuses; trying later may succeed."""


class AccessRefused(Unavailable):
    """Theirs: wrong password, or rights that are missing; a person must act."""


class Overloaded(PostroadError):
    """The moment's: a bound is reached, and nothing was taken; try later, or refuse in your turn."""


class LeaseLost(PostroadError):
    """The world's: another process may hold the name by now; stop at once, write nothing."""


class LeaseHeld(PostroadError):
    """The world's: another holds the name now, and did not give it up in the time that was given; try later."""


class ContractError(PostroadError):
    """The sender's: an envelope or payload that breaks its contract; it is quarantined."""
