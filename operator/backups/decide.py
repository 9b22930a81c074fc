"""The next state of a Backup. Pure: it follows from the Backup, its status and the observed state.

Each group goes through its phases alone. The status names attempt and member before the Job of the attempt is created,
and contains how an attempt ended before its Job is deleted. So an interrupted pass is continued, and never repeated.

    Pending     a ready member that is not fenced is chosen: followers first, the next attempt takes the next one, the
                leader is last; it waits for the end of a hibernation, which the deadline does not count
    Running     the Job creates the backup
    Verifying   with spec.verify: a Job reads the stored objects
    Completed, Failed
    Deleting    with deletionPolicy Delete, when the Backup is deleted: a Job deletes the stored backup
    Deleted
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from tallystick.operator.backups import reasons
from tallystick.operator.backups.observed import Attempt, Ended, Seen
from tallystick.operator.backups.reasons import ACTIVE, OVER, Phase
from tallystick.operator.backups.spec import Backup
from tallystick.operator.core.kube import Json
from tallystick.operator.core.members import (
    CLUSTER_HIBERNATED,
    ONE_POD,
    Refusal,
    access_modes,
    cluster_refusal,
    group_count,
)
from tallystick.operator.core.names import FORMED, Names, fenced_of, hibernates, is_fenced, is_set, is_store, numbers_of
from tallystick.operator.core.times import seconds, timestamp

MAX_ATTEMPTS = 6
"""Attempts of a group before the backup fails."""
GROUPS_AT_ONCE = 4
START_SECONDS = 120.0
"""Time for a pod to start, for example on the Kubernetes node that has both volumes; then another member is tried."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 10.0, 300.0
"""Wait before another attempt, doubled after each one."""
SUFFIX = {Phase.RUNNING: "", Phase.VERIFYING: "-verify", Phase.DELETING: "-delete"}
RESULT_FIELDS = ("address", "begin", "committed", "bytes", "newBytes", "lastStoreTimestamp")
MAX_TOLD = 500


@dataclass(frozen=True, slots=True)
class Decision:
    """`groups`: the next `status.groups`. `release`: remove the finalizer; `mark`: add it."""

    phase: Phase
    groups: tuple[Json, ...] = ()
    reason: str = ""
    message: str = ""
    mark: bool = False
    release: bool = False
    asleep: bool = False
    """The cluster hibernates, and the backup waits for it."""
    told: tuple[tuple[str, str], ...] = ()
    """Warnings for events: reason and message."""

    def wanted(self, backup: Backup) -> dict[str, Json]:
        """Returns the groups that need a Job now, by the name of the Job."""
        return {job_name(backup, each): each for each in self.groups if each["phase"] in ACTIVE}


def job_name(backup: Backup, group: Json) -> str:
    """Returns the name of the Job of the current attempt of an active group."""
    return f"{backup.name}-{group['group']}-{group['attempt']}{SUFFIX[Phase(group['phase'])]}"


def decide(backup: Backup, seen: Seen) -> Decision:
    """Returns the next state."""
    if backup.deleting:
        return _deletion(backup, seen)
    groups = [dict(group) for group in backup.status.get("groups") or ()]
    if backup.phase in OVER:
        mark = backup.deletes and not backup.marked and any(group.get("address") for group in groups)
        return Decision(Phase(backup.phase), tuple(groups), str(backup.status.get("reason") or ""), mark=mark)
    refusal = _refusal(backup, seen)
    if not groups and refusal is None:
        assert seen.cluster is not None
        wanted = backup.groups if backup.groups is not None else range(group_count(seen.cluster))
        names = Names(backup.namespace, backup.cluster)
        groups = [
            {"group": each, "name": names.group(each), "phase": str(Phase.PENDING), "attempt": 0} for each in wanted
        ]
    asleep = refusal is not None and refusal.reason == CLUSTER_HIBERNATED
    if not asleep and seen.now >= backup.created + backup.deadline_seconds + slept(backup, seen.now):
        return _expired(backup, seen, groups, refusal)
    told: list[tuple[str, str]] = []
    waits: list[Refusal] = [] if refusal is None else [refusal]
    for group in groups:
        _advance(backup, seen, group, told)
    for group in groups:
        pending = group["phase"] == Phase.PENDING and refusal is None
        if pending and (problem := _begin(backup, seen, group, groups)):
            waits.append(problem)
    decision = _summed(backup, groups, waits, told)
    return replace(decision, asleep=asleep and decision.phase not in OVER)


