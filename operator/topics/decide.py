"""The decision about one declaration. Pure: it follows from the resource and the objects that the leaders report.

A `Decision` is carried out in this order. After a crash in between, the next decision is the same or a part of it:

1. `finalizer`, `owned`: set the finalizer of the resource, and record the owned groups (`claims`)
2. `writes`: write missing and different objects to the leaders
3. `empty`: for DeleteIfEmpty, check these groups; if the object is in use on one, it is deleted on none
4. `deletes`: delete the object on these groups
5. `release`: if everything succeeded, remove the finalizer, so that Kubernetes deletes the resource

A group without a leader is not changed: an object that seems to be missing may exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic

from tallystick.operator.core.declared import Phase, Problem
from tallystick.operator.topics import reasons
from tallystick.operator.topics.kinds import Kind, S, group_name
from tallystick.operator.topics.observed import ClusterView, GroupView
from tallystick.operator.topics.spec import ADOPT, Declaration, Policy

SILENT_SECONDS = 30.0
"""A shorter time without a leader does not change the status, so that an election does not cause a thousand writes."""


@dataclass(frozen=True, slots=True)
class Decision(Generic[S]):
    """What to do, and the state of the declaration afterwards. Groups are identified by their names."""

    declaration: Declaration[S]
    problem: Problem | None = None
    """Why the declaration is not or will not be fulfilled."""
    finalizer: bool = False
    owned: frozenset[str] = frozenset()
    writes: Mapping[str, S] = field(default_factory=dict)
    drifts: Mapping[str, str] = field(default_factory=dict)
    """The writes that correct drift, with a description of the drift, by group."""
    adopted: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    release: bool = False
    confirmed: Mapping[str, S] = field(default_factory=dict)
    """The object on each group after the writes."""
    silent: tuple[str, ...] = ()
    """Groups without a leader that responds. Their part of the status is kept."""
    excess: tuple[str, ...] = ()
    nothing: bool = False
    """The status is not written either."""

    def problem_is(self, reason: str) -> bool:
        return self.problem is not None and self.problem.reason == reason

    @property
    def acts(self) -> bool:
        """Whether it changes something other than the status."""
        claims = self.owned != self.declaration.owned or self.finalizer != self.declaration.marked
        return bool(claims or self.writes or self.deletes or self.release)


def holders(declarations: Iterable[Declaration[S]]) -> dict[str, Declaration[S]]:
    """Returns the declaration to use for each name on the brokers.

    The order is: the one that owns the object, the oldest, the first by name. So the holder changes only when it is
    deleted.
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
    """Returns the decision. `holder`: the declaration to use for this name (see `holders`)."""
    if declaration.deleting:
        return _decide_deletion(declaration, cluster)
    problem = _refused(kind, declaration, cluster, holder)
    if problem is not None:
        keep = declaration.marked and not cluster.going
        silent = tuple(cluster.groups) if problem.reason == reasons.CLUSTER_HIBERNATED else ()
        return Decision(declaration, problem, finalizer=keep, owned=declaration.owned, silent=silent)
    return _decide_settings(kind, declaration, cluster)


def _refused(
    kind: Kind[S], declaration: Declaration[S], cluster: ClusterView[S], holder: Declaration[S] | None
) -> Problem | None:
    """Returns why the declaration is rejected or waits; None: it is carried out."""
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
    if cluster.hibernating:
        return Problem(Phase.PENDING, reasons.CLUSTER_HIBERNATED, f"BrokerCluster {name} hibernates")
    if not cluster.formed:
        told = f"BrokerCluster {name} is being created: none of its broker groups has a leader yet"
        return Problem(Phase.PENDING, reasons.WAITING_FOR_CLUSTER, told)
    return None


def _decide_settings(kind: Kind[S], declaration: Declaration[S], cluster: ClusterView[S]) -> Decision[S]:
    wanted = declaration.wanted
    assert wanted is not None, "a declaration without an error has settings"
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
    if foreign:  # the object is changed only on owned groups
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
    """Returns the names of the declared groups, also of those that do not exist."""
    if declaration.groups is None:
        return list(cluster.groups)
    return [group_name(declaration.cluster, number) for number in declaration.groups]


def _believable(declaration: Declaration[S], group: GroupView[S]) -> bool:
    return declaration.settled and group.name in declaration.owned and group.silent_seconds < SILENT_SECONDS


def _may_adopt(kind: Kind[S], declaration: Declaration[S], found: S) -> bool:
    """Whether adoption is requested, or changes nothing now or on deletion, or affects only defaults of brokers."""
    if declaration.adopt or kind.made_by_brokers(found):
        return True
    return declaration.policy is Policy.RETAIN and found == declaration.wanted


def _decide_deletion(declaration: Declaration[S], cluster: ClusterView[S]) -> Decision[S]:
    """Deletes the object on all owned groups, also on those that are no longer declared."""
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
        # Also where it was not found: an earlier leader may not have applied it yet.
        return Decision(
            declaration, problem, finalizer=True, owned=declaration.owned, deletes=spoken, release=not silent
        )
    if silent:  # it may have messages on these groups
        return Decision(declaration, problem, finalizer=True, owned=declaration.owned)
    held = tuple(group.name for group in groups if group.found and declaration.subject in group.found)
    return Decision(
        declaration, problem, finalizer=True, owned=declaration.owned, empty=held, deletes=spoken, release=True
    )


def without_new_claims(decision: Decision[S], told: str) -> Decision[S]:
    """Returns a decision that claims no further group: its claims cannot be recorded, for the reason `told`."""
    declaration = decision.declaration
    if decision.owned <= declaration.owned:
        return decision
    return Decision(
        declaration,
        Problem(Phase.PENDING, reasons.NAME_TAKEN, told),
        finalizer=declaration.marked,
        owned=declaration.owned,
        silent=decision.silent,
    )


def kept_while_in_use(decision: Decision[S], cluster: ClusterView[S], deleted: Collection[str]) -> dict[str, S]:
    """Returns what to write while a deletion waits: the object matches its spec until it can be deleted everywhere.

    `deleted`: groups on which it was just deleted, before it was found to be in use on another group.
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
