"""Reasons and phases of jobs. Programs depend on them, so they never change. README.md describes each one."""

from __future__ import annotations

from enum import StrEnum

# Why a run cannot start now. The operator retries until the deadline.
TOPIC_NOT_FOUND = "TopicNotFound"
GROUP_NOT_FORMED = "GroupNotFormed"
CLAIM_MISSING = "ClaimMissing"
OUTPUT_CLAIM_MISSING = "OutputClaimMissing"
OUTPUT_IS_STORE = "OutputIsStore"
NO_IMAGE = "NoImage"
PROGRAM_MISSING = "ProgramMissing"
BACKUP_MISSING = "BackupMissing"
BACKUP_NOT_COMPLETED = "BackupNotCompleted"
REFUSED = "Refused"
"""The API server rejected an object: a quota, an admission policy, a missing permission."""
NAME_TAKEN = "NameTaken"
"""An object that does not belong to the StoreJob has a name that the StoreJob needs."""

# Why an attempt failed.
NOT_DONE = "NotDone"
PROGRAM_FAILED = "ProgramFailed"
DRIVER_FAILED = "DriverFailed"
DRIVER_LOST = "DriverLost"
NO_RESULT = "NoResult"
PLAN_LOST = "PlanLost"
DEADLINE_EXCEEDED = "DeadlineExceeded"
INVALID_SPEC = "InvalidSpec"

# Of templates.
INVALID_SCHEDULE = "InvalidSchedule"


class Phase(StrEnum):
    """The phase in `status.phase`, with the names that other Spark operators use."""

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
"""Phases of an ended run."""
