"""The observed state of a cluster as values: the input of `decide.py`, `layout.py` and `status.py` besides the spec.

It contains only fields that a decision or the status uses. Times are seconds since 1970. An `Answer` of None means that
the member did not respond; nothing else follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tallystick.operator.clusters.adoption_plan import AdoptionPlan
from tallystick.operator.clusters.recovery_source import Problem, Restore, Source
from tallystick.operator.core.pods import Pod
from tallystick.operator.security.spec import Stage

HEARD_SECONDS = 3.0
"""A peer that has answered no heartbeat of its leader for so long counts as disconnected."""


@dataclass(frozen=True, slots=True)
class Claim:
    uid: str
    created: float = 0.0
    lost: bool = False
    """Kubernetes reports that its volume is lost, which is final."""
    deleting: bool = False
    formed: bool = False
    left: bool = False
    """Its member has left the group: a majority does not need its data."""
    first: tuple[int, ...] = ()
    recovered: str = ""
    """UID of the cluster for which a backup was, or is, restored into its group; empty: none."""
    storage_class: str | None = None
    """None: none is set."""
    adopted: str = ""
    """UID of the cluster for which its group copies, or copied, the log of a RocketMQ master; empty: none."""
    broker_name: str = ""
    """Name that its group took over from a RocketMQ master; empty: it has its own one."""
    requested: str = ""
    capacity: str = ""
    """Empty: not bound yet."""
    resizing: str = ""
    """Progress of its expansion; empty: it is not being expanded."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another member, as reported by the leader."""

    member: int
    connected: bool
    lag_bytes: int | None
    sound: bool = True
    """Its disk accepts writes, and its votes are not in doubt."""


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """A lost majority of a group was given up: a member was made its only voter by `tally group recover`."""

    at_ms: int
    """Ms since 1970."""
    last_index: int
    """Index of the last entry that the member had: acknowledged messages behind it are lost."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The state of a group as reported by a member (GET /group)."""

    role: str
    term: int
    leader: int | None
    ready: bool
    """It is the leader and has committed an entry of its term."""
    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    settled: bool = True
    """Its membership is committed."""
    commit_index: int = -1
    fatal: str = ""
    last_error: str = ""
    sound: bool = True
    peers: tuple[Peer, ...] = ()
    accepted_loss: AcceptedLoss | None = None

    @property
    def leads(self) -> bool:
        return self.role == "leader" and self.ready

    @property
    def formed(self) -> bool:
        """Whether the group has formed: a leader was elected, so a majority has the first membership on disk.

        The membership of this member alone proves nothing: it may be the only one that has started.
        """
        return self.leader is not None or self.role == "leader" or self.commit_index >= 0

    def peer(self, member: int) -> Peer | None:
        return next((peer for peer in self.peers if peer.member == member), None)


@dataclass(frozen=True, slots=True)
class Copy:
    """What a member says about the master that its group follows (GET /node)."""

    state: str
    """`following`, `copying`, the name of a problem, `promoted`, or `member` if another member leads."""
    reason: str = ""
    lasting: bool = False
    """The problem does not end without a user."""
    master: str = ""
    behind_bytes: int | None = None
    fenced: bool = False
    """The master was fenced for a switch that has not ended."""


