"""The budget of connections' memory: nothing is cut below the limit, and above it the largest go first."""

from __future__ import annotations

import gc
import random
import weakref
from pathlib import Path

from tallystick.store.memory_budget import MIN_LIMIT, MemoryBudget, default_limit


class Holder:
    """Counts how often it was cut."""

    def __init__(self) -> None:
        self.cuts = 0

    def cut(self) -> None:
        self.cuts += 1


def test_no_connection_is_cut_up_to_the_limit() -> None:
    budget = MemoryBudget(1000)
    holders = [Holder() for _ in range(10)]
    for holder in holders:
        budget.charge(holder, 100)
    assert budget.used == 1000 and budget.cut_count == 0
    budget.charge(holders[0], 50)
    budget.charge(holders[1], 150)
    assert [holder.cuts for holder in holders] == [0] * 10


def test_above_the_limit_the_largest_connection_is_cut() -> None:
    budget = MemoryBudget(1000)
    small, large, newest = Holder(), Holder(), Holder()
    budget.charge(small, 100)
    budget.charge(large, 850)
    budget.charge(newest, 60)
    assert (small.cuts, large.cuts, newest.cuts) == (0, 1, 0)
    assert budget.used == 160


def test_links_that_are_kept_are_counted_and_cut_last() -> None:
    budget = MemoryBudget(1000)
    member, client = Holder(), Holder()
    budget.charge(member, 900, keep=True)
    budget.charge(client, 200)
    assert (member.cuts, client.cuts, budget.used) == (0, 1, 900)
    budget.charge(member, 1100, keep=True)
    assert (member.cuts, budget.used) == (1, 0)


def test_what_a_holder_charges_while_it_is_cut_is_not_counted() -> None:
    """A connection that is closed may have to send or to receive a last time."""
    budget = MemoryBudget(1000)

    class Talkative(Holder):
        def cut(self) -> None:
            super().cut()
            budget.charge(self, 300)

    holder = Talkative()
    budget.charge(holder, 1001)
    assert (holder.cuts, budget.used) == (1, 0)
    budget.charge(Holder(), 1000)
    assert holder.cuts == 1


def test_a_holder_that_holds_nothing_is_forgotten() -> None:
    """Connections come and go for months."""
    budget = MemoryBudget(1000)
    for keep in (False, True):
        holder = Holder()
        budget.charge(holder, 500, keep=keep)
        budget.charge(holder, 0, keep=keep)
        gone = weakref.ref(holder)
        del holder
        gc.collect()
        assert gone() is None


def test_any_order_of_charges_keeps_the_sum_and_the_limit() -> None:
    dice = random.Random(7)
    budget = MemoryBudget(100_000)
    held: dict[Holder, int] = {}

    class Tracked(Holder):
        def cut(self) -> None:
            super().cut()
            largest = max(held.values())
            assert held[self] * 2 > largest // 2, "the largest, to within a factor of two"
            del held[self]
            budget.charge(self, 0)  # as a connection does when it is lost

    holders = [Tracked() for _ in range(50)]
    for _ in range(20_000):
        holder = dice.choice(holders)
        size = dice.choice((0, dice.randrange(1, 100), dice.randrange(1, 20_000)))
        if size:
            held[holder] = size
        else:
            held.pop(holder, None)
        budget.charge(holder, size)
        assert budget.used == sum(held.values()) <= budget.limit
    assert budget.cut_count > 100


def test_the_default_is_a_quarter_of_the_smallest_limit(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    groups = tmp_path / "fs"
    (groups / "a/b").mkdir(parents=True)
    (groups / "memory/x").mkdir(parents=True)
    own.write_text("4:memory:/x\n0::/a/b\n")
    physical = default_limit(tmp_path / "none", tmp_path / "none")
    assert physical > MIN_LIMIT and default_limit(groups, own) == physical  # no limit is set anywhere
    (groups / "a/b/memory.max").write_text("max\n")
    (groups / "a/memory.max").write_text(f"{1 << 30}\n")
    assert default_limit(groups, own) == 1 << 28
    (groups / "memory/x/memory.limit_in_bytes").write_text(f"{1 << 29}\n")
    assert default_limit(groups, own) == 1 << 27
    (groups / "memory/memory.limit_in_bytes").write_text("1000\n")
    assert default_limit(groups, own) == MIN_LIMIT
