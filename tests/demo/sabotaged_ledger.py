"""The demo's consumer service with the ledger switched off: each attempt calls the provider."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from postroad.demo.notices import NoticeCompany
from postroad.demo.punctuality import app
from postroad.effects import Done, Effect, EffectAttempt


async def straight(self: Effect[Any], command: Any, run: Any) -> Done:
    """Call the owner, whatever was called before."""
    attempt = EffectAttempt(
        effect=self.name, key=self.key(command), provider_key="", number=1, sent_at=datetime.now(UTC)
    )  # fmt: skip
    async with asyncio.timeout(self.timeout.total_seconds()):
        return await run.use(NoticeCompany).perform(command, attempt)


Effect.once = straight  # type: ignore[method-assign]

__all__ = ["app"]
