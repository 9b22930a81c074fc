"""Reads the state of a cluster: its objects from the API server, and the answers of its nodes. Decides nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tallystick.operator.clusters.reading import Objects, objects_of, running_members
from tallystick.operator.clusters.spec import Cluster
from tallystick.operator.core import kube
from tallystick.operator.core.context import Context
from tallystick.operator.core.kube import Json, Resource
from tallystick.operator.core.names import Names
from tallystick.operator.core.node_api import NodeName, every

KINDS: tuple[Resource, ...] = (
    *(kube.BROKER_NODES, kube.STATEFUL_SETS, kube.PODS, kube.SERVICES, kube.CLAIMS),
    *(kube.CONFIG_MAPS, kube.SERVICE_ACCOUNTS, kube.DISRUPTION_BUDGETS, kube.NETWORK_POLICIES),
)
ASK_SECONDS = 3.0
"""Timeout for the state of a member. An unresponsive member delays each pass by it."""


@dataclass(frozen=True, slots=True)
class Sight:
    """Objects and answers, read at one time."""

    objects: Objects
    answers: dict[tuple[int, int], object]


async def look(context: Context, cluster: Cluster, body: Json) -> Sight:
    """Reads a cluster; objects with its labels that do not belong to it are left out.

    KubeError: the API server did not respond. Errors of nodes are values of `answers`.
    """
    names = Names(cluster.namespace, cluster.name)
    lists = await asyncio.gather(
        *(context.kube.list(resource, cluster.namespace, names.selector()) for resource in KINDS)
    )
    by_kind = {
        resource.kind: {item["metadata"]["name"]: item for item in found}
        for resource, found in zip(KINDS, lists, strict=True)
    }
    objects = objects_of(cluster, body, by_kind)
    members = running_members(cluster, objects)
    asked = [
        context.nodes.ask(
            NodeName(cluster.namespace, cluster.name, *member), "GET", "/group", timeout_seconds=ASK_SECONDS
        )
        for member in members
    ]
    return Sight(objects, dict(zip(members, await every(asked), strict=True)))
