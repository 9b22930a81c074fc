"""What is to be done about one declaration, given what its cluster's leaders say they have. Pure.

A `Decision` is carried out in this order, and is the same or a smaller one after a crash anywhere in it:

1. `finalizer`, `owned`: our mark stands in the resource, and it is noted on which groups it is ours (`claims`)
2. `writes`: what is missing or differs is written to the groups' leaders
3. `empty`: where deletion depends on it, these groups are asked whether it is in use; then nothing is deleted anywhere
4. `deletes`: it is deleted on the groups
5. `release`: if all of this succeeded, the mark is taken off, and Kubernetes forgets the resource

A group that nobody can speak for is left alone: what is found missing there today may be there tomorrow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic

from tallystick.operator.topics import reasons
from tallystick.operator.topics.kinds import Kind, S, group_name
from tallystick.operator.topics.observed import ClusterView, GroupView
from tallystick.operator.topics.reasons import Phase, Problem
from tallystick.operator.topics.spec import ADOPT, Declaration, Policy

SILENT_SECONDS = 30.0
"""A group without a leader for less than this changes nothing: an election is no news of a thousand topics."""


@dataclass(frozen=True, slots=True)
class Decision(Generic[S]):
    """What to do, and what will be true of the declaration once it is done. Groups are called by their names."""

    declaration: Declaration[S]
    problem: Problem | None = None
    """Why it is not, or will not be, as declared."""
    finalizer: bool = False
    owned: frozenset[str] = frozenset()
    writes: Mapping[str, S] = field(default_factory=dict)
    drifts: Mapping[str, str] = field(default_factory=dict)
    """Of the writes: those that undo what somebody did, and what that was."""
    adopted: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    release: bool = False
    confirmed: Mapping[str, S] = field(default_factory=dict)
    """What each group has once the writes are done."""
    silent: tuple[str, ...] = ()
    """Groups that nobody speaks for now: what status says of them stays."""
    excess: tuple[str, ...] = ()
    nothing: bool = False
    """It is not ours to say anything about."""

    def problem_is(self, reason: str) -> bool:
        return self.problem is not None and self.problem.reason == reason

    @property
    def acts(self) -> bool:
        """It changes something besides status."""
        claims = self.owned != self.declaration.owned or self.finalizer != self.declaration.marked
        return bool(claims or self.writes or self.deletes or self.release)


def holders(declarations: Iterable[Declaration[S]]) -> dict[str, Declaration[S]]:
    """For each name on the brokers, who of those that declare it is heeded.

    Whoever made it already, then the oldest, then by name: so that it changes only when the holder goes.
    """
    first: dict[str, Declaration[S]] = {}
    for each in declarations:
        other = first.get(each.subject)
        if not each.error and (other is None or _precedence(each) < _precedence(other)):
            first[each.subject] = each
    return first


def _precedence(declaration: Declaration[S]) -> tuple[bool, str, str]:
    return not declaration.owned, declaration.created, declaration.name


def decide(
    kind: Kind[S], declaration: Declaration[S], cluster: ClusterView[S], holder: Declaration[S] | None
) -> Decision[S]:
    """`holder`: who is heeded of those that declare this name (`holders`)."""
    if declaration.deleting:
        return _decide_deletion(declaration, cluster)
    problem = _refused(kind, declaration, cluster, holder)
    if problem is not None:
        keep = declaration.marked and not cluster.going
        return Decision(declaration, problem, finalizer=keep, owned=declaration.owned)
    return _decide_settings(kind, declaration, cluster)


def _refused(
    kind: Kind[S], declaration: Declaration[S], cluster: ClusterView[S], holder: Declaration[S] | None
) -> Problem | None:
    """Why nothing at all is done, or None."""
    subject, name = declaration.subject, declaration.cluster
    if declaration.error:
        return Problem(Phase.REFUSED, reasons.INVALID_SPEC, declaration.error)
    if own := kind.system(subject, name):
        return Problem(Phase.REFUSED, kind.system_reason, own)
    if holder is not None and holder.uid != declaration.uid:
        going = ", which is being deleted," if holder.deleting else ""
        told = f"{kind.kind} {holder.name}{going} already declares {subject} of cluster {name}"
        return Problem(Phase.REFUSED, reasons.CONFLICT, told)
    if not cluster.exists:
        told = f"BrokerCluster {name} does not exist in namespace {declaration.namespace}"
        return Problem(Phase.PENDING, reasons.CLUSTER_NOT_FOUND, told)
    if cluster.deleting:
        return Problem(Phase.PENDING, reasons.CLUSTER_DELETING, f"BrokerCluster {name} is being deleted")
    if not cluster.formed:
        told = f"BrokerCluster {name} is being created: none of its broker groups has a leader yet"
        return Problem(Phase.PENDING, reasons.WAITING_FOR_CLUSTER, told)
    return None


def _decide_settings(kind: Kind[S], declaration: Declaration[S], cluster: ClusterView[S]) -> Decision[S]:
    wanted = declaration.wanted
    assert wanted is not None, "what has no error has settings"
    foreign, silent, lacking, unknown, excess, adopted = [], [], [], [], [], []
    writes: dict[str, S] = {}
    drifts: dict[str, str] = {}
    confirmed: dict[str, S] = {}
    for name in _targets(declaration, cluster):
        group = cluster.groups.get(name)
        if group is None:
            unknown.append(name)
            continue
        if group.found is None:
            silent.append(name)
            if not _believable(declaration, group):
                lacking.append(f"{name}: {group.reason}")
            continue
        found, owned = group.found.get(declaration.subject), name in declaration.owned
        if found is None:
            writes[name] = confirmed[name] = wanted
            if owned and declaration.ready_before:
                drifts[name] = f"{name} did not have it"
            continue
        if not owned:
            if not _may_adopt(kind, declaration, found):
                foreign.append(f"{name} ({wanted.difference(found) or 'same settings'})")
                continue
            adopted.append(name)
        repaired = wanted.repaired(found)
        confirmed[name] = repaired
        if repaired != found:
            writes[name] = repaired
            if owned and declaration.settled:
                drifts[name] = f"{name} had {repaired.difference(found)}"
        if more := wanted.excess(found):
            excess.append(f"{name} has {more}")
    if foreign:  # it stays as it is everywhere, but where it is ours already
        writes = {name: settings for name, settings in writes.items() if name in declaration.owned}
        confirmed = {name: settings for name, settings in confirmed.items() if name in declaration.owned}
        adopted = []
    owned_then = declaration.owned | confirmed.keys()
    return Decision(
        declaration,
        _settings_problem(kind, declaration, foreign, unknown, lacking),
        finalizer=bool(owned_then) and declaration.policy is not Policy.RETAIN,
        owned=owned_then,
        writes=writes,
        drifts=drifts,
        adopted=tuple(adopted),
        confirmed=confirmed,
        silent=tuple(silent),
        excess=tuple(excess),
    )


def _settings_problem(
    kind: Kind[S], declaration: Declaration[S], foreign: list[str], unknown: list[str], lacking: list[str]
) -> Problem | None:
    if foreign:
        told = (
            f"{kind.noun} {declaration.subject} already exists and was not created by this resource, on "
            f"{', '.join(foreign)}; to adopt it, annotate this resource with {ADOPT}=true"
        )
        return Problem(Phase.REFUSED, reasons.ALREADY_EXISTS, told)
    if unknown:
        told = f"BrokerCluster {declaration.cluster} has no broker group {', '.join(unknown)}"
        return Problem(Phase.PENDING, reasons.GROUP_NOT_FOUND, told)
    if lacking:
        return Problem(Phase.PENDING, reasons.GROUP_UNAVAILABLE, "; ".join(lacking))
    return None


def _targets(declaration: Declaration[S], cluster: ClusterView[S]) -> list[str]:
    """Names of the groups that it is declared for, whether the cluster has them or not."""
    if declaration.groups is None:
        return list(cluster.groups)
    return [group_name(declaration.cluster, number) for number in declaration.groups]


def _believable(declaration: Declaration[S], group: GroupView[S]) -> bool:
    return declaration.settled and group.name in declaration.owned and group.silent_seconds < SILENT_SECONDS


def _may_adopt(kind: Kind[S], declaration: Declaration[S], found: S) -> bool:
    """It is asked for; or it changes nothing, now or by deletion; or nobody chose what is there."""
    if declaration.adopt or kind.made_by_brokers(found):
        return True
    return declaration.policy is Policy.RETAIN and found == declaration.wanted


def _decide_deletion(declaration: Declaration[S], cluster: ClusterView[S]) -> Decision[S]:
    """It goes: on all groups where it is ours, also on those that it has not been declared for any more."""
    if not declaration.marked:
        return Decision(declaration, owned=declaration.owned, nothing=True)
    groups = [group for name, group in cluster.groups.items() if name in declaration.owned]
    if cluster.going or declaration.policy is Policy.RETAIN or not groups:
        return Decision(declaration, finalizer=True, owned=declaration.owned, release=True)
    silent = [f"{group.name}: {group.reason}" for group in groups if group.found is None]
    spoken = tuple(group.name for group in groups if group.found is not None)
    told = f"deleting it on {', '.join(group.name for group in groups)}"
    problem = Problem(Phase.DELETING, reasons.DELETING, told)
    if silent:
        problem = Problem(Phase.DELETING, reasons.GROUP_UNAVAILABLE, "; ".join(silent))
    if declaration.policy is Policy.DELETE:
        # Also where it was not found: a member that led until a moment ago may not have heard of it yet.
        return Decision(
            declaration, problem, finalizer=True, owned=declaration.owned, deletes=spoken, release=not silent
        )
    if silent:  # it may have messages there
        return Decision(declaration, problem, finalizer=True, owned=declaration.owned)
    held = tuple(group.name for group in groups if group.found and declaration.subject in group.found)
    return Decision(
        declaration, problem, finalizer=True, owned=declaration.owned, empty=held, deletes=spoken, release=True
    )


def kept_while_in_use(decision: Decision[S], cluster: ClusterView[S], deleted: Collection[str]) -> dict[str, S]:
    """What to write while a deletion waits because it is in use: it stays as declared until it can go everywhere.

    `deleted`: groups where it just went, before it was seen that it is in use elsewhere.
    """
    wanted, subject = decision.declaration.wanted, decision.declaration.subject
    if wanted is None:
        return {}
    writes = {}
    for name in decision.deletes:
        found = None if name in deleted else (cluster.groups[name].found or {}).get(subject)
        repaired = wanted if found is None else wanted.repaired(found)
        if repaired != found:
            writes[name] = repaired
    return writes
