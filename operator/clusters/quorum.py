"""Whether a group can lose a member. Every disruptive step uses these functions. Pure.

A voter is healthy (`sound`) if its pod is ready, the leader reports that it is connected and at most CLOSE_BYTES
behind, and no member reports an error of its disk or doubt about its votes. Missing information counts as not healthy.
"""

from __future__ import annotations

from collections.abc import Collection

from tallystick.operator.clusters.observed import Group, Member

CLOSE_BYTES = 32 << 20
"""A voter that is further behind the leader's log is not healthy."""


def majority(voters: int) -> int:
    return voters // 2 + 1


def sound(group: Group, number: int) -> bool:
    """Whether a voter is healthy, according to the leader and Kubernetes."""
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
    """Returns the voters that the leader reports; empty without a leader."""
    leader = group.leader
    return leader.answer.voters if leader is not None and leader.answer is not None else ()


def learners_of(group: Group) -> Collection[int]:
    leader = group.leader
    return leader.answer.learners if leader is not None and leader.answer is not None else ()


def is_settled(group: Group) -> bool:
    """Whether there is a leader, and its membership is committed."""
    leader = group.leader
    return leader is not None and leader.answer is not None and leader.answer.settled


def without(group: Group, number: int) -> str:
    """Returns why the group cannot lose this member; empty: a majority of its voters is healthy without it."""
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


def blind(group: Group) -> str:
    """Returns why nothing is known about the leader of a group: `Unauthorized` or `Unreachable`; empty: it is known.

    A running member that gives no usable answer may lead, unless a majority of the voters answers and names no such
    member. A member whose container is not running does not lead.
    """
    if group.leader is not None:
        return ""
    silent = [each for each in group.members if each.answer is None and each.pod is not None and each.pod.running]
    if not silent:
        return ""
    answers = {each.number: each.answer for each in group.members if each.answer is not None}
    newest = max(answers.values(), key=lambda answer: answer.term, default=None)
    voters = newest.voters if newest is not None else ()
    heard = [answer for number, answer in answers.items() if number in voters]
    named = {answer.leader for answer in heard} & {each.number for each in silent}
    if voters and len(heard) >= majority(len(voters)) and not named:
        return ""
    return "Unauthorized" if any(each.unauthorized for each in silent) else "Unreachable"


def takes_no_part(group: Group, member: Member) -> bool:
    """Whether stopping a member does not weaken its group.

    The word of an isolated leader proves nothing about a running member: it is about to step down, and the members that
    it does not reach may be the majority that elects the next leader.
    """
    running = member.pod is not None and member.pod.running
    return is_unreached(group, member) and not (running and _is_isolated(group))


def is_unreached(group: Group, member: Member) -> bool:
    """Whether a member is not running, or its leader reports that it is not a voter, or not connected.

    The other members may reach a member that the operator does not. So without a report of the leader, only a container
    that is not running is unreached.
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


def _is_isolated(group: Group) -> bool:
    """Whether the leader is not connected to a majority of the voters, counting itself."""
    leader = group.leader
    if leader is None or leader.answer is None:
        return False
    connected = {peer.member for peer in leader.answer.peers if peer.connected} | {leader.number}
    return len(connected & set(leader.answer.voters)) < majority(len(leader.answer.voters))


def successor(group: Group, number: int, allowed: Collection[int], preferred: Collection[int]) -> int | None:
    """Returns the next leader: a healthy voter of `allowed`, preferably of `preferred`, with the lowest lag."""
    leader = group.leader
    if leader is None or leader.answer is None:
        return None

    def rank(candidate: int) -> tuple[bool, int, int]:
        peer = leader.answer.peer(candidate) if leader.answer else None
        lag = peer.lag_bytes if peer is not None and peer.lag_bytes is not None else 0
        return (candidate not in preferred, lag, candidate)

    found = [each for each in leader.answer.voters if each != number and each in allowed and sound(group, each)]
    return min(found, key=rank, default=None)
