"""Random topics, groups, drift, and crashes between any two writes: every promise holds, all ends as declared."""

import pytest
from hypothesis import HealthCheck, settings
from topics_model import TopicsAreKept, play

TestTopicsAreKept = TopicsAreKept.TestCase
TestTopicsAreKept.settings = settings(max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck))


@pytest.mark.simulation
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_stories_from_seeds(first: int) -> None:
    for seed in range(first, first + 100):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
