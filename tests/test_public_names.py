"""The package root: public names come from their rooms when they are first used."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import postroad


@pytest.mark.parametrize("name", postroad.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(postroad, name) is not None
    assert name in dir(postroad)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = postroad.Nonsense


def test_a_missing_extra_is_one_line_that_names_it():
    code = """
import json, sys
sys.modules["pika"] = sys.modules["asyncpg"] = None
import postroad
from postroad import Producer, Subscription, Keep, Sensitive, Backoff, Rules, Drop, Executor, seconds
try:
    postroad.App
except Exception as error:
    print(json.dumps([type(error).__name__, getattr(error, "code", ""), str(error)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    kind, error_code, text = json.loads(done.stdout)
    assert (kind, error_code) == ("UsageError", "PR108")
    assert text.startswith("postroad.App needs ")
    assert "pip install 'postroad[run]'" in text
    assert "\n" not in text


def test_a_fault_inside_a_room_comes_out_as_it_is():
    code = """
import sys
sys.modules["postroad.retry"] = None
import postroad
try:
    postroad.Backoff
except ModuleNotFoundError as error:
    print(error.name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "postroad.retry"
