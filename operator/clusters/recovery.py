"""A new cluster starts from backups: which groups are being restored, what hinders it, and what users are told. Pure.

The pod of the first member of each group, n0, has an init container that restores the backup into its claim, until the
group has formed. n0 is the only initial voter and is not bootstrapped: the restored store elects itself. The other
members are created afterwards and join as learners. All claims of the group have the annotation
`tallystick.dev/recovered` with the UID of the cluster, before anything is written to a volume. So a volume without it
is one of an earlier cluster, and nothing is restored over it.

`Recovered` in the status is final: afterwards `spec.bootstrap` has no effect, and a group that is added is a new one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tallystick.operator.clusters.observed import Group, Hindrance, Member, Observed
from tallystick.operator.clusters.recovery_source import Problem, Restore, Source, restore
from tallystick.operator.clusters.spec import Cluster
from tallystick.operator.core.conditions import Condition
from tallystick.operator.core.kube import Json
from tallystick.operator.core.names import Names

RECOVERED_CONDITION = "Recovered"
FIRST = 0
"""The member of each group that is restored."""
TAIL_LINES, TAIL_CHARACTERS = 3, 600


def told_before(cluster: Json) -> str:
    """Returns the status of the condition `Recovered` of a BrokerCluster; empty: it has none. `True` is final."""
    conditions = (cluster.get("status") or {}).get("conditions") or ()
    return next((str(each.get("status") or "") for each in conditions if each.get("type") == RECOVERED_CONDITION), "")


def is_active(cluster: Cluster, observed: Observed) -> bool:
    """Whether the spec asks for a recovery that is not over."""
    return cluster.spec.recovery is not None and observed.recovered_before != "True"


def is_pending(cluster: Cluster, observed: Observed, group: Group) -> bool:
    """Whether a group is to be restored, or is being restored: it must not be bootstrapped."""
    return not group.formed and (is_active(cluster, observed) or bool(group.recovered))


def pending_groups(cluster: Cluster, observed: Observed) -> frozenset[int]:
    """Returns the numbers of these groups."""
    return frozenset(group.number for group in observed.groups if is_pending(cluster, observed, group))


def mark_of(cluster: Cluster, observed: Observed, group: Group) -> str:
    """Returns the value of the annotation `recovered` for the claims of a group; empty: they have none."""
    return group.recovered or (cluster.uid if is_pending(cluster, observed, group) else "")


def hindrance(
    cluster: Cluster, groups: Sequence[Group], source: Source | Problem | None, *, is_over: bool
) -> Hindrance | None:
    """Returns why groups are not restored; None: nothing hinders it. `is_over`: the recovery has been completed."""
    names = Names(cluster.namespace, cluster.name)
    waiting = frozenset(each.number for each in groups if not each.formed and _begun(each) is None)
    if cluster.spec.recovery is None or is_over:
        left = [each for each in groups if each.number in waiting and each.recovered]
        claims = [
            names.claim(group.number, member.number) for group in left for member in group.members if member.claim
        ]
        if not left:
            return None
        message = (
            f"a recovery into {', '.join(claims)} did not finish, and spec.bootstrap no longer asks for it: delete "
            "these claims to begin with an empty group"
        )
        return Hindrance("RecoveryUnfinished", message, frozenset(each.number for each in left))
    foreign = [
        names.claim(group.number, member.number)
        for group in groups
        if not (group.formed and _is_own(cluster, group))
        for member in group.members
        if member.claim is not None and member.claim.recovered != cluster.uid
    ]
    if foreign:
        others = frozenset(each.number for each in groups if not _is_own(cluster, each))
        message = (
            f"claims of an earlier cluster exist: {_listed(foreign)}. Nothing is restored over them: delete them, or "
            "remove spec.bootstrap to start with their messages"
        )
        return Hindrance("VolumesExist", message, others | waiting)
    if waiting and not isinstance(source, Source):
        problem = source or Problem("SourceMissing", "the source was not read")
        return Hindrance(problem.reason, problem.message, waiting, problem.waits)
    return None


def _begun(group: Group) -> Restore | None:
    """Returns what the StatefulSet of its first member restores; None: nothing was started."""
    first = group.member(FIRST)
    return first.restore if first is not None else None


def _is_own(cluster: Cluster, group: Group) -> bool:
    return any(member.claim is not None and member.claim.recovered == cluster.uid for member in group.members)


def held(observed: Observed, group: Group) -> str:
    """Returns what the claims and StatefulSets of a group wait for; empty: they can be written."""
    found = observed.hindrance
    return found.message if found is not None and group.number in found.groups else ""


def restore_for(cluster: Cluster, observed: Observed, group: Group, number: int) -> Restore | None:
    """Returns what the pod of a member restores before it starts; None: nothing."""
    spec = cluster.spec
    if number != FIRST or not is_pending(cluster, observed, group):
        return None
    source = observed.source
    if spec.recovery is not None and isinstance(source, Source) and group.number < len(source.addresses):
        return restore(
            source,
            spec.recovery,
            Names(cluster.namespace, cluster.name),
            group.number,
            uid=cluster.uid,
            image=spec.image,
            pull_policy=spec.image_pull_policy,
            segment_bytes=spec.storage.segment_bytes,
            resources=spec.placement.resources,
        )
    begun = _begun(group)
    if begun is None:
        return None
    return Restore({**begun.container, "image": spec.image, "imagePullPolicy": spec.image_pull_policy}, begun.volumes)


# -- what users are told -----------------------------------------------------------------------------------------------


def recovered_condition(cluster: Cluster, observed: Observed) -> Condition | None:
    """Returns the condition `Recovered`; None: the cluster did not start from a backup."""
    done = Condition(RECOVERED_CONDITION, True, "Recovered", "all groups started from their backups")
    pending = [group for group in observed.groups if is_pending(cluster, observed, group)]
    if observed.hindrance is not None and not observed.hindrance.adopts:
        return Condition(RECOVERED_CONDITION, False, observed.hindrance.reason, observed.hindrance.message)
    if observed.recovered_before == "True":
        return done
    if not pending:
        return done if is_active(cluster, observed) or observed.recovered_before else None
    names = Names(cluster.namespace, cluster.name)
    firsts = [(names.node(group.number, FIRST), group.member(FIRST)) for group in pending]
    failed = [f"{name}: {failure}" for name, member in firsts if (failure := _failure(member))]
    if failed:
        return Condition(RECOVERED_CONDITION, False, "RestoreFailed", "; ".join(failed))
    unstarted = [f"{name}: {failure}" for name, member in firsts if (failure := _start_failure(member))]
    if unstarted:
        return Condition(RECOVERED_CONDITION, False, "StartFailed", "; ".join(unstarted))
    begun = any(member is not None and member.pod is not None and _has_run(member) for _, member in firsts)
    if isinstance(observed.source, Problem) and not begun:
        return Condition(RECOVERED_CONDITION, False, observed.source.reason, observed.source.message)
    told = [f"{name}: {_progress(cluster, member)}" for name, member in firsts]
    return Condition(RECOVERED_CONDITION, False, "Restoring", _listed(told))


def recovery_events(cluster: Cluster, observed: Observed) -> list[tuple[str, str, bool]]:
    """Returns the events about a recovery: reason, message, and whether it is a warning."""
    found = recovered_condition(cluster, observed)
    if found is None or (found.status and observed.recovered_before == "True"):
        return []
    names = Names(cluster.namespace, cluster.name)
    if found.status:
        results = [
            f"{names.node(group.number, FIRST)}: {text}" for group in observed.groups if (text := _result(group))
        ]
        return [("Recovered", "; ".join([found.message, *results]), False)]
    if found.reason == "Restoring":
        where = ", ".join(names.node(number, FIRST) for number in sorted(pending_groups(cluster, observed)))
        return [("Restoring", f"restoring backups into {where}", False)]
    waits = observed.hindrance is not None and observed.hindrance.waits
    return [(found.reason, found.message, not waits)]


def _has_run(member: Member) -> bool:
    pod = member.pod
    return pod is not None and (pod.init_running or pod.init_ended is not None)


def _failure(member: Member | None) -> str:
    """Returns the end of what the last attempt said, if it failed and no other one runs; empty: it did not."""
    pod = member.pod if member is not None else None
    if pod is None or pod.init_running or not pod.init_ended:
        return ""
    return f"exit status {pod.init_ended}: {tail(pod.init_message)}"


def _start_failure(member: Member | None) -> str:
    """Returns why the broker does not start on the restored store; empty: it does, or was not restored yet."""
    pod = member.pod if member is not None else None
    if member is None or pod is None or pod.init_ended != 0:
        return ""
    if pod.waiting:
        return f"{pod.waiting}: {pod.message}"
    return member.answer.fatal if member.answer is not None else ""


def _progress(cluster: Cluster, member: Member | None) -> str:
    if cluster.hibernating or (member is not None and member.stopped):
        return "stopped by a user"
    pod = member.pod if member is not None else None
    if member is None or pod is None:
        return "the pod does not exist yet"
    if pod.init_running:
        return "restoring" + (f"; the attempt before failed: {tail(pod.init_message)}" if pod.init_ended else "")
    if pod.waiting:
        return f"{pod.waiting}: {pod.message}"
    if pod.init_ended == 0:
        return "restored; the broker starts" + (f" ({member.refused})" if member.refused else "")
    return "the pod starts"


def _result(group: Group) -> str:
    """Returns what the restore of a group reported; empty: it is not known, because its pod was replaced."""
    first = group.member(FIRST)
    pod = first.pod if first is not None else None
    if pod is None or pod.init_ended != 0:
        return ""
    try:
        result = json.loads(pod.init_message)
        notes = [str(note) for note in result.get("notes") or ()]
        return "; ".join([f"{int(result['messages'])} records from the backup {result['backup']}", *notes])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def tail(message: str) -> str:
    """Returns the last lines of a termination message."""
    lines = [line.strip() for line in message.splitlines() if line.strip()][-TAIL_LINES:]
    return " | ".join(lines)[-TAIL_CHARACTERS:] or "no message"


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - 5} more" if len(texts) > 5 else ""
    return ", ".join(texts[:5]) + more
