"""Whether a group can do without a member: the arithmetic that every disruptive step asks, in one place.

A voter counts as *sound* if Kubernetes says that its pod is ready, the leader says that it is connected and close
behind, and nobody says that its disk or its memory of votes is in doubt. Silence of any of them is a no.
"""

from __future__ import annotations

from collections.abc import Collection

from tallystick.operator.clusters.observed import Group, Member

CLOSE_BYTES = 32 << 20
"""A voter that lacks more of the leader's log than this is not counted on."""


def majority(voters: int) -> int:
    return voters // 2 + 1


def sound(group: Group, number: int) -> bool:
    """Whether a voter can be counted on now, by the leader's word and by Kubernetes'."""
    leader, member = group.leader, group.member(number)
    if leader is None or leader.answer is None or member is None or not member.ready:
        return False
    if member.answer is not None and (member.answer.fatal or not member.answer.sound):
        return False
    if number == leader.number:
        return True
    peer = leader.answer.peer(number)
    return peer is not None and peer.connected and peer.sound and close(peer.lag_bytes)


def close(lag_bytes: int | None) -> bool:
    return lag_bytes is not None and lag_bytes <= CLOSE_BYTES


def voters_of(group: Group) -> Collection[int]:
    """By the leader's word; nobody, if nobody leads."""
    leader = group.leader
    return leader.answer.voters if leader is not None and leader.answer is not None else ()


def learners_of(group: Group) -> Collection[int]:
    leader = group.leader
    return leader.answer.learners if leader is not None and leader.answer is not None else ()


def is_settled(group: Group) -> bool:
    """Somebody leads, and no change of members is open."""
    leader = group.leader
    return leader is not None and leader.answer is not None and leader.answer.settled


def without(group: Group, number: int) -> str:
    """Why the group cannot do without this member; empty: a majority of its voters is sound besides."""
    if group.leader is None:
        return "the group has no known leader"
    voters = voters_of(group)
    if number not in voters:
        return ""
    if not is_settled(group):
        return "a membership change is not committed yet"
    others = [voter for voter in voters if voter != number and sound(group, voter)]
    needed = majority(len(voters))
    if len(others) < needed:
        return f"only {len(others)} of {len(voters)} voters would remain healthy; {needed} are required"
    return ""


def takes_no_part(group: Group, member: Member) -> bool:
    """Stopping it takes nothing away from the group: it does not run, or the leader neither counts nor hears it.

    Who cannot be heard by us may be heard by the others, so without a leader's word only a container that does not run
    is known to do nothing.
    """
    if member.pod is None or not member.pod.running:
        return True
    leader = group.leader
    if leader is None or leader.answer is None or leader.number == member.number:
        return False
    if member.number not in leader.answer.voters:
        return True
    peer = leader.answer.peer(member.number)
    return peer is not None and not peer.connected


def successor(group: Group, number: int, allowed: Collection[int], preferred: Collection[int]) -> int | None:
    """Who should lead instead of this member: sound, preferred if there is one, the least behind."""
    leader = group.leader
    if leader is None or leader.answer is None:
        return None

    def rank(candidate: int) -> tuple[bool, int, int]:
        peer = leader.answer.peer(candidate) if leader.answer else None
        lag = peer.lag_bytes if peer is not None and peer.lag_bytes is not None else 0
        return (candidate not in preferred, lag, candidate)

    found = [each for each in leader.answer.voters if each != number and each in allowed and sound(group, each)]
    return min(found, key=rank, default=None)
