"""Where an error came from, as its author would look for it."""

from __future__ import annotations

import asyncio
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

_OURS: Final = str(Path(__file__).parent) + "/"
_PYTHONS: Final = str(Path(asyncio.__file__).parent.parent) + "/"
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")


def place(error: BaseException, *, outer: BaseException | None = None) -> str:
    """Function, file and line of the innermost frame of the author's code; never a value.

    Neither Python's own code is his, nor what is installed, nor ours. Where `error` did not pass his code, the one
    that it was raised as (`outer`) tells; where nothing did, it is the innermost frame of all.
    """
    for told in (error, outer):
        frames = [] if told is None else [frame for frame in _frames(told.__traceback__) if _is_authors(frame)]
        if frames:
            return _shown(frames[-1])
    frames = _frames(error.__traceback__)
    return _shown(frames[-1]) if frames else "unknown place"


def _frames(trace: TracebackType | None) -> list[TracebackType]:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    return frames


def _is_authors(trace: TracebackType) -> bool:
    path = trace.tb_frame.f_code.co_filename.replace("\\", "/")
    if path.startswith(("<", _OURS, _PYTHONS)) or path.endswith(".pyx"):
        return False
    return not any(part in path for part in _INSTALLED)


def _shown(trace: TracebackType) -> str:
    code = trace.tb_frame.f_code
    return f"{code.co_qualname} ({PurePath(code.co_filename).name}:{trace.tb_lineno})"