def slept(backup: Backup, now: float) -> float:
    """Returns the seconds that the backup has waited for the end of hibernations."""
    since = seconds(backup.status.get("hibernatedSince"))
    return backup.hibernated_seconds + (0.0 if since is None else max(0.0, now - since))


def _refusal(backup: Backup, seen: Seen) -> Refusal | None:
    """Returns why no attempt can start now."""
    if refusal := cluster_refusal(backup.cluster, seen.cluster, backup.groups):
        return refusal
    if backup.place.claim and seen.destination is None:
        told = f"PersistentVolumeClaim {backup.place.claim!r} for the backup does not exist"
        return Refusal(reasons.DESTINATION_MISSING, told)
    if seen.destination is not None and is_store(seen.destination):
        told = f"{backup.place.claim!r} is the volume of a broker; backups are never written to it"
        return Refusal(reasons.DESTINATION_IS_STORE, told)
    return None


# -- one group ---------------------------------------------------------------------------------------------------------


def _begin(backup: Backup, seen: Seen, group: Json, groups: list[Json]) -> Refusal | None:
    """Starts the next attempt of a pending group, if it is due. Returns why none can start."""
    if (
        seen.now < (seconds(group.get("retryTime")) or 0.0)
        or sum(g["phase"] in ACTIVE for g in groups) >= GROUPS_AT_ONCE
    ):
        return None
    members = candidates(backup, seen, group["group"])
    if not members:
        told = f"{group['name']}: no member is ready whose volume can be mounted"
        if fenced := [name for name in _of_group(seen, group["group"]) if _is_fenced(seen, name)]:
            told += f"; fenced: {', '.join(fenced)}"
        return Refusal(reasons.NO_MEMBER_READY, told)
    group |= {
        "phase": str(Phase.RUNNING),
        "node": members[group["attempt"] % len(members)],
        "attempt": group["attempt"] + 1,
        "attemptTime": timestamp(seen.now),
    }
    group.setdefault("startTime", group["attemptTime"])
    group.pop("retryTime", None)
    return None


def candidates(backup: Backup, seen: Seen, group: int) -> list[str]:
    """Returns the BrokerNodes that can be backed up, followers first."""
    found, names = [], Names(backup.namespace, backup.cluster)
    for name, node in sorted(seen.nodes.items()):
        spec, status = node.get("spec") or {}, node.get("status") or {}
        if spec.get("group") != group or node["metadata"].get("deletionTimestamp") or status.get("phase") != "Ready":
            continue
        if _is_fenced(seen, name):
            continue  # it is about to stop: the phase is written later
        claim = seen.claims.get(names.claim(group, int(spec["member"])))
        if claim is None or _gone(claim) or not is_set(claim["metadata"], FORMED):
            continue
        if ONE_POD in access_modes(claim):
            continue
        if status.get("role") in ("Follower", "Leader"):
            found.append((status["role"] == "Leader", name))
    return [name for _, name in sorted(found)]


def _of_group(seen: Seen, group: int) -> list[str]:
    return [name for name, node in sorted(seen.nodes.items()) if (node.get("spec") or {}).get("group") == group]


def _is_fenced(seen: Seen, node: str) -> bool:
    return seen.cluster is not None and is_fenced(fenced_of(seen.cluster["metadata"]), node)


def _gone(claim: Json | None) -> bool:
    return claim is None or bool(claim["metadata"].get("deletionTimestamp"))


