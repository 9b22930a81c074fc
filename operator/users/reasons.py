"""Reasons in the status of Users. Programs depend on them, so they never change."""

from __future__ import annotations

RECONCILED = "Reconciled"
INVALID_SPEC = "InvalidSpec"
CONFLICT = "Conflict"
CLUSTER_NOT_FOUND = "ClusterNotFound"
CLUSTER_DELETING = "ClusterDeleting"
NO_ACCESS_CONTROL = "NoAccessControl"
SECRET_MISSING = "SecretMissing"
SECRET_INVALID = "SecretInvalid"
SECRET_REFUSED = "SecretRefused"
NAME_TAKEN = "NameTaken"
ALREADY_EXISTS = "AlreadyExists"
REFUSED_BY_BROKER = "RefusedByBroker"
GROUP_UNAVAILABLE = "GroupUnavailable"
NAME_SERVERS_PENDING = "NameServersPending"
DELETING = "Deleting"
