"""Which step is next, as a table: a group as it was seen, in one line, and what is decided about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallystick.operator.clusters.adoption_source import AdoptSpec
from tallystick.operator.clusters.decide import Action, Hold, Step, Wanted, decide
from tallystick.operator.clusters.observed import (
    AdoptionRow,
    Answer,
    Claim,
    Copy,
    Group,
    Member,
    NameServers,
    Observed,
    Peer,
    Underway,
)
from tallystick.operator.clusters.status import next_underway
from tallystick.operator.clusters.stopping import Stop
from tallystick.operator.core.names import Names
from tallystick.operator.core.pods import Pod

NOW = 10_000.0
SERVERS = NameServers(wanted=2, ready=2, updated=2, current=True)


def member(number: int, *words: str, group: int = 0) -> Member:
    """`old`: outdated; `unready`, `stopped` (no container), `silent`, `going` (its pod), `unscheduled`; `replace`..."""
    ready = not {"unready", "stopped", "going"} & set(words)
    pod = Pod(
        uid=f"pod-{group}-{number}",
        template="old" if "old" in words else "new",
        ready=ready,
        created=0.0,
        started=1.0,
        unready_since=None if ready else NOW - (1000.0 if "long" in words else 10.0),
        deleting_since=NOW - (1000.0 if "long" in words else 0.0) if "going" in words else None,
        running="stopped" not in words,
        node_name="" if "unscheduled" in words else "machine-1",
    )
    claim = Claim(uid=f"claim-{number}", formed=True, lost="lost" in words, deleting="unclaimed" in words)
    if "renewed" in words:
        claim = replace(claim, created=50.0)
    answer = None if {"silent", "stopped", "gone"} & set(words) else Answer("follower", 5, None, ready=False)
    return Member(
        group=group,
        number=number,
        node_uid=f"node-{number}",
        replace="replace" in words,
        claim=None if "diskless" in words else claim,
        stateful_set="old" if "unapplied" in words else "new",
        pod=None if "gone" in words else pod,
        answer=answer,
    )


def group(
    *members: Member,
    leader: int | None = 0,
    voters: tuple[int, ...] | None = None,
    learners: tuple[int, ...] = (),
    away: tuple[int, ...] = (),
    behind: tuple[int, ...] = (),
    settled: bool = True,
    number: int = 0,
) -> Group:
    """`away`: members that the leader does not hear; `behind`: those that lack much of its log."""
    numbers = tuple(each.number for each in members)
    voters = voters if voters is not None else tuple(each for each in numbers if each not in learners)
    peers = tuple(Peer(each, each not in away, 1 << 40 if each in behind else 0) for each in numbers if each != leader)
    says = Answer("leader", 5, leader, True, voters, learners, settled, commit_index=7, peers=peers)
    return Group(number, tuple(replace(each, answer=says) if each.number == leader else each for each in members))


def seen(*groups: Group, underway: Underway | None = None) -> Observed:
    return Observed(NOW, groups, SERVERS, underway)


def wanted(
    replicas: int = 3, groups: int = 1, paused: bool = False, fenced: tuple[int, ...] = (), asleep: bool = False
) -> Wanted:
    templates: dict[tuple[int, int], str | None] = {(g, m): "new" for g in range(groups) for m in range(5)}
    stops = {(0, number): Stop.FENCED for number in fenced}
    if asleep:
        stops = dict.fromkeys(templates, Stop.HIBERNATING)
    return Wanted(groups, replicas, templates, paused, stops)


def told(found: Step | Hold | None) -> str:
    if found is None:
        return "nothing"
    if isinstance(found, Hold):
        return f"hold {found.action.value} n{found.member}: {found.reason}"
    to = "" if found.to is None else f" to n{found.to}"
    return f"{found.action.value} n{found.member}{to}"


def decided(*groups: Group, replicas: int = 3, paused: bool = False, underway: Underway | None = None) -> str:
    decision = decide(seen(*groups, underway=underway), wanted(replicas, len(groups), paused))
    return told(decision.step or next(iter(decision.holds), None))


FINE = member(0), member(1), member(2)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # a rolling update: unready first, then followers, the leader last and after it has handed over
        (group(*FINE), "nothing"),
        (group(member(0, "old"), member(1, "old"), member(2, "old")), "RestartMember n1"),
        (group(member(0, "old"), member(1, "old"), member(2)), "RestartMember n1"),
        (group(member(0, "old"), member(1), member(2)), "MoveLeader n0 to n1"),
        (group(member(0, "old"), member(1), member(2), behind=(1,)), "hold RestartMember n0: QuorumAtRisk"),
        (group(member(0, "old"), member(1), member(2), leader=1), "RestartMember n0"),
        (group(member(0, "old"), member(1), member(2, "old", "unready")), "RestartMember n2"),
        # no member is restarted while another one of its group is down
        (group(member(0, "old"), member(1, "old"), member(2, "unready")), "hold RestartMember n1: MemberNotReady"),
        (group(member(0, "old"), member(1, "old"), member(2, "going")), "hold RestartMember n1: MemberNotReady"),
        # ready by Kubernetes' word is not enough
        (group(member(0, "old"), member(1, "old"), member(2), away=(2,)), "hold RestartMember n1: QuorumAtRisk"),
        (group(member(0, "old"), member(1, "old"), member(2), settled=False), "hold RestartMember n1: QuorumAtRisk"),
        (group(member(0, "old"), member(1, "old"), member(2), leader=None), "hold RestartMember n0: QuorumAtRisk"),
        # one that is not ready may still be needed, unless it takes no part
        (group(member(0), member(1, "unready"), member(2, "old", "unready")), "hold RestartMember n2: QuorumAtRisk"),
        (group(member(0), member(1, "unready"), member(2, "old", "stopped")), "RestartMember n2"),
        (group(member(0), member(1, "unready"), member(2, "old", "unready"), away=(2,)), "RestartMember n2"),
        # a group that is down for long has nothing to lose; one that elects has
        (group(*(member(n, "old", "unready", "long") for n in range(3)), leader=None), "RestartMember n0"),
        (group(*(member(n, "old", "unready") for n in range(3)), leader=None), "hold RestartMember n0: QuorumAtRisk"),
        (group(*(member(n, "old", "stopped") for n in range(3)), leader=None), "RestartMember n0"),
        # but not the disk that only its pod still keeps
        (
            group(*(member(n, "old", "unready", "long", "unclaimed") for n in range(3)), leader=None),
            "hold ReplaceNode n0: QuorumAtRisk",
        ),
        # what it would be restarted with has to be in place
        (group(member(0), member(1, "old", "unapplied"), member(2)), "hold RestartMember n1: TemplateNotApplied"),
        # stuck: silent for long with peers that are fine, and not otherwise
        (group(member(0), member(1), member(2, "unready", "silent", "long"), away=(2,)), "RestartMember n2"),
        (group(member(0), member(1), member(2, "unready", "silent"), away=(2,)), "nothing"),
        (group(member(0), member(1), member(2, "unready", "long")), "nothing"),
        (group(member(0), member(1, "unready"), member(2, "unready", "silent", "long")), "nothing"),
        # disks
        (group(member(0), member(1), member(2, "replace")), "ReplaceNode n2"),
        (group(member(0, "replace"), member(1), member(2)), "MoveLeader n0 to n1"),
        (group(member(0), member(1), member(2, "unclaimed")), "ReplaceNode n2"),
        (group(member(0), member(1), member(2, "unclaimed", "gone")), "nothing"),
        # a pod without a Kubernetes node does not use the claim, and waits for the next one
        (group(member(0), member(1), member(2, "unclaimed", "stopped", "unscheduled")), "nothing"),
        (group(member(0), member(1), member(2, "lost", "stopped")), "ReplaceNode n2"),
        (group(member(0), member(1), member(2, "renewed")), "ReplaceNode n2"),
        (group(member(0), member(1, "unready"), member(2, "replace")), "hold ReplaceNode n2: MemberNotReady"),
        (group(member(0), member(1), member(2, "replace"), away=(1,)), "hold ReplaceNode n2: QuorumAtRisk"),
        (group(member(0), member(1, "stopped"), member(2, "replace", "stopped")), "hold ReplaceNode n2: QuorumAtRisk"),
        (group(member(0), member(1, "stopped"), member(2, "lost", "stopped")), "ReplaceNode n2"),
        # machines that do not answer
        (group(member(0), member(1), member(2, "going", "silent", "long"), away=(2,)), "ForceDeletePod n2"),
        (group(member(0), member(1), member(2, "going", "silent", "long")), "nothing"),
        (group(member(0), member(1), member(2, "going", "silent"), away=(2,)), "nothing"),
        (group(member(0), member(1), member(2, "going", "long")), "nothing"),
        (group(*FINE[:2], member(2, "going", "silent", "long"), away=(1, 2)), "hold ForceDeletePod n2: QuorumAtRisk"),
        # members
        (group(*FINE, voters=(0, 1)), "AddMember n2"),
        (group(*FINE, voters=(0,)), "AddMember n1"),
        (group(member(0), member(1), member(2, "silent"), voters=(0, 1)), "nothing"),
        (group(*FINE, voters=(0, 1), learners=(2,)), "PromoteMember n2"),
        (group(*FINE, voters=(0,), learners=(2,)), "PromoteMember n2"),
        (group(*FINE, voters=(0, 1), learners=(2,), behind=(2,)), "hold PromoteMember n2: CatchingUp"),
        (group(*FINE, voters=(0, 1), settled=False), "nothing"),
    ],
)  # fmt: skip
def test_a_group_of_three(case: Group, expected: str) -> None:
    assert decided(case) == expected


FIVE = tuple(member(number) for number in range(5))


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (group(*FIVE), "RemoveMember n4"),
        (group(*FIVE, leader=4), "MoveLeader n4 to n0"),
        (group(*FIVE, voters=(0, 1, 2, 3)), "RemoveMember n3"),
        (group(*FIVE, voters=(0, 1, 2)), "DeleteNode n4"),
        (group(*FIVE, voters=(0, 1, 2), settled=False), "nothing"),
        (group(*FIVE, voters=(0, 1, 2), learners=(4,)), "RemoveMember n4"),
        (group(*FIVE, voters=(0, 1, 3, 4)), "AddMember n2"),
        (group(*FIVE, voters=(0, 1, 3, 4), learners=(2,), behind=(2,)), "hold PromoteMember n2: CatchingUp"),
        (group(*FIVE, away=(1, 2)), "hold RemoveMember n4: QuorumAtRisk"),
        (group(*FIVE, away=(1,)), "RemoveMember n4"),
        (group(member(0), member(1), member(2), voters=(0, 1, 2)), "nothing"),
    ],
)
def test_five_members_that_are_to_be_three(case: Group, expected: str) -> None:
    assert decided(case) == expected


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (group(member(0, "old")), "RestartMember n0"),
        (group(member(0, "replace")), "hold ReplaceNode n0: LastCopy"),
        (group(member(0, "unclaimed", "old")), "hold ReplaceNode n0: LastCopy"),
        (group(member(0), member(1), voters=(0, 1)), "RemoveMember n1"),
        (group(member(0), member(1), voters=(0, 1), leader=1), "MoveLeader n1 to n0"),
        (group(member(0), member(1), voters=(0, 1), away=(1,)), "RemoveMember n1"),
        (group(member(0), member(1), voters=(0,)), "DeleteNode n1"),
    ],
)
def test_a_group_of_one(case: Group, expected: str) -> None:
    assert decided(case, replicas=1) == expected


def emptied(who: Member) -> Member:
    """Its StatefulSet has no replicas, and its pod is gone."""
    return replace(who, stopped=True, pod=None, answer=None)


@pytest.mark.parametrize(
    ("case", "fenced", "expected"),
    [
        (group(*FINE), (1,), "StopMember n1"),
        (group(*FINE), (0,), "StopMember n0 to n1"),
        (group(*FINE), (0, 1), "StopMember n0 to n2"),
        (group(*FINE), (0, 1, 2), "StopMember n1"),
        (group(member(0), emptied(member(1)), member(2), away=(1,)), (0, 1, 2), "StopMember n2"),
        (group(member(0), emptied(member(1)), emptied(member(2)), away=(1, 2)), (0, 1, 2), "StopMember n0"),
        (group(*FINE, behind=(1,)), (0,), "StopMember n0 to n2"),
        (group(*FINE, away=(1, 2)), (0,), "StopMember n0"),
        (group(*FINE, leader=None), (2,), "StopMember n2"),
        (group(member(0), emptied(member(1)), member(2), away=(1,)), (1,), "nothing"),
        (
            group(member(0), emptied(member(1)), member(2, "old"), away=(1,)),
            (1,),
            "hold RestartMember n2: MemberNotReady",
        ),
        (group(member(0), emptied(member(1, "lost")), member(2), away=(1,)), (1,), "hold ReplaceNode n1: Stopped"),
    ],
)
def test_members_that_a_user_fenced(case: Group, fenced: tuple[int, ...], expected: str) -> None:
    decision = decide(seen(case), wanted(fenced=fenced))
    assert told(decision.step or next(iter(decision.holds), None)) == expected


def test_a_step_of_a_member_that_was_fenced_meanwhile_is_no_longer_under_way() -> None:
    first = group(member(0), emptied(member(1)), member(2), away=(1,))
    second = group(member(0, group=1), member(1, "old", group=1), member(2, group=1), number=1)
    step = Underway("RestartMember", "orders-0-1", "its pod is outdated", NOW - 30)
    assert told(decide(seen(first, second, underway=step), wanted(groups=2, fenced=(1,))).step) == "RestartMember n1"


def test_followers_hibernate_before_their_leader() -> None:
    assert told(decide(seen(group(*FINE)), wanted(asleep=True)).step) == "StopMember n1"
    held = decide(seen(group(*FINE)), wanted(asleep=True, paused=True))
    assert told(held.holds[0]) == "hold StopMember n1: Paused"


def test_a_pause_holds_back_what_would_be_done() -> None:
    case = group(member(0), member(1, "old"), member(2))
    assert decided(case, paused=True) == "hold RestartMember n1: Paused"


def test_one_step_in_a_cluster_at_a_time() -> None:
    """n1 of the first group was restarted and is not back: the second group waits, however sound it is."""
    first = group(member(0), member(1, "unready"), member(2))
    second = group(member(0, group=1), member(1, "old", group=1), member(2, group=1), number=1)
    step = Underway("RestartMember", "orders-0-1", "its pod is outdated", NOW - 30)
    assert decided(first, second, underway=step) == "hold RestartMember n1: StepUnderway"
    assert decided(group(*FINE), second, underway=step) == "RestartMember n1"
    assert decided(first, second) == "RestartMember n1", (
        "a member that is down must not stop the update of other groups"
    )


def test_the_same_stuck_member_is_given_longer_each_time() -> None:
    stuck = replace(member(2, "unready", "silent", "long"), stuck_restarts=1)
    assert decided(group(member(0), member(1), stuck, away=(2,))) == "RestartMember n2"
    assert decided(group(member(0), member(1), replace(stuck, stuck_restarts=2), away=(2,))) == "nothing"


def following(*words: str, number: int = 0, members: tuple[Member, ...] = FINE) -> Group:
    """A group that follows a master: `promoted`, `copying`, `fenced`."""
    state = next((word for word in words if word != "fenced"), "following")
    found = group(*(replace(each, group=number) for each in members), number=number)
    copy = Copy(state, master="10.0.0.1:10911", fenced="fenced" in words, lasting=state == "diverged")
    mine = tuple(replace(each, copy=copy if each.number == 0 else Copy("member")) for each in found.members)
    return replace(found, members=mine)


COMPARED = AdoptionRow(rehearsal="compared", compared=NOW - 100)
FAILED = replace(COMPARED, attempts=1, attempted=NOW - 59, error="switch: refused")
SWITCHED = AdoptionRow(rehearsal="compared", compared=NOW - 100, switched=NOW - 29)
DIFFERS = AdoptionRow(compared=NOW - 59, error="rehearsal: differs")
LATE = replace(SWITCHED, compared=NOW - 9, error="verification: late")
PAIR = following(), following(number=1)
SWITCHES = "SwitchGroup n0"
OLD = member(2, "old")


@pytest.mark.parametrize(
    ("groups", "rows", "automatic", "expected"),
    [
        # a rehearsal comes first, before a user permits the switch
        (PAIR[:1], (AdoptionRow(),), False, "RehearseSwitch n0"),
        (PAIR[:1], (AdoptionRow(),), True, "RehearseSwitch n0"),
        (PAIR[:1], (DIFFERS,), True, "nothing"),
        (PAIR[:1], (replace(DIFFERS, compared=NOW - 60),), True, "RehearseSwitch n0"),
        (PAIR[:1], (replace(COMPARED, compared=NOW - 600),), True, "RehearseSwitch n0"),
        (PAIR[:1], (replace(COMPARED, compared=NOW - 600),), False, "nothing"),
        # the switch
        (PAIR[:1], (COMPARED,), False, "nothing"),
        (PAIR[:1], (COMPARED,), True, "SwitchGroup n0"),
        ((following("copying"),), (COMPARED,), True, "nothing"),
        ((following("unreachable"),), (COMPARED,), True, "nothing"),
        ((following(members=(member(0), member(1), member(2, "unready"))),), (COMPARED,), True, "nothing"),
        ((following(members=(member(0), member(1), OLD)),), (COMPARED,), False, "RestartMember n2"),
        ((following(members=(member(0), member(1), member(2, "old", "unapplied"))),), (COMPARED,), True, "nothing"),
        # one group after the other
        (PAIR, (COMPARED, COMPARED), True, "SwitchGroup n0"),
        (PAIR, (COMPARED, AdoptionRow()), True, "RehearseSwitch n0"),
        ((following(), following("copying", number=1)), (COMPARED, COMPARED), True, "nothing"),
        ((following("promoted"), PAIR[1]), (replace(SWITCHED, verification="ok"), COMPARED), True, "nothing"),
        (
            (following("promoted"), PAIR[1]),
            (replace(SWITCHED, verification="ok", switched=NOW - 30), COMPARED),
            True,
            "SwitchGroup n0",
        ),
        # a switch that failed
        (PAIR[:1], (FAILED,), True, "nothing"),
        (PAIR[:1], (replace(FAILED, attempted=NOW - 60),), True, "SwitchGroup n0"),
        (PAIR[:1], (replace(FAILED, attempted=NOW - 119, attempts=2),), True, "nothing"),
        (PAIR[:1], (replace(FAILED, attempted=NOW - 999, attempts=3),), True, "nothing"),
        ((following("fenced"),), (replace(FAILED, attempted=NOW - 5),), True, "SwitchGroup n0"),
        ((following("fenced"),), (replace(FAILED, attempted=NOW - 4),), True, "nothing"),
        ((following("fenced"),), (replace(FAILED, attempts=3),), True, "TakeBackFence n0"),
        ((following("fenced"),), (COMPARED,), False, "TakeBackFence n0"),
        ((following("fenced", "diverged"),), (COMPARED,), True, "TakeBackFence n0"),
        ((following("fenced", "copying"),), (COMPARED,), True, "nothing"),
        ((following("fenced", members=(member(0), member(1), member(2, "unready"))),), (COMPARED,), True, SWITCHES),
        ((following("fenced"),), (AdoptionRow(),), True, "SwitchGroup n0"),
        ((following("fenced", members=(member(0), member(1), OLD)),), (COMPARED,), False, "TakeBackFence n0"),
        # afterwards
        ((following("promoted"),), (SWITCHED,), False, "VerifyGroup n0"),
        ((following("promoted"),), (LATE,), True, "nothing"),
        ((following("promoted"),), (replace(LATE, compared=NOW - 10),), True, "VerifyGroup n0"),
        ((following("promoted"),), (replace(SWITCHED, verification="ok"),), True, "nothing"),
    ],
)
def test_groups_that_follow_masters(
    groups: tuple[Group, ...], rows: tuple[AdoptionRow, ...], automatic: bool, expected: str
) -> None:
    adopt = AdoptSpec(("old-ns:9876",), automatic=automatic)
    spec = replace(wanted(groups=len(groups)), adopt=adopt, adopting=frozenset(range(len(groups))))
    observed = replace(seen(*groups), rows=dict(enumerate(rows)))
    assert told(decide(observed, spec).step) == expected
    assert told(decide(observed, replace(spec, adopt=None)).step) in ("nothing", "RestartMember n2")


def test_every_action_is_reached_by_these_tables() -> None:
    marks = [*test_a_group_of_three.pytestmark, *test_five_members_that_are_to_be_three.pytestmark]  # type: ignore[attr-defined]
    marks += test_groups_that_follow_masters.pytestmark  # type: ignore[attr-defined]
    words = " ".join(case[-1] for mark in marks for case in mark.args[1])
    words += " StopMember"  # by the table of fenced members
    assert all(action.value in words for action in Action)


def test_a_restart_of_a_member_that_is_down_does_not_hide_a_step_that_is_under_way() -> None:
    """n0 was stopped while it was ready, and is not back. n1 is down by itself: the other group waits for n0 still."""
    observed = seen(group(member(0, "unready"), member(1, "unready"), member(2), leader=2), underway=STEP)
    names = Names("shop", "orders")
    down = Step(Action.RESTART, 0, 1, "Outdated", "the pod is outdated and not ready")
    assert next_underway(observed, names, down) == STEP
    up = replace(down, member=2)
    recorded = next_underway(observed, names, up)
    assert recorded is not None and recorded.target == "orders-0-2"
    back = seen(group(member(0), member(1, "unready"), member(2), leader=2), underway=STEP)
    recorded = next_underway(back, names, down)
    assert recorded is not None and recorded.target == "orders-0-1"


STEP = Underway("ReplaceNode", "orders-0-0", "the claim is being deleted", NOW - 30)


# -- other volumes -----------------------------------------------------------------------------------------------------

OLD_VOLUMES = {(0, number): "storage class slow, wanted fast" for number in range(3)}


@pytest.mark.parametrize(
    ("case", "different", "expected"),
    [
        # followers first, then the leader, which hands over to a member that has its new volume
        (group(*FINE), (0, 1, 2), "ReplaceNode n1"),
        (group(*FINE), (0, 2), "ReplaceNode n2"),
        (group(*FINE), (0,), "MoveLeader n0 to n1"),
        (group(*FINE), (0, 1), "ReplaceNode n1"),
        (group(*FINE, leader=2), (1, 2), "ReplaceNode n1"),
        (group(*FINE, leader=2), (2,), "MoveLeader n2 to n0"),
        # one at a time, and never without a majority
        (group(member(0), member(1, "unready"), member(2)), (2,), "hold ReplaceNode n2: MemberNotReady"),
        (group(*FINE, behind=(1,)), (2,), "hold ReplaceNode n2: QuorumAtRisk"),
        (group(*FINE, away=(1,)), (0, 2), "hold ReplaceNode n2: QuorumAtRisk"),
        (group(*FINE, settled=False), (1,), "hold ReplaceNode n1: QuorumAtRisk"),
        (group(*FINE, leader=None), (1,), "hold ReplaceNode n1: QuorumAtRisk"),
        # a member that is down anyway goes first, also if its new volume cannot be created
        (group(member(0), member(1, "stopped"), member(2), away=(1,)), (1,), "ReplaceNode n1"),
        # a template that does not start must cost no volume
        (group(member(0), member(1, "old"), member(2)), (0, 1, 2), "RestartMember n1"),
        # who is replaced soon does not take over
        (group(member(0, "old"), member(1), member(2)), (1,), "MoveLeader n0 to n2"),
        (group(member(0), member(1, "old", "unapplied"), member(2)), (2,), "hold RestartMember n1: TemplateNotApplied"),
        # the volume of a claim that is being deleted is replaced already
        (group(member(0), member(1, "unclaimed"), member(2)), (), "ReplaceNode n1"),
    ],
)
def test_volumes_that_differ_from_the_spec(case: Group, different: tuple[int, ...], expected: str) -> None:
    aim = replace(wanted(), volumes={(0, number): OLD_VOLUMES[0, number] for number in different})
    decision = decide(seen(case), aim)
    assert told(decision.step or next(iter(decision.holds), None)) == expected


def test_the_only_copy_is_not_replaced_for_another_volume() -> None:
    decision = decide(seen(group(member(0))), replace(wanted(replicas=1), volumes={(0, 0): "size 10Gi, wanted 5Gi"}))
    assert decision.step is None and [told(hold) for hold in decision.holds] == ["hold ReplaceNode n0: SingleMember"]
    assert "raise spec.replicas" in decision.holds[0].message


def test_no_volume_is_replaced_while_its_member_is_fenced_or_its_group_restored() -> None:
    aim = replace(wanted(fenced=(1,)), volumes={(0, 1): OLD_VOLUMES[0, 1]})
    stopped = group(member(0), replace(member(1, "gone"), stopped=True), member(2), away=(1,))
    decision = decide(seen(stopped), aim)
    assert decision.step is None and [told(hold) for hold in decision.holds] == ["hold ReplaceNode n1: Stopped"]
    restoring = replace(wanted(), volumes=OLD_VOLUMES, restoring=frozenset({0}))
    assert decide(seen(group(*FINE)), restoring).step is None


def test_volumes_of_two_groups_are_not_replaced_together() -> None:
    first = group(member(0), member(1, "unready"), member(2), away=(1,))
    second = group(*(member(number, group=1) for number in range(3)), number=1)
    aim = replace(wanted(groups=2), volumes={(1, number): "size 10Gi, wanted 5Gi" for number in range(3)})
    underway = Underway("ReplaceNode", "orders-0-1", "its volume differs", NOW)
    decision = decide(seen(first, second, underway=underway), aim)
    assert decision.step is None and "hold ReplaceNode n1: StepUnderway" in [told(hold) for hold in decision.holds]
