"""Random histories: the simulator's seeds run our core, under its oracle; what they did to it is told to raftos.

How often raftos breaks a rule depends on the seeds, and so on the simulator; that it does, does not. So a test names
the rules that its kind of history has to show, and the table counts.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from hosting import evidence
from hosting.judge import RULES
from hosting.recording import KILLED, LATE, PARTED, History, record
from hosting.replay import replay

SEEDS = 30


PROFILES = {profile.name: profile for profile in (LATE, PARTED, KILLED)}


@cache
def histories(profile: str) -> list[History]:
    return [record(seed, PROFILES[profile]) for seed in range(SEEDS)]


class Kind:
    """Histories of one profile, and how raftos meets them."""

    def __init__(self, title: str, profile: str, *, doubles: bool = False, power_loss: bool = False) -> None:
        self.title = title
        self.profile = profile
        self.doubles = doubles
        self.power_loss = power_loss
        self.broken: Counter[str] = Counter()
        self.broken_at_odd_sizes: Counter[str] = Counter()
        self.acknowledged = 0

    def count(self, rule: str) -> str:
        return f"{self.broken[rule]} ({self.broken_at_odd_sizes[rule]})"

    def run(self) -> None:
        for history in histories(self.profile):
            group = replay(history, doubles=self.doubles, power_loss=self.power_loss)
            self.broken.update(group.findings.keys())
            if history.size % 2:
                self.broken_at_odd_sizes.update(group.findings.keys())
            self.acknowledged += len(group.acknowledged)


KINDS = {
    "late": Kind("packets lost, late, doubled", "late", doubles=True),
    "parted": Kind("links cut, none doubled", "parted"),
    "killed": Kind("links cut, kill -9", "killed"),
    "power": Kind("links cut, power loss", "killed", power_loss=True),
}

SHOWN = {
    "late": {"S6, S7", "S8, S10", "L7"},
    "parted": {"S1", "S3, S10", "S6, S7", "S8, S10", "S11, L", "no exception"},
    "killed": {"S1", "S3, S10", "S6, S7", "S8, S10", "S11, L", "S12", "leader completeness", "no exception"},
    "power": {"S1", "D1", "S11, L", "acknowledged", "election safety", "leader completeness"},
}


@pytest.fixture(scope="module", autouse=True)
def table() -> object:
    """Once all have run."""
    yield
    kinds = list(KINDS.values())
    runs = [history for profile in PROFILES for history in histories(profile)]
    broken = str(sum(history.ours.violation is not None for history in runs))
    evidence.RANDOM.append(
        (
            "Rule",
            f"Of {SEEDS} random histories each (of these with 3 or 5 members)",
            *(kind.title for kind in kinds),
            "ours",
        )
    )
    for rule, what in RULES.items():
        evidence.RANDOM.append((rule, what, *(kind.count(rule) for kind in kinds), broken))
    acknowledged = [str(sum(each.acknowledged for each in histories(kind.profile))) for kind in kinds]
    evidence.RANDOM.append(("", "values acknowledged by raftos", *(str(kind.acknowledged) for kind in kinds), ""))
    evidence.RANDOM.append(("", "values acknowledged by ours", *acknowledged, ""))


@pytest.mark.parametrize("profile", PROFILES)
def test_our_core_keeps_all_rules(profile: str) -> None:
    """All that the simulator's oracle knows of, and agreement in the end; a crash takes what it had not synced."""
    assert [history.ours.violation for history in histories(profile) if history.ours.violation] == []
    assert all(history.acknowledged and history.events for history in histories(profile))


@pytest.mark.parametrize("name", KINDS)
def test_raftos_breaks(name: str) -> None:
    kind = KINDS[name]
    kind.run()
    assert SHOWN[name] - set(kind.broken) == set()
