"""Reasons and phases of ScheduledBackups. Programs depend on them, so they never change."""

from __future__ import annotations

from enum import StrEnum

INVALID_SPEC = "InvalidSpec"
SUSPENDED = "Suspended"

# Why a Backup that is due is not created now. The operator retries.
PREVIOUS_RUNNING = "PreviousBackupRunning"
DELETION_RUNNING = "DeletionRunning"
NAME_TAKEN = "NameTaken"
REFUSED = "Refused"
DEADLINE_EXCEEDED = "StartingDeadlineExceeded"
"""Final for this scheduled time."""

# Why Backups that the retention does not keep exist.
DELETING = "Deleting"
BACKUP_RUNNING = "BackupRunning"
IN_USE = "InUse"


class Phase(StrEnum):
    """The phase in `status.phase`."""

    SCHEDULED = "Scheduled"
    WAITING = "Waiting"
    SUSPENDED = "Suspended"
    INVALID = "Invalid"
