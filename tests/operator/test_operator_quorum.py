"""Who is counted on: each word that speaks against a member, by itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from tallystick.operator.clusters.decide import Action, Decision, Wanted, decide
from tallystick.operator.clusters.drift import covers
from tallystick.operator.clusters.observed import Answer, Claim, Group, Member, NameServers, Observed, Peer
from tallystick.operator.clusters.quorum import (
    CLOSE_BYTES,
    is_settled,
    learners_of,
    majority,
    sound,
    successor,
    takes_no_part,
    voters_of,
    without,
)
from tallystick.operator.core.pods import Pod

NOW = 10_000.0


def member(number: int, says: Answer | None = None, **changes: object) -> Member:
    pod = Pod(uid=f"pod-{number}", template="new", ready=True, created=0.0, started=1.0, running=True)
    fields = {"node_uid": f"node-{number}", "claim": Claim(uid=f"claim-{number}", formed=True), "stateful_set": "new"}
    answer = says or Answer("follower", 5, 0, ready=False)
    return replace(Member(group=0, number=number, pod=pod, answer=answer, **fields), **changes)  # type: ignore[arg-type]


def leader(*peers: Peer, term: int = 5, number: int = 0, voters: tuple[int, ...] = (0, 1, 2)) -> Member:
    return member(number, Answer("leader", term, number, True, voters, (), True, commit_index=7, peers=peers))


def peer(number: int, **changes: object) -> Peer:
    return replace(Peer(number, connected=True, lag_bytes=0), **changes)  # type: ignore[arg-type]


def group(*members: Member) -> Group:
    return Group(0, members)


@pytest.mark.parametrize(
    ("seen", "counts"),
    [
        (peer(1), True),
        (peer(1, sound=False), False),
        (peer(1, connected=False), False),
        (peer(1, lag_bytes=CLOSE_BYTES), True),
        (peer(1, lag_bytes=CLOSE_BYTES + 1), False),
        (peer(1, lag_bytes=None), False),
    ],
)
def test_the_leaders_word_about_a_voter(seen: Peer, counts: bool) -> None:
    found = group(leader(seen, peer(2)), member(1), member(2))
    assert sound(found, 1) is counts
    assert (without(found, 2) == "") is counts


def test_one_of_whom_the_leader_says_nothing_may_take_part() -> None:
    assert not takes_no_part(group(leader(peer(2)), member(1), member(2)), member(1))
    assert takes_no_part(group(leader(peer(1, connected=False), peer(2)), member(1), member(2)), member(1))


def test_the_successor_is_the_one_that_lacks_least() -> None:
    found = group(leader(peer(1, lag_bytes=1000), peer(2, lag_bytes=10)), member(1), member(2))
    assert successor(found, 0, range(3), range(3)) == 2
    assert successor(found, 0, range(3), [1]) == 1, "the preferred one, if it is sound"


def test_of_two_leaders_the_newer_one_is_believed() -> None:
    found = group(leader(term=4), leader(number=1, term=6), member(2))
    assert found.leader is not None and found.leader.number == 1


def decided(found: Group, replicas: int = 3) -> Decision:
    templates: dict[tuple[int, int], str | None] = {(0, number): "new" for number in range(3)}
    observed = Observed(NOW, (found,), NameServers(1, 1, 1, True))
    return decide(observed, Wanted(1, replicas, templates))


@pytest.mark.parametrize(("voters", "replicas"), [((0,), 1), ((0,), 3), ((0, 1, 2), 1)])
def test_the_only_copy_is_never_given_up(voters: tuple[int, ...], replicas: int) -> None:
    """One that votes alone is the only copy, and so is the one that is to be left."""
    peers = tuple(peer(number) for number in voters if number)
    lost = replace(leader(*peers, voters=voters), replace=True)
    decision = decided(group(lost, *(member(number) for number in voters if number)), replicas)
    assert (decision.holds[0].action, decision.holds[0].reason) == (Action.REPLACE, "LastCopy")
    assert decision.step is None or decision.step.action is not Action.REPLACE


def test_a_pod_is_not_forced_away_while_its_member_answers() -> None:
    pod = Pod(uid="p", template="new", ready=False, created=0.0, started=1.0, deleting_since=1.0, running=True)
    heard = peer(1, connected=False)
    for answer, refused in ((Answer("follower", 5, 0, ready=False), ""), (None, "401")):
        going = replace(member(1), pod=pod, answer=answer, refused=refused)
        assert decided(group(leader(heard, peer(2)), going, member(2))).step is None
    gone = replace(member(1), pod=pod, answer=None)
    step = decided(group(leader(heard, peer(2)), gone, member(2))).step
    assert step is not None and step.action is Action.FORCE


def test_what_the_server_leaves_out_is_as_if_it_were_empty() -> None:
    """Otherwise each pass would write the object again."""
    assert covers({}, {"replicas": 0, "paused": False, "name": "", "labels": {}, "args": []})
    assert not covers({}, {"replicas": 1})


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority(voters: int, needed: int) -> None:
    assert majority(voters) == needed


NO_LEADER = group(member(0), member(1), member(2))
UNREADY = Pod(uid="p", template="new", ready=False, created=0.0, running=True)
STOPPED = replace(UNREADY, running=False)


def three(*, first: Peer | None = None, second: Member | None = None, settled: bool = True) -> Group:
    """n0 leads. `first`: what it says of n1; `second`: n2."""
    leads = leader(first or peer(1), peer(2))
    assert leads.answer is not None
    return group(replace(leads, answer=replace(leads.answer, settled=settled)), member(1), second or member(2))


@pytest.mark.parametrize(
    ("found", "number", "why"),
    [
        (three(), 0, ""),
        (three(), 1, ""),
        (three(), 7, ""),
        (NO_LEADER, 1, "the group has no known leader"),
        (three(settled=False), 1, "a membership change is not committed yet"),
        (three(settled=False), 7, ""),
        (three(first=peer(1, connected=False)), 1, ""),
        (
            three(first=peer(1, connected=False)),
            2,
            "only 1 of 3 voters would remain healthy; 2 are required",
        ),
        (
            three(second=member(2, pod=UNREADY)),
            1,
            "only 1 of 3 voters would remain healthy; 2 are required",
        ),
        (group(leader(voters=(0,))), 0, "only 0 of 1 voters would remain healthy; 1 are required"),
    ],
)
def test_why_a_group_cannot_do_without_a_member(found: Group, number: int, why: str) -> None:
    assert without(found, number) == why


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"answer": None}, True),  # the leader and Kubernetes hear it
        ({"pod": UNREADY}, False),
        ({"pod": None}, False),
        ({"answer": Answer("follower", 5, 0, ready=False, fatal="no space")}, False),
        ({"answer": Answer("follower", 5, 0, ready=False, sound=False)}, False),
    ],
)
def test_the_word_of_a_voter_about_itself(changes: dict[str, Any], counts: bool) -> None:
    assert sound(three(second=member(2, **changes)), 2) is counts


def test_without_a_leader_no_voter_is_healthy_and_no_member_is_known() -> None:
    assert [sound(NO_LEADER, number) for number in range(4)] == [False] * 4
    assert (tuple(voters_of(NO_LEADER)), tuple(learners_of(NO_LEADER)), is_settled(NO_LEADER)) == ((), (), False)


@pytest.mark.parametrize(
    ("found", "which", "idle"),
    [
        (three(), member(1), False),
        (three(), leader(peer(1), peer(2)), False),
        (three(), member(1, pod=None), True),
        (three(), member(1, pod=STOPPED), True),
        (three(first=peer(1, connected=False)), member(1), True),
        # A leader that reaches no majority is about to step down: the others may elect one of them.
        (group(leader(peer(1, connected=False), peer(2, connected=False)), member(1), member(2)), member(1), False),
        (group(leader(peer(1, connected=False)), member(1), member(2)), member(1), False),
        (three(), member(3), True),  # it is not a voter
        (NO_LEADER, member(1), False),
        (NO_LEADER, member(1, pod=STOPPED), True),
    ],
)
def test_who_takes_no_part(found: Group, which: Member, idle: bool) -> None:
    assert takes_no_part(found, which) is idle


@pytest.mark.parametrize(
    ("found", "allowed", "preferred", "chosen"),
    [
        (three(), range(3), range(3), 1),
        (three(), range(3), (2,), 2),
        (three(), (2,), range(3), 2),
        (three(), (), range(3), None),
        (three(first=peer(1, connected=False)), range(3), (1,), 2),
        (three(first=peer(1, lag_bytes=9)), range(3), range(3), 2),
        (NO_LEADER, range(3), range(3), None),
    ],
)
def test_who_takes_over(found: Group, allowed: Collection[int], preferred: Collection[int], chosen: int | None) -> None:
    assert successor(found, 0, allowed, preferred) == chosen
