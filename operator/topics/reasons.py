"""The words of conditions: programs look for them, so they stay. What each means to people is in README.md."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

RECONCILED = "Reconciled"
WAITING_FOR_CLUSTER = "WaitingForCluster"
CLUSTER_NOT_FOUND = "ClusterNotFound"
CLUSTER_DELETING = "ClusterDeleting"
GROUP_UNAVAILABLE = "GroupUnavailable"
GROUP_NOT_FOUND = "GroupNotFound"
WRITE_FAILED = "WriteFailed"

INVALID_SPEC = "InvalidSpec"
CONFLICT = "Conflict"
ALREADY_EXISTS = "AlreadyExists"
REFUSED_BY_BROKER = "RefusedByBroker"
QUEUES_NOT_LOWERED = "QueuesNotLowered"
"""Of the condition Synced alone: it works, with more queues than declared."""

DELETING = "Deleting"
NOT_EMPTY = "NotEmpty"


class Phase(StrEnum):
    """One word for all of it, in `status.phase`."""

    PENDING = "Pending"
    READY = "Ready"
    REFUSED = "Refused"
    DELETING = "Deleting"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something is not as declared. `message` is for its author, and says what helps if anything does."""

    phase: Phase
    reason: str
    message: str
