"""Reads the users of the broker groups and the accounts of the name servers. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tallystick.operator.core.kube import Json
from tallystick.operator.core.members import group_count
from tallystick.operator.core.names import Names
from tallystick.operator.core.node_api import NameServerName, NodeApi, NodeError, NodeName, NodeRefusedError
from tallystick.operator.users.observed import ClusterView, GroupUsers

ASK_SECONDS = 3.0
MAX_MEMBERS = 5


def wants_access_control(cluster: Mapping[str, Any]) -> bool:
    """Whether the spec of a BrokerCluster enables access control."""
    security = (cluster.get("spec") or {}).get("security") or {}
    return bool((security.get("accessControl") or {}).get("enabled", False))


def members_of(cluster: Json, group: int) -> list[NodeName]:
    """Returns the members of a group; the leader that the status names is first."""
    metadata, replicas = cluster["metadata"], int((cluster.get("spec") or {}).get("replicas") or 3)
    names = Names(metadata["namespace"], metadata["name"])
    nodes = [NodeName(metadata["namespace"], metadata["name"], group, member) for member in range(replicas)]
    rows = (cluster.get("status") or {}).get("groups") or ()
    leader = next((str(row.get("leader") or "") for row in rows if row.get("name") == names.group(group)), "")
    number = leader.rpartition("-")[2]
    if number.isdecimal() and int(number) < MAX_MEMBERS:
        first = NodeName(metadata["namespace"], metadata["name"], group, int(number))
        nodes = [first, *(node for node in nodes if node != first)]
    return nodes


async def observe(nodes: NodeApi, cluster: Json | None, accounts_version: int) -> ClusterView:
    """Returns the state of a cluster. Processes that do not answer are part of it."""
    if cluster is None:
        return ClusterView(exists=False)
    if cluster["metadata"].get("deletionTimestamp"):
        return ClusterView(exists=True, deleting=True)
    if not wants_access_control(cluster):
        return ClusterView(exists=True)
    count = group_count(cluster)
    groups = await asyncio.gather(*(_group(nodes, cluster, group) for group in range(count)))
    servers = await _name_servers(nodes, cluster)
    return ClusterView(True, False, True, dict(enumerate(groups)), accounts_version, servers)


async def _group(nodes: NodeApi, cluster: Json, group: int) -> GroupUsers:
    """Asks the leader of a group: a follower may not know a new user yet."""
    metadata = cluster["metadata"]
    name, said = Names(metadata["namespace"], metadata["name"]).group(group), "no member was asked"
    for node in members_of(cluster, group):
        try:
            answer = await nodes.ask(node, "GET", "/group", timeout_seconds=ASK_SECONDS)
            if not answer.get("broker", {}).get("leads"):
                said = f"{node} is not a ready leader"
                continue
            found = await nodes.ask(node, "GET", "/users", timeout_seconds=ASK_SECONDS)
            return GroupUsers(name, {str(each["username"]): each for each in found["users"]})
        except NodeRefusedError as error:
            if error.status == 409:
                return GroupUsers(name, silent=str(error), starting=True)
            said = str(error)
        except NodeError as error:
            said = str(error)
        except (AttributeError, KeyError, TypeError) as error:
            said = f"{node} returned an invalid response: {error!r}"
    return GroupUsers(name, silent=f"{name} has no reachable leader: {said}")


async def _name_servers(nodes: NodeApi, cluster: Json) -> dict[str, int | None]:
    metadata = cluster["metadata"]
    count = int(((cluster.get("spec") or {}).get("nameServers") or {}).get("replicas") or 2)
    servers = [NameServerName(metadata["namespace"], metadata["name"], number) for number in range(count)]
    versions = await asyncio.gather(*(_version(nodes, server) for server in servers))
    return dict(zip(map(str, servers), versions, strict=True))


async def _version(nodes: NodeApi, server: NameServerName) -> int | None:
    try:
        answer = await nodes.ask(server, "GET", "/node", timeout_seconds=ASK_SECONDS)
        return int(answer["access"]["version"]["counter"])
    except (NodeError, KeyError, TypeError, ValueError):
        return None
