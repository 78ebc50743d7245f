"""Tests of what is checked when a job is declared."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from postroad.errors import UsageError
from postroad.work import run as runs  # noqa: TC001 - its annotations are resolved
from postroad.work.job import job, job_of

if TYPE_CHECKING:
    from collections.abc import Callable

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
        ({"name": 3}, "the name 3 is not lower-case"),
        ({"name": "a", "retry": 5}, r"retry is not a Backoff; write Backoff\("),
        ({"name": "a", "rules": {}}, "rules is not a Rules; write"),
        ({"name": "a", "max_runtime": 30}, r"max_runtime is not a duration; write seconds\(30\)"),
        ({"name": "a", "concurrency": True}, "concurrency is not a whole number"),
        ({"name": "a", "concurrency": None}, "concurrency is not a whole number"),
        ({"name": "a", "fleet": 2.0}, "fleet is not a whole number"),
        ({"name": "a", "max_bytes": "1k"}, "max_bytes is not a whole number"),
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


def test_a_job_without_a_name_is_told_how_to_write_it() -> None:
    with pytest.raises(UsageError, match=r"write @job\('render'\) \[PR101\]"):
        job(render)  # type: ignore[arg-type]


def test_the_run_of_the_other_kind_of_function_is_refused() -> None:
    async def on_a_loop(report: Report, run: runs.BlockingRun) -> None: ...

    async def on_a_loop_of(report: Report, run: runs.BlockingRun[Any]) -> None: ...

    def on_a_thread(report: Report, run: runs.Run) -> None: ...

    async def fitting(report: Report, run: runs.Run[Any]) -> None: ...

    def fitting_thread(report: Report, run: runs.BlockingRun) -> None: ...

    cases: list[tuple[Callable[..., Any], str]] = [
        (on_a_loop, "'run' is annotated as BlockingRun, but an `async def` job gets a Run"),
        (on_a_loop_of, "an `async def` job gets a Run"),
        (on_a_thread, "'run' is annotated as Run, but a `def` job gets a BlockingRun"),
    ]
    for function, said in cases:
        with pytest.raises(UsageError, match=said):
            job("a")(function)
    job("a")(fitting)
    job("a")(fitting_thread)


def test_what_is_no_job_is_told_so() -> None:
    with pytest.raises(UsageError, match="decorate it with @job"):
        job_of(test_what_is_no_job_is_told_so)
