"""A cluster takes the places of RocketMQ masters: what a group is started as, and what it does next. Pure.

All members of a group start with `brokerRole=SLAVE` and the name of a master. The group copies the log of the master
until it is told to take its place (`POST /promotion` of the leader, which also fences the master). Whether it follows
or was promoted is in the log of the group. So nothing here is remembered that decides who the master is.

All claims of a group have the annotations `tallystick.dev/adopted`, the UID of the cluster, and `broker-name`, before a
member starts. A volume without the UID is one of an earlier cluster: no copy is written to it. The name is for good:
clients know the queues of the group by it.

`Adopted` in the status is final: afterwards `spec.adoptFrom` only names further name servers at which brokers register.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tallystick.operator.clusters.adoption_plan import AdoptionPlan
from tallystick.operator.clusters.adoption_source import AdoptSpec
from tallystick.operator.clusters.observed import AdoptionRow, Copy, Group, Hindrance, Observed
from tallystick.operator.clusters.quorum import is_settled, voters_of
from tallystick.operator.clusters.recovery_source import Problem
from tallystick.operator.clusters.spec import Cluster
from tallystick.operator.core.kube import Json
from tallystick.operator.core.names import Names

ADOPTED_CONDITION, READY_CONDITION = "Adopted", "AdoptionReady"
GROUPS_WAIT = "GroupsWait"
"""Reason of the conditions of a cluster that gets more groups during the adoption, which hinders only these."""
FOLLOWING, PROMOTED = "following", "promoted"
MOST_ATTEMPTS = 3
"""Switches of a group that may fail. Each one keeps producers waiting, so a user decides about more of them."""
ATTEMPT_SECONDS = 60.0
"""Time until a failed switch is tried again. Doubled after each."""
CONTINUE_SECONDS = 5.0
"""The same while the master is fenced: its producers wait."""
REHEARSAL_SECONDS = 600.0
"""A comparison with the master that is older is repeated before the switch."""
AGAIN_SECONDS = 60.0
"""Time until a rehearsal that failed is repeated."""
VERIFY_SECONDS = 150.0
"""Consumers commit offsets to the old master for a while, and the group takes them for two minutes."""
VERIFY_AGAIN_SECONDS = 10.0
REHEARSAL, _VERIFICATION = "rehearsal: ", "verification: "
"""Prefixes of errors."""
DIFFERS = "differs: "
"""Prefix of a verification that found a difference."""
SAMPLE = 200
"""Messages that a rehearsal or a verification compares."""


class Turn(NamedTuple):
    """What a group does next. `action`: a value of `decide.Action`."""

    action: str
    reason: str
    message: str


SWITCH, TAKE_BACK, REHEARSE, VERIFY = "SwitchGroup", "TakeBackFence", "RehearseSwitch", "VerifyGroup"


# -- what belongs to an adoption ---------------------------------------------------------------------------------------


def told_before(cluster: Json) -> str:
    """Returns the status of the condition `Adopted` of a BrokerCluster; empty: it has none. `True` is final."""
    conditions = (cluster.get("status") or {}).get("conditions") or ()
    return next((str(each.get("status") or "") for each in conditions if each.get("type") == ADOPTED_CONDITION), "")


def is_active(cluster: Cluster, observed: Observed) -> bool:
    """Whether the spec asks for an adoption that is not over."""
    return cluster.spec.adopt is not None and observed.adopted_before != "True"


def concerned(cluster: Cluster, observed: Observed) -> list[Group]:
    """Returns the groups that take, or are to take, the place of a master, until the adoption is over."""
    if observed.adopted_before == "True":
        return []
    planned = observed.plan.brokers if isinstance(observed.plan, AdoptionPlan) and cluster.spec.adopt else {}
    return [group for group in observed.groups if group.adopted or (group.number in planned and not group.formed)]


def follows(cluster: Cluster, observed: Observed, group: Group) -> bool:
    """Whether its members start with `brokerRole=SLAVE`.

    Until the whole adoption is over: the first leader of a new group decides for good, and a leader that is killed
    early leaves the decision to the next one.
    """
    return observed.adopted_before != "True" and bool(mark_of(cluster, observed, group))


def mark_of(cluster: Cluster, observed: Observed, group: Group) -> str:
    """Returns the value of the annotation `adopted` for the claims of a group; empty: they have none."""
    if group.adopted or group.formed or not is_active(cluster, observed):
        return group.adopted
    return cluster.uid if name_of(cluster, observed, group) else ""


def name_of(cluster: Cluster, observed: Observed, group: Group) -> str:
    """Returns the broker name that a group takes over; empty: it has its own one."""
    if group.broker_name:
        return group.broker_name
    row = observed.rows.get(group.number)
    lasts = observed.adopted_before == "True" or is_active(cluster, observed)
    if row is not None and row.broker_name and lasts:
        return row.broker_name  # all its claims were deleted
    broker = observed.plan.brokers.get(group.number) if isinstance(observed.plan, AdoptionPlan) else None
    return broker.name if broker is not None else ""


def hindrance(
    cluster: Cluster, groups: Sequence[Group], plan: AdoptionPlan | Problem | None, *, is_over: bool
) -> Hindrance | None:
    """Returns why groups do not begin to copy; None: nothing hinders it. `is_over`: the adoption has been completed."""
    names = Names(cluster.namespace, cluster.name)
    waiting = frozenset(each.number for each in groups if not each.formed and not _has_begun(each))
    if cluster.spec.adopt is None or is_over:
        left = [] if is_over else [each for each in groups if each.number in waiting and each.adopted]
        if not left:
            return None
        message = (
            f"the claims {_listed(_claims(names, left))} were made for an adoption, and spec.adoptFrom no longer asks "
            "for it: delete these claims to begin with an empty group"
        )
        return Hindrance("AdoptionUnfinished", message, frozenset(each.number for each in left), adopts=True)
    foreign = [each for each in groups if any(member.claim for member in each.members) and each.adopted != cluster.uid]
    if foreign:
        message = (
            f"claims of an earlier cluster exist: {_listed(_claims(names, foreign))}. No log is copied over them: "
            "delete them, or remove spec.adoptFrom to start with their messages"
        )
        return Hindrance("VolumesExist", message, waiting | {each.number for each in foreign}, adopts=True)
    if waiting and not isinstance(plan, AdoptionPlan):
        problem = plan or Problem("PlanPending", "the old name servers were not asked yet", waits=True)
        if problem.reason == "GroupsMismatch" and len(waiting) < len(groups):
            told = _listed(names.group(number) for number in sorted(waiting))
            problem = Problem(GROUPS_WAIT, f"{told}: a group is added when the adoption is over", waits=True)
        return Hindrance(problem.reason, problem.message, waiting, problem.waits, adopts=True)
    return None


def _has_begun(group: Group) -> bool:
    return any(member.stateful_set is not None for member in group.members)


def _claims(names: Names, groups: Iterable[Group]) -> list[str]:
    return [names.claim(each.number, member.number) for each in groups for member in each.members if member.claim]


# -- what is next ------------------------------------------------------------------------------------------------------


def copy_of(group: Group) -> Copy | None:
    """Returns what the leader of a group says about the copy; None: it says nothing, or there is no leader."""
    return group.leader.copy if group.leader is not None else None


def is_promoted(group: Group) -> bool:
    """Whether any member says that the group has taken the place of its master, which is final."""
    return any(member.copy is not None and member.copy.state == PROMOTED for member in group.members)


def unready(group: Group, replicas: int) -> str:
    """Returns why a group that follows cannot take the place of its master now; empty: it can."""
    copy = copy_of(group)
    if group.leader is None:
        return "no member leads"
    if copy is None:
        return "the leader does not tell what it copies"
    if copy.state != FOLLOWING:
        return f"{copy.state}: {copy.reason}" if copy.reason else copy.state
    if not is_settled(group) or set(voters_of(group)) != set(range(replicas)):
        return "not all members vote yet"
    absent = [f"n{each.number}" for each in group.members if each.number < replicas and not each.ready]
    return f"{', '.join(absent)} not ready" if absent else ""


def turn(adopt: AdoptSpec, observed: Observed, groups: Sequence[Group], group: Group, replicas: int) -> Turn | None:
    """Returns what a group of `groups`, which are those of the adoption, does next; None: it waits or is done."""
    row, copy = observed.rows.get(group.number, AdoptionRow()), copy_of(group)
    if copy is None:
        return None
    if copy.state == PROMOTED:
        pauses = row.error.startswith(_VERIFICATION) and observed.now < (row.compared or 0.0) + VERIFY_AGAIN_SECONDS
        if row.verification or pauses:
            return None
        return Turn(VERIFY, "Promoted", "the group is the master; it is compared with the old one")
    if copy.fenced:
        return _behind_fence(adopt, observed.now, row, copy)
    if unready(group, replicas):
        return None
    if row.attempts < MOST_ATTEMPTS and _is_rehearsal_due(adopt, observed.now, row):
        return Turn(REHEARSE, "Following", f"the copy is compared with the master {copy.master}")
    if not adopt.automatic or row.attempts >= MOST_ATTEMPTS:
        return None
    pause = ATTEMPT_SECONDS * 2.0 ** (row.attempts - 1) if row.attempts else CONTINUE_SECONDS
    if row.attempted is not None and observed.now < row.attempted + pause:
        return None
    return _switch(copy) if _is_first(adopt, observed, groups, group, replicas) else None


def _behind_fence(adopt: AdoptSpec, now: float, row: AdoptionRow, copy: Copy) -> Turn | None:
    """Returns the next of a group whose master is fenced, so that producers wait: the switch continues, or it ends."""
    if not adopt.automatic or row.attempts >= MOST_ATTEMPTS or copy.lasting:
        return Turn(TAKE_BACK, "SwitchEnded", f"the switch ended, and {copy.master} is still fenced")
    if copy.state != FOLLOWING or (row.attempted is not None and now < row.attempted + CONTINUE_SECONDS):
        return None
    return _switch(copy)


def _switch(copy: Copy) -> Turn:
    return Turn(SWITCH, "Ready", f"takes the place of the master {copy.master}")


def _is_rehearsal_due(adopt: AdoptSpec, now: float, row: AdoptionRow) -> bool:
    if row.compared is None:
        return True
    age = now - row.compared
    return age >= AGAIN_SECONDS if not row.rehearsal else adopt.automatic and age >= REHEARSAL_SECONDS


def _is_first(adopt: AdoptSpec, observed: Observed, groups: Sequence[Group], group: Group, replicas: int) -> bool:
    """Whether this group is the next one to be switched: the first that is left, and the one before has rested.

    A producer of several brokers must not find two of them fenced. No group begins before all of them can.
    """
    left = [each for each in groups if not is_promoted(each)]
    if not left or left[0].number != group.number or any(unready(each, replicas) for each in left):
        return False
    rows = [observed.rows.get(each.number, AdoptionRow()) for each in groups]
    if any(not row.rehearsal for row, each in zip(rows, groups, strict=True) if not is_promoted(each)):
        return False
    switched = [row.switched for row in rows if row.switched is not None]
    return not switched or observed.now >= max(switched) + adopt.pause_seconds


# -- what was found ----------------------------------------------------------------------------------------------------


def rehearsed(row: AdoptionRow, answer: Json, now: float) -> AdoptionRow:
    """Returns the row after a comparison with the master that is followed. KeyError, TypeError, ValueError."""
    problems, behind = [str(each) for each in answer["problems"]], int(answer["behind"])
    told = _compared(answer)
    if problems:
        return row.with_changes(compared=now, rehearsal="", behind=behind, error=f"{REHEARSAL}{'; '.join(problems)}")
    error = "" if row.error.startswith(REHEARSAL) else row.error
    return row.with_changes(compared=now, rehearsal=told, behind=behind, error=error)


def verified(row: AdoptionRow, answer: Json, now: float) -> AdoptionRow:
    """Returns the row after a comparison with the old master. KeyError, TypeError, ValueError."""
    problems = [str(each) for each in answer["problems"]]
    behind, late = int(answer["behind"]), int(answer["lateOffsets"])
    if behind:
        problems.append(f"{behind} messages of {answer['with']} are missing")
    if late:
        problems.append(f"{late} offsets of consumers are lower than at {answer['with']}")
    if problems and row.switched is not None and now < row.switched + VERIFY_SECONDS:
        return row.with_changes(compared=now, error=f"{_VERIFICATION}{'; '.join(problems)}")
    told = f"{DIFFERS}{'; '.join(problems)}" if problems else _compared(answer)
    return row.with_changes(verification=told, error="")


def unverified(row: AdoptionRow, why: str, now: float) -> AdoptionRow:
    """Returns the row after a comparison that was not possible. An old master may have been stopped for good."""
    if row.switched is not None and now < row.switched + VERIFY_SECONDS:
        return row.with_changes(compared=now, error=f"{_VERIFICATION}{why}")
    return row.with_changes(verification=f"nothing to compare with: {why}", error="")


def _compared(answer: Json) -> str:
    queues, offsets, sampled = int(answer["queues"]), int(answer["offsets"]), int(answer["sampled"])
    return f"{queues} queues, {offsets} offsets and {sampled} messages compared with {answer['with']}"


def copy_from(answer: Any) -> Copy | None:
    """Parses the body of GET /node; None: it says nothing about a copy. KeyError, TypeError, ValueError."""
    copy = answer.get("copy")
    if copy is None:
        return None
    behind = copy.get("behindBytes")
    return Copy(
        state=str(copy["state"]),
        reason=str(copy.get("reason") or ""),
        lasting=bool(copy.get("lasting")),
        master=str(copy.get("master") or ""),
        behind_bytes=None if behind is None else int(behind),
        fenced=bool(copy.get("fenced")),
    )


def _listed(texts: Iterable[str]) -> str:
    found = list(texts)
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(found[:5]) + more
