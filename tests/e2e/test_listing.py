"""Two answers to a query by key are the same when they name the same messages, as far as the limit lets them."""

from __future__ import annotations

import pytest
from lab.listing import same_positions


@pytest.mark.parametrize(
    ("theirs", "ours", "same"),
    [
        ([9, 7, 5], [9, 7, 5], True),
        ([9, 7, 7, 5], [9, 7, 5], True),  # one message twice, below the limit
        ([9, 7, 7, 5], [9, 7, 5, 3], True),  # the limit ends the answer before 3
        ([9, 7, 5, 3], [9, 7, 7, 5], True),
        ([9, 7, 5], [9, 7, 5, 3], False),  # nothing but a lost entry explains the shorter answer
        ([9, 7, 5, 3], [9, 7, 5], False),
        ([9, 7, 7, 5], [9, 7, 4, 3], False),
        ([9, 8, 5, 3], [9, 7, 5, 3], False),
        ([], [9], False),
        ([], [], True),
    ],
)
def test_answers_are_compared_as_far_as_the_limit_lets_them(theirs: list[int], ours: list[int], same: bool) -> None:
    assert same_positions(theirs, ours, limit=4) is same