def _advance(backup: Backup, seen: Seen, group: Json, told: list[tuple[str, str]]) -> None:
    """Evaluates the attempt of an active group."""
    if group["phase"] not in ACTIVE:
        return
    attempt = seen.attempts.get(job_name(backup, group))
    if attempt is not None and attempt.own and attempt.ended is not None:
        _conclude(backup, seen, group, attempt.ended, told)
    elif why := _cancelled(backup, seen, group, attempt):
        _fail(seen, group, why, told)


def _cancelled(backup: Backup, seen: Seen, group: Json, attempt: Attempt | None) -> str:
    """Returns why an attempt that has not ended is given up; empty: it continues."""
    if group["phase"] == Phase.RUNNING:
        claim = seen.claims.get(Names(backup.namespace, backup.cluster).claim(*numbers_of(group["node"])))
        if _gone(claim):
            return f"the volume of {group['node']} is being deleted"
        started = attempt is not None and attempt.started
        if not started and _is_fenced(seen, group["node"]):
            return f"{group['node']} is fenced"
        if not started and seen.cluster is not None and hibernates(seen.cluster["metadata"]):
            return f"{group['node']} stops, because the cluster hibernates"
    if attempt is not None and attempt.own and not attempt.started and seen.now >= attempt.created + START_SECONDS:
        return f"the pod did not start: {attempt.waiting or 'Kubernetes reports no reason'}"
    return ""


def _conclude(backup: Backup, seen: Seen, group: Json, ended: Ended, told: list[tuple[str, str]]) -> None:
    result = _result(ended.message)
    match Phase(group["phase"]):
        case Phase.RUNNING if ended.code == 0 and isinstance(result.get("address"), str):
            group |= {name: result[name] for name in RESULT_FIELDS if result.get(name) is not None}
            group.pop("message", None)
            _complete(seen, group)
            if backup.verify:
                group |= {"phase": str(Phase.VERIFYING), "attempt": 1, "attemptTime": timestamp(seen.now)}
        case Phase.VERIFYING if ended.code == 0 and result.get("sound") is True:
            group["verified"] = True
            group.pop("message", None)
            _complete(seen, group)
        case Phase.VERIFYING if ended.code == 1:
            faults = "; ".join(map(str, result.get("faults") or ())) or ended.message
            group |= {"phase": str(Phase.FAILED), "verified": False, "reason": reasons.DAMAGED}
            group["message"] = f"the stored backup is damaged: {faults}"[:MAX_TOLD]
            told.append((reasons.DAMAGED, f"{group['name']}: {group['message']}"))
        case Phase.DELETING if ended.code == 0 or (ended.code == 2 and result.get("waits")):
            group["phase"] = str(Phase.DELETED)
            if ended.code:
                told.append(("ObjectsLeft", f"{group['name']}: {result['waits']}"))
        case _:
            status = "" if ended.code is None else f"exit status {ended.code}: "
            _fail(seen, group, f"{status}{_last_line(ended.message)}", told)


def _complete(seen: Seen, group: Json) -> None:
    group |= {"phase": str(Phase.COMPLETED), "completionTime": timestamp(seen.now)}


def _fail(seen: Seen, group: Json, why: str, told: list[tuple[str, str]]) -> None:
    """The attempt failed: another one follows, or the group fails. A deletion is always tried again."""
    attempt, phase = int(group["attempt"]), Phase(group["phase"])
    where = f" on {group['node']}" if phase is Phase.RUNNING else ""
    group["message"] = f"attempt {attempt}{where}: {why}"[:MAX_TOLD]
    told.append(("AttemptFailed", f"{group['name']}: {group['message']}"))
    wait = min(FIRST_WAIT_SECONDS * 2.0 ** min(attempt - 1, 10), LONGEST_WAIT_SECONDS)
    if phase is Phase.DELETING:
        group |= {"attempt": attempt + 1, "attemptTime": timestamp(seen.now), "retryTime": timestamp(seen.now + wait)}
    elif attempt >= MAX_ATTEMPTS:
        group |= {"phase": str(Phase.FAILED), "reason": reasons.ATTEMPTS_FAILED}
    elif phase is Phase.VERIFYING:
        group |= {"attempt": attempt + 1, "attemptTime": timestamp(seen.now)}
    else:
        group |= {"phase": str(Phase.PENDING), "retryTime": timestamp(seen.now + wait)}


