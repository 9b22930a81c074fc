"""Reads from the leaders of a cluster's broker groups which topics or consumer groups they have. Decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from tallystick.operator.core.names import hibernates
from tallystick.operator.topics.kinds import Kind, S
from tallystick.operator.topics.observed import ClusterView, GroupView, formed_groups, group_names
from tallystick.operator.topics.ports import BrokerError, Brokers, GroupAddress

_logger = logging.getLogger(__name__)


class Observer:
    """Reads each group once for each pass. `clock()` returns seconds that never go back.

    It remembers since when a group does not respond; a new process starts to count again.
    """

    def __init__(self, brokers: Brokers, clock: Callable[[], float]) -> None:
        self._brokers = brokers
        self._clock = clock
        self._silent_since: dict[tuple[str, str], float] = {}

    async def observe(
        self,
        kind: Kind[S],
        namespace: str,
        name: str,
        cluster: Mapping[str, Any] | None,
        addresses: Mapping[str, GroupAddress],
    ) -> ClusterView[S]:
        """Returns the groups of one cluster with all objects of the kind. A group without a leader has a reason."""
        if cluster is None:
            return ClusterView(name, exists=False)
        if cluster["metadata"].get("deletionTimestamp"):
            return ClusterView(name, deleting=True)
        formed = formed_groups(cluster)
        if hibernates(cluster["metadata"]):
            asleep: dict[str, GroupView[S]] = {
                group: GroupView(group, None, "the cluster hibernates") for group in addresses
            }
            return ClusterView(name, formed=bool(formed), hibernating=True, groups=asleep)
        groups = await asyncio.gather(
            *(
                self._group_view(kind, namespace, address, formed=group in formed)
                for group, address in addresses.items()
            )
        )
        return ClusterView(name, formed=bool(formed), groups={group.name: group for group in groups})

    async def _group_view(self, kind: Kind[S], namespace: str, address: GroupAddress, *, formed: bool) -> GroupView[S]:
        key = (namespace, address.name)
        if not formed:
            return GroupView(address.name, None, "the group has not formed yet", float("inf"))
        try:
            found = await self._brokers.read(kind, address)
        except BrokerError as error:
            since = self._silent_since.setdefault(key, self._clock())
            _logger.info("%s does not respond: %s", address.name, error)
            return GroupView(address.name, None, "no leader responds", self._clock() - since)
        self._silent_since.pop(key, None)
        return GroupView(address.name, found)


def addresses_of(cluster: Mapping[str, Any] | None) -> dict[str, GroupAddress]:
    """Returns the addresses of all groups of a BrokerCluster by name; empty if there is no cluster."""
    if cluster is None:
        return {}
    metadata, leaders = cluster["metadata"], formed_groups(cluster)
    members = int((cluster.get("spec") or {}).get("replicas") or 3)
    return {
        group: GroupAddress(metadata["namespace"], metadata["name"], number, members, leaders.get(group, ""))
        for number, group in enumerate(group_names(cluster))
    }
