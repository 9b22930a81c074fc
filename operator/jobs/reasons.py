"""The words of conditions and phases: programs look for them, so they stay. README.md says what each means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# Why a run cannot start now; it is tried again until its deadline.
CLUSTER_NOT_FOUND = "ClusterNotFound"
CLUSTER_DELETING = "ClusterDeleting"
GROUP_NOT_FOUND = "GroupNotFound"
GROUP_NOT_FORMED = "GroupNotFormed"
CLAIM_MISSING = "ClaimMissing"
OUTPUT_CLAIM_MISSING = "OutputClaimMissing"
OUTPUT_IS_STORE = "OutputIsStore"
NO_IMAGE = "NoImage"
REFUSED = "Refused"
"""By the API server: quota, admission, a name that is taken."""

# Why an attempt failed.
NOT_DONE = "NotDone"
DRIVER_FAILED = "DriverFailed"
DRIVER_LOST = "DriverLost"
NO_RESULT = "NoResult"
PLAN_LOST = "PlanLost"
DEADLINE_EXCEEDED = "DeadlineExceeded"
INVALID_SPEC = "InvalidSpec"

# Of templates.
INVALID_SCHEDULE = "InvalidSchedule"


class Phase(StrEnum):
    """One word for all of it, in `status.phase`; those that people know of other operators for Spark."""

    SUBMITTED = "Submitted"
    RUNNING = "Running"
    SUCCEEDING = "Succeeding"
    COMPLETED = "Completed"
    PENDING_RERUN = "PendingRerun"
    FAILING = "Failing"
    FAILED = "Failed"
    SUBMISSION_FAILED = "SubmissionFailed"
    SUSPENDED = "Suspended"
    SCHEDULED = "Scheduled"


OVER = frozenset({Phase.COMPLETED, Phase.FAILED})
"""Nothing more happens to a run in these."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something is not done now. `message` is for its author, and says what helps if anything does."""

    reason: str
    message: str
