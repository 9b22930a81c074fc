"""Faults come from the seed alone, every kind of them, and each where it can be: full disks only on small ones."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from lab.schedule import DECK, KINDS, OWN_SORTS, STRETCH_FAULTS, Sort, plan

ALL = sum(DECK.values()) + len(OWN_SORTS)


def kinds(seed: int, rounds: int) -> list[str]:
    return [fault.kind for stretch in plan(seed, rounds) for fault in stretch.faults]


def test_a_seed_gives_one_plan_and_another_seed_another() -> None:
    assert plan(1, 50) == plan(1, 50)
    assert plan(1, 50) != plan(2, 50)


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    assert kinds(3, 2 * ALL)[:ALL] == kinds(3, ALL)


def test_one_deck_has_every_kind_as_often_as_it_says() -> None:
    assert Counter(kinds(5, ALL)) == Counter({**DECK, **dict.fromkeys(OWN_SORTS, 1)})


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("wanted", [KINDS, KINDS[3:], ["transfer", "full-leader", "kill-all"]])
def test_every_kind_comes_once_before_one_comes_again(seed: int, wanted: Sequence[str]) -> None:
    found = [fault.kind for stretch in plan(seed, len(wanted), wanted) for fault in stretch.faults]
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("seed", range(20))
def test_stretches_are_short_and_of_one_sort(seed: int) -> None:
    stretches = plan(seed, 3 * ALL)
    for stretch in stretches:
        assert 1 <= len(stretch.faults) <= STRETCH_FAULTS[stretch.sort]
        assert all(OWN_SORTS.get(fault.kind, Sort.PLAIN) is stretch.sort for fault in stretch.faults)
    for one, other in pairwise(stretches):
        assert one.sort is not other.sort or len(one.faults) == STRETCH_FAULTS[one.sort]
    assert sum(len(stretch.faults) for stretch in stretches) == 3 * ALL


def test_only_what_is_wanted_comes() -> None:
    wanted = ["transfer", "full-leader"]
    found = [fault.kind for stretch in plan(1, 9, wanted) for fault in stretch.faults]
    assert set(found) == set(wanted) and len(found) == 9


def test_impossible_requests_are_reported() -> None:
    with pytest.raises(ValueError, match="unknown kind of fault: earthquake"):
        plan(1, 5, ["transfer", "earthquake"])
    with pytest.raises(ValueError, match="all kinds"):
        plan(1, 5, [])
    assert "transfer" in KINDS
