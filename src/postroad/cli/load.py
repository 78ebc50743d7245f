"""Finds the App that a command is about."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from postroad.errors import PostroadError, UsageError
from postroad.runtime.executor import safe_reason

if TYPE_CHECKING:
    from postroad.runtime.app import App

_REFERENCE: Final = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
HELP: Final = "Where the App is: `package.module:name`, importable from here."


def load(reference: str) -> App:
    """Import ``package.module:name``, with the current directory on the path, as ``python -m`` has it.

    Raises:
        UsageError: it is not such a reference, cannot be imported, or is no App. A declaration's own error comes
            out as it is.
    """
    from postroad.runtime.app import App

    match = _REFERENCE.fullmatch(reference)
    if match is None or match[1].endswith(".py"):
        raise UsageError("PR107", f"{reference!r} does not name an App; write {_likely(reference)}")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    found = getattr(_imported(match[1]), match[2], None)
    if not isinstance(found, App):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        raise UsageError("PR107", f"{reference!r} is {kind}, not an App; write package.module:name of the App")
    return found


def _likely(reference: str) -> str:
    """What was most likely meant: a file's name for its module, or a module without the App's name."""
    module, _, name = reference.partition(":")
    meant = f"{module.removesuffix('.py').replace('/', '.')}:{name or 'app'}"
    return f"{meant!r}" if _REFERENCE.fullmatch(meant) else "package.module:name"


def _imported(name: str) -> object:
    try:
        return importlib.import_module(name)
    except PostroadError:
        raise
    except ModuleNotFoundError as error:
        raise UsageError("PR107", f"module {name!r} cannot be imported: there is no {error.name!r} here") from error
    except SyntaxError as error:
        place = f"{Path(error.filename or '').name}:{error.lineno}"
        raise UsageError("PR107", f"module {name!r} cannot be imported: {type(error).__name__} in {place}") from error
    except Exception as error:
        text = f"module {name!r} cannot be imported: {type(error).__name__} {safe_reason(error)}"
        raise UsageError("PR107", text) from error
