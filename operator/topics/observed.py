"""What a pass knows of a cluster when it decides: its broker groups, and what each one's leader says it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from tallystick.operator.topics.kinds import S, group_name


@dataclass(frozen=True, slots=True)
class GroupView(Generic[S]):
    """One broker group. `found` is None if nobody could say: then `reason` says why, and for how long it is so."""

    name: str
    found: Mapping[str, S] | None
    reason: str = ""
    silent_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterView(Generic[S]):
    """One cluster; `formed`: some group of it has had a leader, so there is something to ask."""

    name: str
    exists: bool = True
    deleting: bool = False
    formed: bool = True
    groups: Mapping[str, GroupView[S]] = field(default_factory=dict)

    @property
    def going(self) -> bool:
        """There is nothing to keep here, and nothing to wait for."""
        return not self.exists or self.deleting


def group_names(cluster: Mapping[str, Any] | None) -> list[str]:
    """Broker groups that a BrokerCluster asks for, in their order."""
    if cluster is None:
        return []
    count = int((cluster.get("spec") or {}).get("groups") or 1)
    return [group_name(cluster["metadata"]["name"], number) for number in range(count)]


def formed_groups(cluster: Mapping[str, Any]) -> dict[str, str]:
    """Those that have formed by the cluster's status, with the member that led last (empty: not known)."""
    rows = (cluster.get("status") or {}).get("groups") or ()
    return {str(row.get("name")): str(row.get("leader") or "") for row in rows if row.get("formed")}
