"""What a pass saw of a cluster, as values: all that the decisions in `steps.py` and `conditions.py` may look at.

Small on purpose: a field that no decision reads is not here. Times are seconds since 1970, as the API server's are.
"What a member says" (`Answer`) is None for one that did not answer: nothing is concluded from silence but that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tallystick.operator.core.pods import Pod

HEARD_SECONDS = 3.0
"""A peer that has answered none of its leader's heartbeats for so long counts as gone, connected or not."""


@dataclass(frozen=True, slots=True)
class Claim:
    uid: str
    created: float = 0.0
    lost: bool = False
    """Its volume is gone: Kubernetes says so, and there is no way back."""
    deleting: bool = False
    formed: bool = False
    left: bool = False
    """Its member has left the group: what is on it is not needed for a majority."""
    first: tuple[int, ...] = ()
    requested: str = ""
    capacity: str = ""
    """Empty: not bound yet."""
    resizing: str = ""
    """What its growing waits for, empty: it does not grow."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another member, as the leader sees it."""

    member: int
    connected: bool
    lag_bytes: int | None
    sound: bool = True
    """Its disk takes writes, and it has forgotten nothing."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a member says of its group (GET /group)."""

    role: str
    term: int
    leader: int | None
    ready: bool
    """It leads, and has committed an entry of its term."""
    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    settled: bool = True
    """The membership that it knows of is committed."""
    commit_index: int = -1
    fatal: str = ""
    last_error: str = ""
    sound: bool = True
    peers: tuple[Peer, ...] = ()

    @property
    def leads(self) -> bool:
        return self.role == "leader" and self.ready

    @property
    def formed(self) -> bool:
        """The group has been made: somebody was elected, so a majority has its first membership on disk.

        That this member has it proves nothing: it may be the only one that has started yet.
        """
        return self.leader is not None or self.role == "leader" or self.commit_index >= 0

    def peer(self, member: int) -> Peer | None:
        return next((peer for peer in self.peers if peer.member == member), None)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of one group: its objects, and what it says."""

    group: int
    number: int
    node_uid: str | None = None
    """Of its BrokerNode; None: there is none."""
    replace: bool = False
    """A person asked for a new, empty disk."""
    claim: Claim | None = None
    stateful_set: str | None = None
    """Digest of the template that its StatefulSet has; None: there is none."""
    pod: Pod | None = None
    external: str = ""
    answer: Answer | None = None
    refused: str = ""
    """It answered, and does not talk to us: why."""
    stuck_restarts: int = 0
    """How often it was restarted for being stuck, since it was ready last."""

    @property
    def ready(self) -> bool:
        return self.pod is not None and self.pod.ready and not self.pod.deleting

    @property
    def exists(self) -> bool:
        """There is anything of it that runs or will run."""
        return self.node_uid is not None or self.stateful_set is not None or self.pod is not None


@dataclass(frozen=True, slots=True)
class Group:
    number: int
    members: tuple[Member, ...]
    """Those that exist or are wanted, by number."""

    def member(self, number: int) -> Member | None:
        return next((member for member in self.members if member.number == number), None)

    @property
    def leader(self) -> Member | None:
        """Who says that it leads and can; of several (one was cut off) the one of the newest term."""
        leading = [member for member in self.members if member.answer is not None and member.answer.leads]
        return max(leading, key=lambda member: member.answer.term if member.answer else -1, default=None)

    @property
    def formed(self) -> bool:
        """It has had a leader once, by a mark on any disk or by anybody's word."""
        return any(member.claim is not None and member.claim.formed for member in self.members) or any(
            member.answer is not None and member.answer.formed for member in self.members
        )

    @property
    def first(self) -> tuple[int, ...]:
        """Who votes in it first, as noted on its disks when they were made; nothing: no disk was made yet."""
        noted = (member.claim.first for member in self.members if member.claim is not None and member.claim.first)
        return next(noted, ())


@dataclass(frozen=True, slots=True)
class NameServers:
    wanted: int
    ready: int
    updated: int
    """Pods of the newest template; Kubernetes rolls them itself."""
    current: bool
    """Kubernetes has seen what is wanted."""
    external: str = ""


@dataclass(frozen=True, slots=True)
class Underway:
    """The step that was noted in the status before it was done."""

    action: str
    target: str
    reason: str
    since: float


@dataclass(frozen=True, slots=True)
class Observed:
    """A whole cluster."""

    now: float
    groups: tuple[Group, ...]
    name_servers: NameServers
    underway: Underway | None = None
    refusals: tuple[str, ...] = field(default=())
    """What the API server would not let us do, for people."""
    resize_refusals: tuple[str, ...] = field(default=())

    @property
    def members(self) -> Iterator[Member]:
        return (member for group in self.groups for member in group.members)


def understood(answer: Any) -> Answer:
    """From the body of GET /group. KeyError, TypeError, ValueError: it is none."""
    peers = tuple(
        Peer(
            member=int(peer["member"]),
            connected=bool(peer["connected"]) and float(peer.get("seconds_since_heard") or 0.0) <= HEARD_SECONDS,
            lag_bytes=None if peer.get("lag_bytes") is None else int(peer["lag_bytes"]),
            sound=_sound(peer),
        )
        for peer in answer.get("peers") or ()
    )
    leader = answer.get("leader")
    return Answer(
        role=str(answer["role"]),
        term=int(answer["term"]),
        leader=None if leader is None else int(leader),
        ready=bool(answer["ready"]),
        voters=tuple(int(each) for each in answer["voters"]),
        learners=tuple(int(each) for each in answer["learners"]),
        settled=bool(answer.get("membership_committed", True)),
        commit_index=int(answer.get("commit_index", -1)),
        fatal=str(answer.get("fatal") or ""),
        last_error=str(answer.get("last_error") or ""),
        sound=_sound(answer),
        peers=peers,
    )


def _sound(says: Any) -> bool:
    disk, doubt = says.get("disk"), says.get("doubt")
    return disk in (None, "ok", 0) and doubt in (None, "none", 0)
