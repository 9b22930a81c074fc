"""The product's promises, over all that the run has measured; the table at its end has the figures."""

from __future__ import annotations

import pytest
from harness.goals import Goals
from harness.lab import Lab

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("goal", list(Goals.__dataclass_fields__))
def test_a_goal(lab: Lab, goal: str) -> None:
    """Skipped if the run had nothing that measures it."""
    if goal == "operator_memory":
        lab.goals.operator_memory.add(*(peak / (1 << 20) for peak in lab.release.peak_bytes.values()))
    found = getattr(lab.goals, goal)
    if not found.samples:
        pytest.skip("not measured in this run")
    assert found.met, found.row()
