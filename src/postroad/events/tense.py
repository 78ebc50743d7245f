"""Whether a word says that something has happened: the check of event names."""

from __future__ import annotations

import re
from typing import Final

_PARTICLES: Final = frozenset(
    {"away", "back", "by", "down", "in", "off", "on", "out", "over", "through", "up"},
)
_IRREGULAR_WORDS: Final = """
become begun bent bet bitten blown born bought bound bred broken brought built burnt burst cast caught chosen come
cut dealt done drawn driven eaten fallen fed felt fled flown forgiven forgotten found fought frozen given gone got
gotten ground grown heard held hidden hit hung hurt kept known laid learnt led left lent let lit lost made meant met
paid proven put quit read ridden risen run said seen sent set shed shipped shown shrunk shut sold sought sped spent
split spread spun stood stolen struck stuck swept sworn swung taken taught thrown told torn understood upset woken
won worn wound written
"""
_IRREGULAR: Final = frozenset(_IRREGULAR_WORDS.split())
_EED: Final = frozenset({"agreed", "decreed", "disagreed", "freed", "guaranteed", "refereed"})
_NOT_PAST: Final = frozenset(
    {"bed", "biped", "embed", "hundred", "infrared", "moped", "naked", "red", "sacred", "seabed", "shred", "sled"},
)
_PREFIX: Final = re.compile(r"(re|un|over|under|mis|out|fore|pre|with|up|off|by)(?=.{3})")
_SHORTEST: Final = 4


def is_past(name: str) -> bool:
    """Whether `name` (lower case; words joined by ``-`` or ``_``) ends in a past participle.

    ``departed``, ``payment-sent`` and ``checked_in`` do; ``depart``, ``need`` and ``check-in`` do not. Regular forms
    are told by their ending, irregular ones by a list; what neither knows needs ``past_tense=True``.
    """
    words = [word for word in re.split(r"[-_]", name) if word]
    if len(words) > 1 and words[-1] in _PARTICLES:
        words.pop()
    return bool(words) and _is_participle(words[-1])


def _is_participle(word: str) -> bool:
    if word in _NOT_PAST:
        return False
    if word in _IRREGULAR or _PREFIX.sub("", word, count=1) in _IRREGULAR:
        return True
    if word.endswith("eed"):
        return word in _EED
    return word.endswith("ed") and len(word) >= _SHORTEST
