"""The next step of a cluster. Pure: it follows from the observed and the wanted state. Each pass does at most one step.

    step             when                                         only if
    TakeBackFence    a switch ended, and the master is fenced     the group still follows it
    StopMember       it is fenced, or the cluster hibernates      a user decides; leadership is transferred first
    ReplaceNode      its claim is deleted or lost, or on request  a majority is healthy without it
    ForceDeletePod   its Kubernetes node does not respond         the same, and it is unresponsive
    RestartMember    its pod is outdated or stuck, and not ready  the same, or it takes no part
    AddMember        it is wanted and not a member                no membership change is open; as a learner
    PromoteMember    it is a learner                              it has caught up, enough voters are healthy
    RemoveMember     it is a voter and not wanted                 all wanted members vote, and a majority is healthy
    DeleteNode       it is not wanted and not a member            the membership is committed
    RestartMember    its pod is outdated and ready                all others are ready and a majority is healthy;
                                                                  no other step in the cluster is in progress
    ReplaceNode      its volume differs from the spec             the same, and no pod is outdated
    MoveLeader       one of these steps concerns the leader       there is a healthy successor
    VerifyGroup      it took the place of a RocketMQ master       no other step
    RehearseSwitch   it follows a master closely                  no other step
    SwitchGroup      spec.adoptFrom.switch is Automatic           all groups follow closely, and one by one

The table is in the order of precedence; followers come before a leader. A step that is wanted but not permitted now is
a `Hold` with its reason. A group with one member cannot keep its quorum: the member is restarted anyway, because it
could never be restarted otherwise, but its volume is never replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tallystick.operator.clusters import adoption
from tallystick.operator.clusters.adoption_source import AdoptSpec
from tallystick.operator.clusters.observed import Group, Member, Observed
from tallystick.operator.clusters.quorum import (
    close,
    is_settled,
    is_unreached,
    learners_of,
    majority,
    sound,
    successor,
    takes_no_part,
    voters_of,
    without,
)
from tallystick.operator.clusters.stopping import Stop

STUCK_SECONDS = 300.0
"""A member that is unresponsive and not ready for so long, with healthy peers, is restarted. Doubled after each try."""
LONGEST_STUCK_SECONDS = 3600.0
FORCE_SECONDS = 120.0
"""Time that a pod may exceed its deletion time. A failed Kubernetes node never confirms that its pod stopped."""
DEAD_SECONDS = 120.0
"""A group without a ready pod for so long has no leader to wait for."""


class Action(Enum):
    STOP = "StopMember"
    REPLACE = "ReplaceNode"
    FORCE = "ForceDeletePod"
    RESTART = "RestartMember"
    MOVE = "MoveLeader"
    ADD = "AddMember"
    PROMOTE = "PromoteMember"
    REMOVE = "RemoveMember"
    DELETE = "DeleteNode"
    SWITCH = adoption.SWITCH
    TAKE_BACK = adoption.TAKE_BACK
    REHEARSE = adoption.REHEARSE
    VERIFY = adoption.VERIFY


@dataclass(frozen=True, slots=True)
class Step:
    """One step for one member. `uid`: UID of the object that it affects, so that no newer object is affected."""

    action: Action
    group: int
    member: int
    reason: str
    """Machine-readable reason."""
    message: str
    uid: str = ""
    to: int | None = None
    """MoveLeader, StopMember of a leader: number of the new leader."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A step that is wanted but not permitted now."""

    action: Action
    group: int
    member: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted state. `templates`: digest of the pod template by group and member; None: unknown yet."""

    groups: int
    replicas: int
    templates: Mapping[tuple[int, int], str | None] = field(default_factory=dict)
    paused: bool = False
    stops: Mapping[tuple[int, int], Stop] = field(default_factory=dict)
    """The members to stop, by group and member."""
    restoring: frozenset[int] = frozenset()
    """Groups that are being restored from backups: their volumes hold nothing else."""
    volumes: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """By group and member: how its volume differs from the spec, if it is to be replaced for that."""
    adopt: AdoptSpec | None = None
    """How groups take the places of RocketMQ masters; None: none is to do so any longer."""
    adopting: frozenset[int] = frozenset()
    """The numbers of these groups."""


@dataclass(frozen=True, slots=True)
class Decision:
    step: Step | None
    holds: tuple[Hold, ...] = ()


def decide(observed: Observed, wanted: Wanted) -> Decision:
    """Returns the first permitted step in the order of precedence, and the holds before it."""
    holds: list[Hold] = []
    for found in _candidates(observed, wanted):
        if isinstance(found, Hold):
            holds.append(found)
        elif wanted.paused:
            holds.append(Hold(found.action, found.group, found.member, "Paused", f"paused: {found.message}"))
        elif observed.taken:
            message = f"{found.message}; names of the cluster are taken: {'; '.join(observed.taken[:3])}"
            holds.append(Hold(found.action, found.group, found.member, "NameTaken", message))
        else:
            return Decision(found, tuple(holds))
    return Decision(None, tuple(holds))


def _candidates(observed: Observed, wanted: Wanted) -> Iterator[Step | Hold]:
    kinds = (
        *(_fences, _stops, _replacements, _forced, _unready_restarts),
        *(_additions, _removals, _deletions, _ready_restarts, _switches, _volume_changes),
    )
    for kind in kinds:
        for group in observed.groups:
            yield from kind(observed, wanted, group)


def outdated(wanted: Wanted, member: Member) -> bool:
    """Whether its pod was created from another template than the wanted one."""
    template = wanted.templates.get((member.group, member.number))
    return member.pod is not None and template is not None and member.pod.template != template


# -- the places of RocketMQ masters ------------------------------------------------------------------------------------


def _fences(observed: Observed, wanted: Wanted, group: Group) -> Iterator[Step | Hold]:
    """Yields what lets a master accept messages again: its producers wait for it."""
    step = _adopts(observed, wanted, group)
    if step is not None and step.action is Action.TAKE_BACK:
        yield step


def _switches(observed: Observed, wanted: Wanted, group: Group) -> Iterator[Step | Hold]:
    step = _adopts(observed, wanted, group)
    if step is None or step.action is Action.TAKE_BACK:
        return
    if step.action is Action.SWITCH and any(outdated(wanted, each) for each in group.members):
        text = f"{step.message}; outdated members are restarted first"
        yield Hold(step.action, group.number, step.member, "Outdated", text)
    else:
        yield step


def _adopts(observed: Observed, wanted: Wanted, group: Group) -> Step | None:
    if wanted.adopt is None or group.number not in wanted.adopting or group.leader is None:
        return None
    groups = [each for each in observed.groups if each.number in wanted.adopting]
    found = adoption.turn(wanted.adopt, observed, groups, group, wanted.replicas)
    if found is None:
        return None
    return Step(Action(found.action), group.number, group.leader.number, found.reason, found.message)


# -- fencing and hibernation -------------------------------------------------------------------------------------------


def _stops(observed: Observed, wanted: Wanted, group: Group) -> Iterator[Step | Hold]:
    """Yields the members to stop: a leader with a successor first, another leader last, after its followers."""
    leads = group.leader.number if group.leader is not None else None
    running = [each.number for each in group.members if (group.number, each.number) not in wanted.stops]
    fresh = [each.number for each in group.members if not outdated(wanted, each)]
    to = successor(group, leads, running, fresh) if leads is not None else None
    for member in sorted(group.members, key=lambda each: (each.number == leads) is (to is None)):
        stop = wanted.stops.get((group.number, member.number))
        if stop is None or member.stopped or member.stateful_set is None:
            continue
        message = "a user fenced the member" if stop is Stop.FENCED else "the cluster hibernates"
        next_leader = to if member.number == leads else None
        if next_leader is not None:
            message += f"; it is the leader, so n{next_leader} takes over first"
        uid = member.pod.uid if member.pod else ""
        yield Step(Action.STOP, group.number, member.number, stop.value, message, uid, next_leader)


# -- lost volumes and Kubernetes nodes ---------------------------------------------------------------------------------


def _replacements(observed: Observed, wanted: Wanted, group: Group) -> Iterator[Step | Hold]:
    for member in group.members:
        why = _why_replace(member)
        if not why:
            continue
        reason, message = why
        if (group.number, member.number) in wanted.stops:
            message = f"{message}; not replaced while it is fenced or the cluster hibernates"
            yield Hold(Action.REPLACE, group.number, member.number, "Stopped", message)
            continue
        if group.number in wanted.restoring and takes_no_part(group, member):
            uid = member.pod.uid if member.pod else ""
            yield Step(Action.REPLACE, group.number, member.number, reason, f"{message}; restored again", uid)
        elif _has_only_copy(wanted, group, member):
            message = f"{message}; not replaced because it holds the only copy"
            yield Hold(Action.REPLACE, group.number, member.number, "LastCopy", message)
        else:
            yield _guarded(observed, wanted, group, member, Action.REPLACE, reason, message)


def _has_only_copy(wanted: Wanted, group: Group, member: Member) -> bool:
    return voters_of(group) == (member.number,) or wanted.replicas == 1


def _why_replace(member: Member) -> tuple[str, str] | None:
    claim, pod = member.claim, member.pod
    stays = pod is not None and not pod.deleting
    if claim is None:
        return None  # the layout creates it without a step, and its pending pod uses it
    if claim.deleting:
        # Kubernetes schedules no pod onto a claim that is being deleted: the pod waits for the next claim.
        is_used = pod is not None and stays and bool(pod.node_name)
        return ("ClaimDeleted", "the claim is being deleted, but the pod still uses it") if is_used else None
    if claim.lost:
        return "ClaimLost", "the volume of the claim is lost"
    if member.replace:
        return "ReplaceAsked", "a replacement was requested by annotation"
    if pod is not None and stays and pod.started is not None and pod.started < claim.created:
        return "ClaimRenewed", "the pod still uses the volume of an earlier claim"
    return None


def _forced(observed: Observed, wanted: Wanted, group: Group) -> Iterator[Step | Hold]:
    for member in group.members:
        pod = member.pod
        if pod is None or pod.deleting_since is None or observed.now < pod.deleting_since + FORCE_SECONDS:
            continue
        if member.answer is not None or member.refused:
            continue  # it is running: its Kubernetes node responds and will confirm the deletion
        if group.leader is not None and not is_unreached(group, member):
            continue  # the leader reaches it: only the connection to the operator is broken
        where = f"Kubernetes node {pod.node_name} has not confirmed that the pod stopped"
        missing = without(group, member.number)
        if missing:
            yield Hold(Action.FORCE, group.number, member.number, "QuorumAtRisk", f"{where}; {missing}")
        else:
            yield Step(Action.FORCE, group.number, member.number, "MachineSilent", where, pod.uid)


# -- restarts ----------------------------------------------------------------------------------------------------------


def _unready_restarts(observed: Observed, wanted: Wanted, group: Group) -> Iterator[Step | Hold]:
    for member in group.members:
        if member.pod is None or member.pod.deleting or member.ready:
            continue
        if outdated(wanted, member):
            message = "the pod is outdated and not ready"
            yield _guarded(observed, wanted, group, member, Action.RESTART, "Outdated", message)
        elif _is_stuck(observed, group, member):
            yield _guarded(
                observed, wanted, group, member, Action.RESTART, "Stuck", "the member does not respond and is not ready"
            )


def _is_stuck(observed: Observed, group: Group, member: Member) -> bool:
    """Whether it runs and has been unresponsive for long, with healthy peers. The kubelet restarts other containers."""
    pod = member.pod
    if pod is None or not pod.running or pod.waiting or pod.unready_since is None:
        return False
    if (member.answer is not None and not member.answer.fatal) or member.refused:
        return False
    limit = min(STUCK_SECONDS * 2.0**member.stuck_restarts, LONGEST_STUCK_SECONDS)
    return observed.now - pod.unready_since >= limit and not without(group, member.number)


def _ready_restarts(observed: Observed, wanted: Wanted, group: Group) -> Iterator[Step | Hold]:
    leader = group.leader
    leads = leader.number if leader is not None else None
    for member in sorted(group.members, key=lambda each: (each.number == leads, each.number)):
        if member.ready and outdated(wanted, member):
            yield _guarded(observed, wanted, group, member, Action.RESTART, "Outdated", "the pod is outdated")


def _is_due(wanted: Wanted, member: Member) -> bool:
    """Whether the member is going to be stopped for an update, so that it had better not lead."""
    return outdated(wanted, member) or (member.group, member.number) in wanted.volumes


def _volume_changes(observed: Observed, wanted: Wanted, group: Group) -> Iterator[Step | Hold]:
    """Yields members whose volume differs from the spec, the leader last.

    While a pod is outdated, none is replaced: a template that does not start must cost no volume.
    """
    if group.number in wanted.restoring or any(outdated(wanted, each) for each in observed.members):
        return
    leads = group.leader.number if group.leader is not None else None
    for member in sorted(group.members, key=lambda each: (each.number == leads, each.number)):
        why = wanted.volumes.get((group.number, member.number))
        if not why:
            continue
        message = f"its volume differs from the spec ({why})"
        if (group.number, member.number) in wanted.stops:
            text = f"{message}; not replaced while it is fenced or the cluster hibernates"
            yield Hold(Action.REPLACE, group.number, member.number, "Stopped", text)
        elif _has_only_copy(wanted, group, member):
            text = f"{message}; not replaced because it holds the only copy: raise spec.replicas to 3 first"
            yield Hold(Action.REPLACE, group.number, member.number, "SingleMember", text)
        else:
            yield _guarded(observed, wanted, group, member, Action.REPLACE, "VolumeChanged", message)


def _guarded(
    observed: Observed, wanted: Wanted, group: Group, member: Member, action: Action, reason: str, message: str
) -> Step | Hold:
    """Returns a step that stops the pod of a member if the group can lose it; for a leader, its transfer first."""

    def hold(why: str, text: str) -> Hold:
        return Hold(action, group.number, member.number, why, f"{message}; {text}")

    template = wanted.templates.get((member.group, member.number))
    if action is Action.RESTART and (template is None or member.stateful_set != template):
        return hold("TemplateNotApplied", "the StatefulSet does not have the new template yet")
    step = Step(action, group.number, member.number, reason, message, member.pod.uid if member.pod else "")
    if member.ready:
        if absent := _other_unready(group, member):
            return hold("MemberNotReady", absent)
        if busy := _underway_elsewhere(observed, member):
            return hold("StepUnderway", busy)
        if action is Action.RESTART and tuple(voters_of(group)) == (member.number,) and not _goes_with_pod(member):
            return step
    elif _costs_nothing(observed, group, member, action):
        return step
    if missing := without(group, member.number):
        return hold("QuorumAtRisk", missing)
    if group.leader is not None and group.leader.number == member.number:
        return _moved(wanted, group, member, step)
    return step


def _costs_nothing(observed: Observed, group: Group, member: Member, action: Action) -> bool:
    """Whether stopping its pod does not weaken the group, and deletes no volume that may hold needed data."""
    claim = member.claim
    if (action is Action.REPLACE or _goes_with_pod(member)) and not (claim is not None and claim.lost):
        return False
    return takes_no_part(group, member) or _is_dead(observed, group)


def _goes_with_pod(member: Member) -> bool:
    """Whether its claim is being deleted and exists only as long as its pod."""
    return member.claim is not None and member.claim.deleting


def _moved(wanted: Wanted, group: Group, member: Member, step: Step) -> Step | Hold:
    """Returns the transfer of leadership that must precede the step, or a hold without a successor."""
    fresh = [each.number for each in group.members if not _is_due(wanted, each)]
    to = successor(group, member.number, range(wanted.replicas), fresh)
    if to is None:
        text = f"{step.message}; it is the leader and no healthy member can take over"
        return Hold(step.action, group.number, member.number, "NoSuccessor", text)
    message = f"{step.message}; it is the leader, so n{to} takes over first"
    return Step(Action.MOVE, group.number, member.number, step.reason, message, to=to)


def _underway_elsewhere(observed: Observed, member: Member) -> str:
    """Returns why a disruptive step of another member is still in progress; empty: no such step."""
    step = observed.underway
    if step is None or step.action not in (Action.RESTART.value, Action.REPLACE.value, Action.FORCE.value):
        return ""
    for other in observed.members:
        is_target = step.target.endswith(f"-{other.group}-{other.number}")
        if (
            is_target
            and other.exists
            and not other.ready
            and not other.stopped
            and (other.group, other.number) != (member.group, member.number)
        ):
            return f"{step.target} is not ready yet after {step.action}"
    return ""


def _other_unready(group: Group, member: Member) -> str:
    absent = [
        f"n{other.number}" + (" (fenced)" if other.stopped else "")
        for other in group.members
        if other.number != member.number and not other.ready and other.exists
    ]
    return f"{', '.join(absent)} of the same group not ready" if absent else ""


def _is_dead(observed: Observed, group: Group) -> bool:
    """Whether no pod has been ready for long: the group serves no clients and has no quorum to keep."""
    pods = [member.pod for member in group.members if member.pod is not None]
    return group.leader is None and all(
        pod.unready_since is not None and observed.now - pod.unready_since >= DEAD_SECONDS for pod in pods
    )


# -- members -----------------------------------------------------------------------------------------------------------


def _additions(observed: Observed, wanted: Wanted, group: Group) -> Iterator[Step | Hold]:
    """Yields one addition at a time: a learner is promoted or removed before another one is added."""
    if not is_settled(group):
        return
    voters, learners = voters_of(group), learners_of(group)
    for number in range(wanted.replicas):
        member = group.member(number)
        if member is None or number in voters:
            continue
        if number in learners:
            yield _promotion(group, member)
        elif not learners and member.answer is not None and member.pod is not None and not member.pod.deleting:
            yield Step(Action.ADD, group.number, number, "Wanted", "not a member yet; adding it as a learner")
            return


def _promotion(group: Group, member: Member) -> Step | Hold:
    leader = group.leader
    peer = leader.answer.peer(member.number) if leader is not None and leader.answer is not None else None

    def hold(text: str) -> Hold:
        return Hold(Action.PROMOTE, group.number, member.number, "CatchingUp", text)

    if peer is None or not peer.connected or not member.ready:
        return hold("the learner is not connected or not ready")
    if not peer.sound or not close(peer.lag_bytes):
        return hold("the learner is still catching up")
    voters = voters_of(group)
    if sum(sound(group, voter) for voter in voters) + 1 < majority(len(voters) + 1):
        return hold("too few voters are healthy to add another one")
    return Step(
        Action.PROMOTE, group.number, member.number, "CaughtUp", "the learner has caught up and becomes a voter"
    )


def _removals(observed: Observed, wanted: Wanted, group: Group) -> Iterator[Step | Hold]:
    """Yields removals, the highest number first."""
    voters, learners = voters_of(group), learners_of(group)
    for number in sorted((*voters, *learners), reverse=True):
        if number < wanted.replicas:
            continue
        step = Step(Action.REMOVE, group.number, number, "NotWanted", "spec.replicas no longer includes this member")
        if not is_settled(group):
            text = "a membership change is not committed yet"
            yield Hold(Action.REMOVE, group.number, number, "ChangeOpen", text)
        elif number in learners:
            yield step
        else:
            yield _removal(observed, wanted, group, step)
        return  # one removal at a time


def _removal(observed: Observed, wanted: Wanted, group: Group, step: Step) -> Step | Hold:
    voters = voters_of(group)
    member = group.member(step.member)

    def hold(why: str, text: str) -> Hold:
        return Hold(Action.REMOVE, group.number, step.member, why, f"{step.message}; {text}")

    missing = [f"n{number}" for number in range(wanted.replicas) if number not in voters]
    if missing:
        return hold("WantedMembersMissing", f"{', '.join(missing)} cannot vote yet")
    remaining = [voter for voter in voters if voter != step.member]
    good, needed = sum(sound(group, voter) for voter in remaining), majority(len(remaining))
    if good < needed:
        return hold(
            "QuorumAtRisk", f"only {good} of the {len(remaining)} remaining voters are healthy; {needed} are required"
        )
    if member is not None and (busy := _underway_elsewhere(observed, member)):
        return hold("StepUnderway", busy)
    if group.leader is not None and group.leader.number == step.member and member is not None:
        return _moved(wanted, group, member, step)
    return step


def _deletions(observed: Observed, wanted: Wanted, group: Group) -> Iterator[Step | Hold]:
    members = {*voters_of(group), *learners_of(group)}
    for member in reversed(group.members):
        if member.number < wanted.replicas or member.node_uid is None:
            continue
        if is_settled(group) and member.number not in members:
            message = "the member has left the group; its claim is kept"
            yield Step(Action.DELETE, group.number, member.number, "LeftGroup", message, member.node_uid)
