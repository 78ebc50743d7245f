"""One call of an owner's method within its time limit, ``async def`` or ``def``; what it raises becomes a word."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from postroad.foreign import type_name

if TYPE_CHECKING:
    from postroad.owner import Slots


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call came to: a `value`, or why there is none, without any text of the provider's."""

    value: Any = None
    failed: str = ""
    overtime: bool = False


async def ask(method: Callable[..., Any], command: Any, attempt: Any, *, limit: float, slots: Slots) -> Answer:
    """Call `method`; a ``def`` runs on one of `slots`, where it may go on after its time.

    Our own cancellation comes out; whatever else the method raises is an answer without a value.
    """
    timer = asyncio.timeout(limit)
    try:
        async with timer:
            if inspect.iscoroutinefunction(method):
                return Answer(await method(command, attempt))
            async with slots.take() as slot:
                return Answer(await slot.call(partial(method, command, attempt)))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return Answer(failed=type_name(error))
    except Exception as error:  # noqa: BLE001 - the border around the author's owner
        return Answer(failed=type_name(error), overtime=timer.expired())
