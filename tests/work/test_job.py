"""Tests of what is checked when a job is declared."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from postroad.errors import UsageError
from postroad.work.job import job, job_of

if TYPE_CHECKING:
    from somewhere import Run  # type: ignore[import-not-found]


class Report(BaseModel):
    """What to render."""

    day: str


@job("reports.render")
async def render(report: Report, run: Run) -> None:
    """Render one report."""


def test_a_job_reads_its_request_by_its_first_annotation_and_stands_in_a_queue_of_its_name() -> None:
    declared = job_of(render)
    assert (declared.name, declared.queue, declared.threaded) == ("reports.render", "reports.render", False)
    assert declared.adapter.validate_json('{"day": "x"}') == Report(day="x")


def test_a_def_function_is_a_job_that_runs_on_a_thread() -> None:
    @job("plain", queue="slow")
    def plain(numbers: list[int], run: object) -> None: ...

    assert (job_of(plain).threaded, job_of(plain).queue) == (True, "slow")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "Reports"}, "the name 'Reports' is not lower-case"),
        ({"name": "a", "queue": "ä"}, "the queue 'ä' is not"),
        ({"name": "a", "max_runtime": timedelta(0)}, "max_runtime is above zero"),
        ({"name": "a", "fleet": 0}, "at least 1"),
        ({"name": "a", "concurrency": 0}, "at least 1"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        job(**options)(render)


def test_a_function_of_another_shape_is_refused() -> None:
    async def bare(report, run): ...  # type: ignore[no-untyped-def]

    async def one(report: Report) -> None: ...

    async def many(report: Report, run: object) -> Any:
        yield

    async def dark(report: Nothing, run: object) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function, said in [
        (bare, "'report' has no annotation"),
        (one, "takes two arguments"),
        (many, "or it yields"),
        (dark, "cannot be read"),
    ]:
        with pytest.raises(UsageError, match=said):
            job("a")(function)


def test_what_is_no_job_is_told_so() -> None:
    with pytest.raises(UsageError, match="decorate it with @job"):
        job_of(test_what_is_no_job_is_told_so)
