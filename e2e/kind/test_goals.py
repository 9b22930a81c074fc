"""The product's promises, over all that the run has measured; the table at its end has the figures.

Times are judged in a whole run, on a machine that has nothing else to do. The part that is run for every change judges
what no other process's work can spoil; its table still says which times were missed.
"""

from __future__ import annotations

from typing import Any

import pytest
from harness.goals import Goals
from harness.lab import Lab

_TIMES = ("s", "ms")


def _marked(name: str) -> Any:
    is_time = getattr(Goals(), name).unit in _TIMES
    return pytest.param(name, marks=() if is_time else pytest.mark.ci)


@pytest.mark.parametrize("goal", [_marked(name) for name in Goals.__dataclass_fields__])
def test_a_goal(lab: Lab, goal: str) -> None:
    """Skipped if the run had nothing that measures it."""
    if goal == "operator_memory":
        lab.goals.operator_memory.add(*(peak / (1 << 20) for peak in lab.release.peak_bytes.values()))
    found = getattr(lab.goals, goal)
    if not found.samples:
        pytest.skip("not measured in this run")
    assert found.met, found.row()
