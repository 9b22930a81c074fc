"""Reasons in the status of topics. Programs depend on them, so they never change. README.md describes each one."""

from __future__ import annotations

RECONCILED = "Reconciled"
WAITING_FOR_CLUSTER = "WaitingForCluster"
CLUSTER_NOT_FOUND = "ClusterNotFound"
CLUSTER_DELETING = "ClusterDeleting"
CLUSTER_HIBERNATED = "ClusterHibernated"
GROUP_UNAVAILABLE = "GroupUnavailable"
GROUP_NOT_FOUND = "GroupNotFound"
WRITE_FAILED = "WriteFailed"

INVALID_SPEC = "InvalidSpec"
CONFLICT = "Conflict"
ALREADY_EXISTS = "AlreadyExists"
REFUSED_BY_BROKER = "RefusedByBroker"
QUEUES_NOT_LOWERED = "QueuesNotLowered"
"""Reason of Synced only: the topic works and has more queues than declared."""

NAME_TAKEN = "NameTaken"
"""The ConfigMap in which ownership is recorded belongs to another owner."""

DELETING = "Deleting"
NOT_EMPTY = "NotEmpty"
