"""Whole clusters under everything that can happen, from seeds; mistakes planted in the operator have to be found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from operator_storm import run

from tallystick.operator.backups import carry_out
from tallystick.operator.clusters import broker_manifests, decide, layout, reading, stopping, writing
from tallystick.operator.core import kube
from tallystick.operator.schedules import decide as schedules_decide

pytestmark = pytest.mark.simulation

SEEDS = range(100, 104)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_comes_through(seed: int) -> None:
    run(seed, turns=40)


def test_two_groups_come_through() -> None:
    run(200, turns=30, groups=2)


@pytest.mark.parametrize("seed", (0, 1, 2, 3, 9))
def test_a_hostile_world_is_survived_and_nothing_of_others_changes(seed: int) -> None:
    run(seed, turns=40, groups=1 + (seed % 5 == 0), hostile=True)


@pytest.mark.parametrize("seed", (1, 13, 25, 27, 7100110))
def test_backups_end_while_everything_happens_to_their_cluster(seed: int) -> None:
    run(seed, turns=40, hostile=True, backups=True)


@pytest.mark.parametrize("seed", (7, 11))
def test_schedules_of_backups_come_through(seed: int) -> None:
    """Each time gets one Backup, one runs at a time, and none is deleted that is needed or that others made."""
    run(seed, turns=25, hostile=True, schedules=True)


async def no_deletion(hands: Any, backup: Any, seen: Any, kept: set[str]) -> bool:
    return False


def test_jobs_of_backups_that_are_kept_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry_out.Hands, "delete_jobs", no_deletion)
    with pytest.raises(AssertionError, match=r"two attempts|left after"):
        for seed in range(10):
            run(seed, turns=25, hostile=True, backups=True)


@pytest.mark.parametrize("seed", range(5))
def test_an_adoption_comes_through(seed: int) -> None:
    """Each group takes the place of its master once, whatever happens meanwhile, and never beside it."""
    favour = ("give_up_node", "crash", "cut_off")
    run(seed, turns=30, groups=1 + seed % 2, favour=favour, hostile=seed > 2, adopts=True)


@pytest.mark.parametrize("seed", range(4))
def test_a_recovery_comes_through(seed: int) -> None:
    """It starts from backups, whatever happens meanwhile."""
    favour = ("delete_claim", "give_up_node", "crash", "cut_off")
    run(seed, turns=30, groups=1 + seed % 2, favour=favour, hostile=seed > 1, recovers=True)


@pytest.mark.parametrize("seed", (0, 1, 2))
def test_other_volumes_come_through(seed: int) -> None:
    """Volumes of other classes and sizes are wanted again and again, whatever happens meanwhile."""
    run(seed, turns=30, groups=1 + seed % 2, favour=("change_volumes", "crash", "scale"), hostile=seed > 1)


@pytest.mark.parametrize("seed", range(4))
def test_changes_of_security_come_through(seed: int) -> None:
    """Processes accept each other at each time, whatever happens meanwhile."""
    favour = ("change_security", "rotate_authority", "rotate_authority", "delete_certificate", "cut_off", "crash")
    run(seed, turns=30, replicas=3, favour=favour, hostile=seed > 1)


def test_a_run_is_replayed_by_its_seed() -> None:
    one, other = run(3, turns=10), run(3, turns=10)
    assert one.cluster.api.writes == other.cluster.api.writes
    assert one.log == other.log


def always_sound(group: Any, number: int) -> str:
    return ""


def never_formed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Every new disk is told that its group is new."""

    def stateful_set(cluster: Any, plan: Any, node_uid: str, replicas: int = 1) -> Any:
        changed = broker_manifests.MemberPlan(plan.group, plan.member, False, plan.first, plan.external)
        return original(cluster, changed, node_uid, replicas)

    return stateful_set


def hasty_removal(observed: Any, wanted: Any, group: Any, step: Any) -> Any:
    return step


