"""Reasons and phases of backups. Programs depend on them, so they never change."""

from __future__ import annotations

from enum import StrEnum

# Why a backup cannot start now. The operator retries until the deadline.
NO_MEMBER_READY = "NoMemberReady"
DESTINATION_MISSING = "DestinationMissing"
DESTINATION_IS_STORE = "DestinationIsStore"
NAME_TAKEN = "NameTaken"
REFUSED = "Refused"

# Why a backup failed.
ATTEMPTS_FAILED = "AttemptsFailed"
DAMAGED = "Damaged"
DEADLINE_EXCEEDED = "DeadlineExceeded"
INVALID_SPEC = "InvalidSpec"


class Phase(StrEnum):
    """The phase in `status.phase`, and in `status.groups[].phase` (without Deleting of the whole)."""

    PENDING = "Pending"
    RUNNING = "Running"
    VERIFYING = "Verifying"
    COMPLETED = "Completed"
    FAILED = "Failed"
    DELETING = "Deleting"
    DELETED = "Deleted"


OVER = frozenset({Phase.COMPLETED, Phase.FAILED})
ACTIVE = frozenset({Phase.RUNNING, Phase.VERIFYING, Phase.DELETING})
"""Phases of a group that have a Kubernetes Job."""