@dataclass(frozen=True, slots=True)
class AdoptionRow:
    """What is recorded about the switch of a group. Times are seconds since 1970; None: never."""

    broker_name: str = ""
    attempts: int = 0
    """Switches that failed since a user permitted them."""
    attempted: float | None = None
    """When the last one was started; recorded before it is."""
    switched: float | None = None
    """When the group was first seen to be the master."""
    compared: float | None = None
    """When it was last compared with its master, or old master."""
    rehearsal: str = ""
    """Result of the last comparison with the master; empty: there was none, or it failed."""
    behind: int | None = None
    """Messages that were missing then."""
    verification: str = ""
    """Result of the comparison with the old master; empty: there was none."""
    error: str = ""
    differences: tuple[str, ...] = ()
    """What behaves differently after the switch."""

    def with_changes(self, **changes: Any) -> AdoptionRow:
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of one group: its objects and its answer."""

    group: int
    number: int
    node_uid: str | None = None
    """UID of its BrokerNode; None: it does not exist."""
    replace: bool = False
    """A user requested a new, empty volume."""
    claim: Claim | None = None
    stateful_set: str | None = None
    """Digest of the pod template of its StatefulSet; None: it does not exist."""
    restore: Restore | None = None
    """What its StatefulSet restores before the broker starts; None: nothing."""
    stopped: bool = False
    """Its StatefulSet has no replicas: it is fenced, or the cluster hibernates."""
    pod: Pod | None = None
    external: str = ""
    answer: Answer | None = None
    copy: Copy | None = None
    """None: it follows no master, or was not asked, because nothing is adopted."""
    refused: str = ""
    """Why its answer cannot be used; empty: it answered, or it did not respond."""
    unauthorized: bool = False
    """It rejected the token of the operator."""
    stuck_restarts: int = 0
    """Number of restarts because it was stuck, since it was last ready."""

    @property
    def ready(self) -> bool:
        return self.pod is not None and self.pod.ready and not self.pod.deleting

    @property
    def gone(self) -> bool:
        """Whether it is stopped, and its pod no longer exists."""
        return self.stopped and self.pod is None

    @property
    def exists(self) -> bool:
        """Whether it has an object that runs or will run."""
        return self.node_uid is not None or self.stateful_set is not None or self.pod is not None


@dataclass(frozen=True, slots=True)
class Group:
    number: int
    members: tuple[Member, ...]
    """Existing and wanted members, by number."""

    def member(self, number: int) -> Member | None:
        return next((member for member in self.members if member.number == number), None)

    @property
    def leader(self) -> Member | None:
        """The member that reports to be a ready leader; of several, the one of the newest term."""
        leading = [member for member in self.members if member.answer is not None and member.answer.leads]
        return max(leading, key=lambda member: member.answer.term if member.answer else -1, default=None)

    @property
    def formed(self) -> bool:
        """Whether it has ever had a leader, according to any claim or any member."""
        return any(member.claim is not None and member.claim.formed for member in self.members) or any(
            member.answer is not None and member.answer.formed for member in self.members
        )

    @property
    def first(self) -> tuple[int, ...]:
        """The initial voters, as recorded on its claims; empty: no claim exists yet."""
        noted = (member.claim.first for member in self.members if member.claim is not None and member.claim.first)
        return next(noted, ())

    @property
    def recovered(self) -> str:
        """UID of the cluster for which a backup was, or is, restored into it, as recorded on its claims."""
        noted = (member.claim.recovered for member in self.members if member.claim is not None)
        return next((uid for uid in noted if uid), "")

    @property
    def adopted(self) -> str:
        """UID of the cluster for which it copies, or copied, the log of a master, as recorded on its claims."""
        noted = (member.claim.adopted for member in self.members if member.claim is not None)
        return next((uid for uid in noted if uid), "")

    @property
    def broker_name(self) -> str:
        """Name that it took over from a master, as recorded on its claims; empty: it has its own one."""
        noted = (member.claim.broker_name for member in self.members if member.claim is not None)
        return next((name for name in noted if name), "")


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why groups cannot be restored, or cannot begin to copy: none of their brokers is started.

    `waits`: it may end without a user."""

    reason: str
    message: str
    groups: frozenset[int] = frozenset()
    waits: bool = False
    adopts: bool = False
    """It hinders an adoption, and no recovery."""


@dataclass(frozen=True, slots=True)
class NameServers:
    wanted: int
    ready: int
    updated: int
    """Pods with the newest template."""
    current: bool
    """Whether Kubernetes has processed the newest template."""
    external: str = ""
    available: int = 0
    """Pods that have been ready for long enough to know all brokers."""
    template: str = ""
    """Digest of the template of the StatefulSet; empty: there is none."""
    image: str = ""
    """Image in this template."""
    pods: tuple[tuple[str, Pod], ...] = ()
    """By name."""