def hasty_deletions(observed: Any, wanted: Any, group: Any) -> Any:
    for member in group.members:
        if member.number >= wanted.replicas and member.node_uid is not None:
            yield decide.Step(decide.Action.DELETE, group.number, member.number, "Planted", "planted", member.node_uid)


def everybody_is_placed(group: Any, replicas: int) -> tuple[int, ...]:
    return tuple(range(replicas))


def anybody(body: Any, uids: Any) -> bool:
    """Labels are enough to own an object."""
    return True


def anyones(live: Any, wanted: Any) -> bool:
    return True


def without_version(live: Any) -> Any:
    """An object is changed whatever others have made of it meanwhile."""
    return {}


MISTAKES: dict[str, tuple[Any, str, Any, dict[str, Any]]] = {
    "the quorum is not asked": (decide, "without", always_sound, {}),
    "others that are away do not count": (
        *(decide, "_other_unready", lambda group, member: ""),
        {"replicas": 5, "favour": ("new_image", "crash")},
    ),
    "a stopped leader hands over by itself": (decide, "_moved", lambda wanted, group, member, step: step, {}),
    "what is in progress elsewhere does not count": (
        *(decide, "_underway_elsewhere", lambda observed, member: ""),
        {"groups": 2, "favour": ("new_image", "crash")},
    ),
    "a member leaves without a majority": (
        *(decide, "_removal", hasty_removal),
        {"replicas": 5, "favour": ("scale", "lose_machine", "cut_wire")},
    ),
    "a node goes before its member has left": (decide, "_deletions", hasty_deletions, {"favour": ("scale",)}),
    "a formed group is bootstrapped again": (
        *(broker_manifests, "stateful_set", never_formed(broker_manifests.stateful_set)),
        {"favour": ("delete_claim", "give_up_node")},
    ),
    "members that were not let go are forgotten": (
        *(layout, "placed", everybody_is_placed),
        {"replicas": 5, "favour": ("scale", "meddle")},
    ),
}

MISTAKES |= {
    "name servers hibernate together with the brokers": (
        *(layout, "name_server_replicas", lambda cluster, observed: 0 if cluster.hibernating else 2),
        {"favour": ("hibernate",)},
    ),
    "a member that no annotation names is stopped": (
        *(layout, "stop_of", lambda cluster, group, member: stopping.Stop.FENCED if cluster.fenced else None),
        {"favour": ("fence",)},
    ),
    "a schedule does not wait for its last Backup": (
        *(schedules_decide, "_obstacle", lambda schedule, seen, name: None),
        {"schedules": True},
    ),
    "an object with the right name is ours": (writing, "belongs", anyones, {"hostile": True}),
    "an object with our labels is ours": (reading, "owned", anybody, {"hostile": True}),
    "writes name no version": (kube, "_version_of", without_version, {"hostile": True}),
}

FINDS = {
    "the quorum is not asked": 3,
    "others that are away do not count": 10,
    "a member leaves without a majority": 1,
    "a node goes before its member has left": 2,
    "members that were not let go are forgotten": 4,
    "writes name no version": 14,
}
"""The seed to begin with, if it is not 0: those before it find nothing."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, wrong, conditions = MISTAKES[mistake]
    monkeypatch.setattr(place, name, wrong)
    with pytest.raises(AssertionError):
        first = FINDS.get(mistake, 0)
        for seed in range(first, first + 14):
            run(seed, turns=30, **conditions)


def test_the_storm_does_every_kind_of_step() -> None:
    """Else it proves nothing about the ones that are left out. Adoptions have storms apart."""
    wanted = {action.value for action in decide.Action} - {
        "RehearseSwitch",
        "SwitchGroup",
        "TakeBackFence",
        "VerifyGroup",
    }
    done: set[str] = set()
    for seed in range(20):
        storm = run(seed, turns=30, replicas=3, favour=("lose_machine", "scale"))
        samples = next(iter(storm.cluster.metrics.steps.collect())).samples
        done |= {each.labels["action"] for each in samples if each.name.endswith("_total") and each.value}
        if done == wanted:
            return
    assert done == wanted
