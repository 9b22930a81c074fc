"""What is done about one User. Pure: from the resource, its password and the cluster.

A user of the brokers belongs to the resource whose UID is its owner there. Brokers compare owners themselves when they
change or delete a user, so nothing that happens in between can make the operator change a user of another owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.operator.core.declared import Phase, Problem
from tallystick.operator.core.kube import Json
from tallystick.operator.users import reasons
from tallystick.operator.users.observed import ClusterView, Credential
from tallystick.operator.users.spec import Declaration


@dataclass(frozen=True, slots=True)
class Decision:
    """`writes`, `deletes`: numbers of broker groups. `release`: its finalizer is removed after the deletions."""

    declaration: Declaration
    problem: Problem | None = None
    finalizer: bool = False
    """Whether the resource is to have the finalizer."""
    writes: tuple[int, ...] = ()
    deletes: tuple[int, ...] = ()
    release: bool = False
    groups: tuple[str, ...] = ()
    """Names of the groups that have the user as declared."""


def holders(declared: Sequence[Declaration]) -> Mapping[str, str]:
    """Returns the UID of the resource that counts, by name on the brokers: the oldest one that is not being deleted."""
    found: dict[str, str] = {}
    for each in sorted(declared, key=lambda each: (each.deleting, each.created, each.name)):
        found.setdefault(each.user, each.uid)
    return found


def decide(
    declared: Declaration, credential: Credential, view: ClusterView, holder: str, written: frozenset[tuple[int, str]]
) -> Decision:
    """Returns what is done now. `holder`: UID of the resource that counts for the name. `written`: groups, and UIDs of
    resources, with the password that they have now."""
    if not view.exists or view.deleting:
        reason = reasons.CLUSTER_DELETING if view.exists else reasons.CLUSTER_NOT_FOUND
        text = "is being deleted" if view.exists else "does not exist in this namespace"
        problem = Problem(Phase.PENDING, reason, f"BrokerCluster {declared.cluster!r} {text}")
        return Decision(declared, problem, release=declared.marked)
    if declared.deleting:
        return _deletion(declared, view)
    if declared.error:
        return Decision(declared, Problem(Phase.REFUSED, reasons.INVALID_SPEC, declared.error), declared.marked)
    if holder != declared.uid:
        text = f"another User declares {declared.user!r} on this cluster"
        return Decision(declared, Problem(Phase.REFUSED, reasons.CONFLICT, text), declared.marked)
    if credential.problem is not None:
        return Decision(declared, credential.problem, True)
    if not view.access_control:
        text = "the cluster has no access control (spec.security.accessControl)"
        return Decision(declared, Problem(Phase.PENDING, reasons.NO_ACCESS_CONTROL, text), True)
    return _present(declared, view, written)


def _deletion(declared: Declaration, view: ClusterView) -> Decision:
    if not declared.marked:
        return Decision(declared)
    silent = [group.silent for group in view.groups.values() if group.silent and not group.starting]
    if silent:
        return Decision(declared, Problem(Phase.DELETING, reasons.GROUP_UNAVAILABLE, "; ".join(silent)), True)
    deletes = tuple(
        number
        for number, group in view.groups.items()
        if group.users.get(declared.user, {}).get("owner") == declared.uid
    )
    return Decision(declared, Problem(Phase.DELETING, reasons.DELETING, "it is being deleted"), True, (), deletes, True)


def _present(declared: Declaration, view: ClusterView, written: frozenset[tuple[int, str]]) -> Decision:
    writes, good, problem = [], [], None
    for number, group in view.groups.items():
        if group.silent:
            reason = reasons.NO_ACCESS_CONTROL if group.starting else reasons.GROUP_UNAVAILABLE
            problem = problem or Problem(Phase.PENDING, reason, group.silent)
            continue
        found = group.users.get(declared.user)
        if found is not None and not _may_change(declared, found):
            whose = found.get("owner")
            text = f"the user {declared.user} exists on {group.name} and " + (
                f"belongs to {whose}" if whose else "this resource did not create it"
            )
            problem = Problem(Phase.REFUSED, reasons.ALREADY_EXISTS, text)
        elif found is None or _differs(declared, found) or (number, declared.uid) not in written:
            writes.append(number)
        else:
            good.append(group.name)
    if problem is not None and problem.phase is Phase.REFUSED:
        return Decision(declared, problem, True, groups=tuple(good))
    if problem is None and not writes:
        problem = _pending_name_servers(view)
    return Decision(declared, problem, True, tuple(writes), groups=tuple(good))


def _may_change(declared: Declaration, found: Mapping[str, Any]) -> bool:
    owner = found.get("owner")
    return owner == declared.uid or (declared.adopt and not owner)


def _differs(declared: Declaration, found: Mapping[str, Any]) -> bool:
    shown: Json = {key: found.get(key) for key in ("userType", "userStatus", "policies", "owner") if found.get(key)}
    return shown != {**declared.fields, "owner": declared.uid}


def _pending_name_servers(view: ClusterView) -> Problem | None:
    behind = [name for name, version in view.name_servers.items() if version is None or version < view.accounts_version]
    if not behind:
        return None
    text = f"name servers read the new accounts within two minutes: {', '.join(behind)}"
    return Problem(Phase.PENDING, reasons.NAME_SERVERS_PENDING, text)
