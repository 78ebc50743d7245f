"""The garbage collector of a process that runs an App: it looks less often, and never at what stands at the start."""

from __future__ import annotations

import subprocess
import sys

import pytest


def after(before: str) -> list[str]:
    """Whether it collects, how often it looks at the young, and whether something is frozen."""
    text = (
        f"import gc\n{before}\nfrom postroad.runtime.serve import spare_collections\nspare_collections()\n"
        "print(gc.isenabled(), gc.get_threshold()[0], gc.get_freeze_count() > 1000)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("", ["True", "10000", "True"]),
        ("gc.disable()", ["False", "10000", "True"]),
        ("gc.set_threshold(50_000)", ["True", "50000", "True"]),
        ("gc.set_threshold(0)", ["True", "0", "True"]),
    ],
    ids=["as it is", "switched off", "seldom", "never"],
)
def test_it_looks_less_often_unless_the_author_has_set_it_so(before, found):
    assert after(before) == found
