"""Fixtures of the benchmark's tests: its modules importable, its generator built, a small broker to aim at."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# At the end: `harness` is what the tests want from there, nothing in that folder may shadow anything.
sys.path.append(str(ROOT / "benchmarks"))
sys.path.append(str(Path(__file__).resolve().parent))

from stand_in import StandIn  # noqa: E402


@pytest.fixture(scope="session")
def generator() -> Path:
    """The load generator's binary, built when cargo is there."""
    if shutil.which("cargo") is None:
        pytest.skip("needs cargo to build the load generator")
    from harness import load

    return load.build()


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """A broker of the tests' own on a free port."""
    with StandIn() as broker:
        yield broker
