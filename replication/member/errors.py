"""What a member answers when it cannot do what it is asked.

MemberError
├── NotAcceptingError     nothing was done: ask the leader, or later
├── OutcomeUnknownError   it may be done or not: leadership was lost on the way
├── ReadError             no index can be had for this read now
├── TransferError         leadership was not handed over; `result` says why
├── ChangeError           the membership was not changed; `reason` says why
└── DiskError             this member's disk cannot be used as it is
    └── UnrepairableError no other member has a sound copy of a damaged entry
"""

from __future__ import annotations

from tallystick.replication.effects import TransferResult


class MemberError(Exception):
    """Base of all of them."""


class NotAcceptingError(MemberError):
    """Nothing was taken in: this member does not lead, is not ready, hands over, is full, or has too much under way.

    `leader`: who leads, as far as is known.
    """

    def __init__(self, reason: str, leader: int | None) -> None:
        super().__init__(reason)
        self.leader = leader


class OutcomeUnknownError(MemberError):
    """What was asked for may come to pass or not: leadership was lost before it was known (L4, B2)."""


class ReadError(MemberError):
    """No majority, or no leader, confirmed an index. Ask again."""


class TransferError(MemberError):
    """Leadership did not go to the target; `leader` is who leads now, as far as is known (T7)."""

    def __init__(self, result: TransferResult, target: int | None, leader: int | None) -> None:
        super().__init__(result.value)
        self.result = result
        self.target = target
        self.leader = leader


class ChangeError(MemberError):
    """The change cannot be made now; nothing was done."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DiskError(MemberError):
    """The disk's content does not let this member start, and nothing was changed."""


class NoCopyError(DiskError):
    """A damaged entry was asked for at all other members. All of them answered: each lacks it, or has no sound copy."""


class UnrepairableError(NoCopyError):
    """The same, and each of them has the entry: all copies are damaged."""
