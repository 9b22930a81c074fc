"""Which group takes the place of which RocketMQ master, and what speaks against it. Pure.

All of it is decided before a volume is created. A group keeps the master that its claims name: brokers that the old
name servers lose or get later change nothing for a group that has begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tallystick.operator.clusters.adoption_source import OldBroker, Survey, Unanswered
from tallystick.operator.clusters.recovery_source import Problem
from tallystick.operator.clusters.spec import MAX_MEMBERS, Cluster
from tallystick.operator.core.names import Names
from tallystick.operator.core.quantity import quantity

OLD_MASTER_ID = 1000
"""Broker id that an old master gets when a group has taken its place."""
ROOM = 1.2
"""A group needs so much more than the log of its master: it deletes nothing before the switch."""
DELAY_LEVELS = "messageDelayLevel"
_MOST_LISTED = 5


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """By number of the group: the broker whose name it gets, and what will behave differently."""

    brokers: Mapping[int, OldBroker]
    different: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def find_plan(cluster: Cluster, survey: Survey, named: Mapping[int, str]) -> AdoptionPlan | Problem:
    """Returns the plan, or why there is none. `named`: the broker names that claims have, by number of the group."""
    adopt = cluster.spec.adopt
    assert adopt is not None, "only a cluster that adopts has a plan"
    if isinstance(survey, Unanswered):
        return Problem(survey.reason, survey.message, waits=True)
    found = _of_cluster(survey, adopt.cluster)
    if isinstance(found, Problem):
        return found
    brokers = _assigned(found, cluster.spec.groups, named)
    if isinstance(brokers, Problem):
        return brokers
    silent = [f"{each.name}: {each.error}" for each in brokers.values() if each.error]
    if silent:
        return Problem("MasterUnreachable", _listed(silent), waits=True)
    for check in (_unsupported, _names, _ids, _settings, _room):
        problem = check(cluster, brokers)
        if problem is not None:
            return problem
    return AdoptionPlan(brokers, {number: _different(cluster, each) for number, each in brokers.items()})


def _of_cluster(survey: Sequence[OldBroker], name: str) -> list[OldBroker] | Problem:
    """Returns the brokers of the cluster that is adopted, by name."""
    known = sorted({each.cluster for each in survey})
    if not known:
        return Problem("OldClusterEmpty", "the name servers of spec.adoptFrom know no broker", waits=True)
    if name and name not in known:
        return Problem("OldClusterUnknown", f"spec.adoptFrom.cluster is {name}, and there are: {_listed(known)}")
    if not name and len(known) > 1:
        return Problem("OldClusterUnclear", f"set spec.adoptFrom.cluster to one of: {_listed(known)}")
    return sorted((each for each in survey if each.cluster == (name or known[0])), key=lambda each: each.name)


def _assigned(found: Sequence[OldBroker], groups: int, named: Mapping[int, str]) -> dict[int, OldBroker] | Problem:
    by_name = {each.name: each for each in found}
    gone = [name for name in named.values() if name not in by_name]
    if gone:
        return Problem("MasterUnreachable", f"the old name servers no longer know {_listed(sorted(gone))}", waits=True)
    if len(found) != groups:
        names = _listed([each.name for each in found])
        message = (
            f"the cluster has {len(found)} broker names ({names}) and spec.groups is {groups}: each group takes the "
            f"place of one master, so set spec.groups to {len(found)}"
        )
        return Problem("GroupsMismatch", message)
    rest = [each for each in found if each.name not in named.values()]
    return {
        number: by_name[named[number]] if number in named else rest.pop(0)
        for number in sorted(range(groups), key=lambda number: number not in named)
    }


# -- checks ------------------------------------------------------------------------------------------------------------


def _unsupported(cluster: Cluster, brokers: Mapping[int, OldBroker]) -> Problem | None:
    told = []
    for each in brokers.values():
        reasons = list(each.obstacles)
        if not each.version.startswith("V4_"):
            reasons.append(f"its version is {each.version or 'unknown'}, and only RocketMQ 4 is supported")
        told += [f"{each.name}: {reason}" for reason in reasons]
    return Problem("NotSupported", "; ".join(told)) if told else None


def _names(cluster: Cluster, brokers: Mapping[int, OldBroker]) -> Problem | None:
    names = Names(cluster.namespace, cluster.name)
    told = []
    for number, each in brokers.items():
        text = each.name
        if not text or len(text.encode()) > 127 or "/" in text or not text.isprintable() or text in (".", ".."):
            told.append(f"{text!r} is no name that a broker can have")
        prefix, _, last = text.rpartition("-")
        if prefix == cluster.name and last.isdecimal() and text != names.group(number):
            told.append(f"{text} would be the name of another group of this BrokerCluster")
    if not told:
        return None
    return Problem("NameConflict", f"{_listed(told)}. Rename the broker, or use another name for the BrokerCluster")


def _ids(cluster: Cluster, brokers: Mapping[int, OldBroker]) -> Problem | None:
    """Members have the broker ids 1, 2, 3, and no other slave of the master may have one of them."""
    names, told = Names(cluster.namespace, cluster.name), []
    for group, each in brokers.items():
        own = {names.host(names.node(group, member)) for member in range(MAX_MEMBERS)}
        taken = {*range(1, cluster.spec.replicas + 1), OLD_MASTER_ID}
        for number, address in sorted(each.slaves.items()):
            if number in taken and address.rpartition(":")[0] not in own:
                told.append(f"the slave {address} of {each.name} has the id {number}")
    if not told:
        return None
    message = f"{_listed(told)}, which a member of the group needs: stop the slave, or change its brokerId"
    return Problem("IdTaken", message, waits=True)


def _settings(cluster: Cluster, brokers: Mapping[int, OldBroker]) -> Problem | None:
    for each in brokers.values():
        theirs, own = each.settings.get(DELAY_LEVELS), effective(cluster, each, DELAY_LEVELS)
        if theirs is not None and theirs.split() != own.split():
            message = f"{each.name} has other delay levels: set spec.config.{DELAY_LEVELS} to {theirs!r}"
            return Problem("SettingsDiffer", message)
        longest = each.settings.get("maxMessageSize", "")
        if longest.isdecimal() and int(longest) >= cluster.spec.storage.segment_bytes:
            message = (
                f"{each.name} accepts messages of {longest} bytes, and a segment has only "
                f"{cluster.spec.storage.segment_bytes}: use a larger storage.segmentBytes"
            )
            return Problem("SettingsDiffer", message)
    return None


def _room(cluster: Cluster, brokers: Mapping[int, OldBroker]) -> Problem | None:
    size = quantity(cluster.spec.storage.size)
    for each in brokers.values():
        needed = int(each.log_bytes * ROOM)
        if needed > size:
            message = (
                f"the log of {each.name} has {each.log_bytes} bytes, and a group deletes nothing before the switch: "
                f"raise spec.storage.size to more than {needed}"
            )
            return Problem("StorageTooSmall", message)
    return None


def effective(cluster: Cluster, broker: OldBroker, key: str) -> str:
    """Returns the value that a setting will have at the new brokers."""
    spec = cluster.spec
    own = {
        "flushDiskType": spec.durability.flush,
        "autoCreateTopicEnable": str(spec.auto_create_topics).lower(),
        "mappedFileSizeCommitLog": str(spec.storage.segment_bytes),
    }
    set_by_user = next((value for name, value in spec.config.items() if name.lower() == key.lower()), None)
    return own.get(key) or set_by_user or broker.defaults.get(key, "")


def _different(cluster: Cluster, broker: OldBroker) -> tuple[str, ...]:
    """Returns what a user should know before the switch. The size of segments may differ: a group has its own log."""
    told = []
    for key, theirs in sorted(broker.settings.items()):
        own = effective(cluster, broker, key)
        if key not in (DELAY_LEVELS, "mappedFileSizeCommitLog") and theirs != own:
            told.append(f"{key} is {theirs} there, and {own} here")
    return (*told, *broker.different)


def _listed(texts: Iterable[str]) -> str:
    found = list(texts)
    more = f" and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
    return ", ".join(found[:_MOST_LISTED]) + more