@dataclass(frozen=True, slots=True)
class TlsView:
    """How the pods of a cluster use TLS (`security/spec.py`)."""

    stage: Stage = Stage.OFF
    """The stage that all pods get now."""
    target: Stage = Stage.OFF
    """The stage that they get in the end."""
    secret: str = ""
    """Secret with the certificate of all processes; empty: the operator issues them."""
    reached: bool = True
    """Whether all pods have the stage that they get in the end."""
    access_control: bool = False
    """Whether all pods of brokers and name servers were created with access control."""

    @property
    def active(self) -> bool:
        """Whether a pod has files of TLS, or will have them."""
        return self.stage is not Stage.OFF or self.target is not Stage.OFF or not self.reached


@dataclass(frozen=True, slots=True)
class SecurityView:
    """The certificates of a cluster. Times are seconds since 1970."""

    problem: str = ""
    """Why they cannot be issued or used; empty: they can."""
    reason: str = ""
    """Machine-readable reason of the problem."""
    phase: str = ""
    """Phase of the rotation of the operator's authority; empty: it has none."""
    waits: str = ""
    """What the rotation, or the use of new certificates, waits for."""
    ends: float | None = None
    """When the first certificate ends."""
    authority_ends: float | None = None
    authority: str = ""
    """Fingerprint of the authority that issues."""
    trusted: bytes = b""
    """Authorities that clients need, as PEM."""
    old_until: float | None = None
    """Clients that trust only the previous authority are served until then."""

    @property
    def moves(self) -> bool:
        """Whether something is in progress that no event reports."""
        return bool(self.waits or self.problem or self.phase in ("Trusting", "Issuing"))


@dataclass(frozen=True, slots=True)
class Underway:
    """The disruptive step in the status, written before it was carried out."""

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
    """Errors of the API server for objects that it rejected."""
    resize_refusals: tuple[str, ...] = field(default=())
    taken: tuple[str, ...] = field(default=())
    """Objects that have a name of the cluster and do not belong to it."""
    other_operator: str = ""
    """Another operator that watches the namespace and waits; empty: there is none."""
    source: Source | Problem | None = None
    """The backups from which the cluster starts; None: it is not being recovered."""
    recovered_before: str = ""
    """Status of the condition `Recovered` in the previous status; empty: there was none. `True` is final."""
    hindrance: Hindrance | None = None
    plan: AdoptionPlan | Problem | None = None
    """Which group takes the place of which master; None: none does, or all of them have begun."""
    adopted_before: str = ""
    """Status of the condition `Adopted` in the previous status; empty: there was none. `True` is final."""
    rows: Mapping[int, AdoptionRow] = field(default_factory=dict)
    """What is recorded about the switch of each group, by its number."""
    tls: TlsView = field(default_factory=TlsView)
    security: SecurityView = field(default_factory=SecurityView)

    @property
    def members(self) -> Iterator[Member]:
        return (member for group in self.groups for member in group.members)


def understood(answer: Any) -> Answer:
    """Parses the body of GET /group. KeyError, TypeError, ValueError: it is invalid."""
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
        accepted_loss=_accepted_loss(answer.get("recovered")),
    )


def _accepted_loss(says: Any) -> AcceptedLoss | None:
    """`says`: why the member was made the only voter. After a restore (`restored`) nothing of this group is lost."""
    if not says or says["reason"] != "accepted-loss":
        return None
    return AcceptedLoss(int(says["at_ms"]), int(says["before"]["last_index"]))


def _sound(says: Any) -> bool:
    disk, doubt = says.get("disk"), says.get("doubt")
    return disk in (None, "ok", 0) and doubt in (None, "none", 0)
