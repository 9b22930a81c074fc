"""The members of a cluster and their volumes, for what reads the volumes beside the brokers: StoreJobs and Backups."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tallystick.operator.core import kube
from tallystick.operator.core.kube import Json, Kube
from tallystick.operator.core.names import Names, hibernates, is_claim_of
from tallystick.operator.core.ownership import owned

# Reasons in the status of StoreJobs and Backups. Programs depend on them, so they never change.
CLUSTER_NOT_FOUND = "ClusterNotFound"
CLUSTER_DELETING = "ClusterDeleting"
CLUSTER_HIBERNATED = "ClusterHibernated"
"""The wait for the end of the hibernation does not count towards a deadline."""
GROUP_NOT_FOUND = "GroupNotFound"

ONE_POD = "ReadWriteOncePod"
"""Access mode of a volume that no pod but the broker's can mount."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an action is not possible now. `message` is for users."""

    reason: str
    message: str


class Members(NamedTuple):
    """A cluster, and its BrokerNodes and claims by name. None: it does not exist."""

    cluster: Json | None
    nodes: Mapping[str, Json]
    claims: Mapping[str, Json]


async def members_of(api: Kube, namespace: str, cluster: str) -> Members:
    """Returns the members of a cluster, without objects of others. KubeError: the API server did not answer."""
    selector = Names(namespace, cluster).selector()
    body, nodes, claims = await asyncio.gather(
        api.find(kube.CLUSTERS, namespace, cluster),
        api.list(kube.BROKER_NODES, namespace, selector),
        api.list(kube.CLAIMS, namespace, selector),
    )
    owner = set() if body is None else {body["metadata"]["uid"]}
    return Members(
        body,
        _by_name(node for node in nodes if owned(node, owner)),
        _by_name(claim for claim in claims if is_claim_of(cluster, claim)),
    )


def group_count(cluster: Mapping[str, Any]) -> int:
    """Returns the number of groups in the spec of a BrokerCluster."""
    return int((cluster.get("spec") or {}).get("groups") or 1)


def cluster_refusal(name: str, cluster: Json | None, groups: Collection[int] | None) -> Refusal | None:
    """Returns why nothing can be read from a cluster now: from these groups, or from all of them."""
    if cluster is None:
        return Refusal(CLUSTER_NOT_FOUND, f"BrokerCluster {name!r} does not exist in this namespace")
    if cluster["metadata"].get("deletionTimestamp"):
        return Refusal(CLUSTER_DELETING, f"BrokerCluster {name!r} is being deleted")
    if hibernates(cluster["metadata"]):
        return Refusal(CLUSTER_HIBERNATED, f"BrokerCluster {name!r} hibernates")
    count = group_count(cluster)
    if absent := [str(group) for group in groups or () if group >= count]:
        return Refusal(GROUP_NOT_FOUND, f"{name} has no group {', '.join(absent)}; it has {count} groups")
    return None


def access_modes(claim: Json | None) -> tuple[str, ...]:
    return tuple(((claim or {}).get("spec") or {}).get("accessModes") or ())


def _by_name(bodies: Iterable[Json]) -> dict[str, Json]:
    return {body["metadata"]["name"]: body for body in bodies}