def _result(message: str) -> dict[str, Any]:
    try:
        found = json.loads(message)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "the pod left no message")


# -- the whole ---------------------------------------------------------------------------------------------------------


def _expired(backup: Backup, seen: Seen, groups: list[Json], refusal: Refusal | None) -> Decision:
    for group in groups:
        if group["phase"] not in OVER:
            group |= {"phase": str(Phase.FAILED), "reason": reasons.DEADLINE_EXCEEDED}
    last = refusal.message if refusal is not None else next((g["message"] for g in groups if g.get("message")), "")
    message = f"not complete after {backup.deadline_seconds} s" + (f": {last}" if last else "")
    return Decision(Phase.FAILED, tuple(groups), reasons.DEADLINE_EXCEEDED, message)


def _summed(backup: Backup, groups: list[Json], waits: list[Refusal], told: list[tuple[str, str]]) -> Decision:
    phases = {Phase(group["phase"]) for group in groups}
    failed = [group for group in groups if group["phase"] == Phase.FAILED]
    events, listed = tuple(told), tuple(groups)
    if groups and phases <= OVER:
        if failed:
            message = "; ".join(f"{group['name']}: {group.get('message', '')}" for group in failed)
            return Decision(Phase.FAILED, listed, failed[0]["reason"], message, told=events)
        return Decision(Phase.COMPLETED, listed, "Completed", f"{len(groups)} groups are backed up", told=events)
    mark = backup.deletes and not backup.marked and bool(phases & ACTIVE)
    if phases & {Phase.RUNNING, Phase.COMPLETED, Phase.FAILED}:
        phase = Phase.RUNNING
    else:
        phase = Phase.VERIFYING if Phase.VERIFYING in phases else Phase.PENDING
    if waits:
        return Decision(phase, listed, waits[0].reason, waits[0].message, mark, told=events)
    message = next((f"{group['name']}: {group['message']}" for group in groups if group.get("message")), "")
    return Decision(phase, listed, str(phase), message, mark, told=events)


def _deletion(backup: Backup, seen: Seen) -> Decision:
    groups = [dict(group) for group in backup.status.get("groups") or ()]
    if not backup.marked or not backup.deletes or seen.terminating:
        return Decision(Phase.DELETING, tuple(groups), release=backup.marked)
    told: list[tuple[str, str]] = []
    for group in groups:
        _advance_deletion(backup, seen, group, told)
    stored = [group for group in groups if group.get("address") and group["phase"] != Phase.DELETED]
    if stored and backup.place.claim and (seen.destination is None or is_store(seen.destination)):
        told.append(("BackupNotDeleted", f"PersistentVolumeClaim {backup.place.claim} no longer exists"))
        return Decision(Phase.DELETING, tuple(groups), release=True, told=tuple(told))
    message = next((f"{group['name']}: {group['message']}" for group in stored if group.get("message")), "")
    return Decision(Phase.DELETING, tuple(groups), "Deleting", message, release=not stored, told=tuple(told))


def _advance_deletion(backup: Backup, seen: Seen, group: Json, told: list[tuple[str, str]]) -> None:
    """Moves a group towards `Deleted`. An attempt to create a backup ends first: its pod may still store objects."""
    if group["phase"] == Phase.DELETING:
        _advance(backup, seen, group, told)
        return
    busy = any(each.own and not name.endswith("-delete") for name, each in seen.attempts.items())
    if group["phase"] in (Phase.RUNNING, Phase.VERIFYING):
        _advance(backup, seen, group, told)
    if group["phase"] in (Phase.RUNNING, Phase.VERIFYING, Phase.PENDING):
        group["phase"] = str(Phase.FAILED)
    if group["phase"] in OVER and group.get("address") and not busy:
        group |= {"phase": str(Phase.DELETING), "attempt": 1, "attemptTime": timestamp(seen.now)}
        group.pop("message", None)
