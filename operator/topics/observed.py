"""The observed state of a cluster as values: its broker groups, and the objects that the leader of each reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from tallystick.operator.core.members import group_count
from tallystick.operator.topics.kinds import S, group_name


@dataclass(frozen=True, slots=True)
class GroupView(Generic[S]):
    """One broker group. `found`: None without a leader that responds; `reason` and `silent_seconds` then say why and
    for how long."""

    name: str
    found: Mapping[str, S] | None
    reason: str = ""
    silent_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterView(Generic[S]):
    """One cluster. `formed`: a group of it has had a leader."""

    name: str
    exists: bool = True
    deleting: bool = False
    formed: bool = True
    hibernating: bool = False
    """No broker of it is to run."""
    groups: Mapping[str, GroupView[S]] = field(default_factory=dict)

    @property
    def going(self) -> bool:
        """Whether the cluster does not exist or is being deleted."""
        return not self.exists or self.deleting


def group_names(cluster: Mapping[str, Any] | None) -> list[str]:
    """Returns the broker groups of a BrokerCluster, in their order."""
    if cluster is None:
        return []
    return [group_name(cluster["metadata"]["name"], number) for number in range(group_count(cluster))]


def formed_groups(cluster: Mapping[str, Any]) -> dict[str, str]:
    """Returns the formed groups according to the status, with their last leader (empty: unknown)."""
    rows = (cluster.get("status") or {}).get("groups") or ()
    return {str(row.get("name")): str(row.get("leader") or "") for row in rows if row.get("formed")}
