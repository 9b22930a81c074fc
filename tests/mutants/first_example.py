"""A pytest plugin for tried bugs: they are to fail soon.

Hypothesis stops at the first example that fails instead of looking for a smaller one: that a test fails is all that is
wanted here, and shrinking takes minutes. Its profile is loaded before each test module is imported, because
`conftest.py` loads its own before that.

A test that takes longer than `TEST_LIMIT_S` hangs: the slowest ones take some seconds. The process ends then. On a
busy machine the runner sets a longer limit.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

TEST_LIMIT_S = 30.0
TEST_LIMIT = "MUTANTS_TEST_LIMIT_S"
"""The variable of the environment with the limit in seconds on a machine that does other work."""
HANGS = 70
"""Exit code of a test run that was ended because of one test."""

settings.register_profile("mutants", deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))


def pytest_pycollect_makemodule() -> None:
    settings.load_profile("mutants")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    timer = threading.Timer(float(os.environ.get(TEST_LIMIT, TEST_LIMIT_S)), _hangs, (item.nodeid,))
    timer.daemon = True
    timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()


def _hangs(name: str) -> None:
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"\nHANGS {name}\n".encode())
    os._exit(HANGS)
