"""The jobs that an App declares, checked with the rest."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.errors import UsageError
from postroad.runtime.app import App
from postroad.work.job import job


@job("a.job")
async def one(request: int, run: Any) -> None: ...


@job("a.job")
async def another(request: int, run: Any) -> None: ...


def plain(request: int, run: Any) -> None: ...


def test_an_app_knows_its_jobs() -> None:
    assert [found.name for found in App("a", jobs=[one]).declarations.jobs] == ["a.job"]


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([one, another], r"job 'a\.job' is declared twice; rename one \[PR104\]"),
        ([one, one], r"declared twice.*PR104"),
        ([plain], r"plain is not a job; decorate it with @job\(name\) \[PR101\]"),
        (one, r"jobs is function, not a list of functions decorated with @job \[PR101\]"),
    ],
)
def test_jobs_that_cannot_stand_together_are_refused(jobs: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        App("a", jobs=jobs)
