"""The errors of a member.

MemberError
├── NotAcceptingError     nothing was done: ask the leader, or retry later
├── OutcomeUnknownError   it may be done or not: leadership was lost meanwhile
├── ReadError             no index can be confirmed for this read now
├── TransferError         leadership was not transferred; `result` says why
├── ChangeError           the membership was not changed; `reason` says why
└── DiskError             this member's disk cannot be used as it is
    └── NoCopyError       no other member has a sound copy of a damaged entry
        └── UnrepairableError   and each of them has the entry: all copies are damaged
"""

from __future__ import annotations

from tallystick.replication.effects import TransferResult


class MemberError(Exception):
    """Base class of the errors of this module."""


class NotAcceptingError(MemberError):
    """Nothing was accepted: this member does not lead, is not ready, transfers its leadership, has a full disk, or has
    too much data that is not committed.

    `leader`: the leader, as far as this member knows.
    """

    def __init__(self, reason: str, leader: int | None) -> None:
        super().__init__(reason)
        self.leader = leader


class OutcomeUnknownError(MemberError):
    """The request may take effect or not: leadership was lost before its outcome was known (L4, B2)."""


class ReadError(MemberError):
    """No majority, or no leader, confirmed an index. The caller can retry."""


class TransferError(MemberError):
    """The target did not become leader; `leader` is the current leader, if known (T7)."""

    def __init__(self, result: TransferResult, target: int | None, leader: int | None) -> None:
        super().__init__(result.value)
        self.result = result
        self.target = target
        self.leader = leader


class ChangeError(MemberError):
    """The change is not possible at present; nothing was changed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DiskError(MemberError):
    """The member cannot start with the disk's content; nothing was changed."""


class NoCopyError(DiskError):
    """All other members answered a request for a damaged entry: each lacks it, or has no sound copy."""


class UnrepairableError(NoCopyError):
    """A NoCopyError where each other member has the entry: all copies are damaged."""
