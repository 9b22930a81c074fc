"""What members say to each other about the log and its leader. Values only: the transport gives them bytes.

Every message names its sender (`source`), its receiver (`target`) and, but for the pre-vote, the sender's term. A
request of a lower term is answered with the receiver's term, a reply of a lower term is dropped (S2); a reply of the
same term is counted only with the echo of what it answers (S3): `campaign`, `session`, `round`.

`payload` is the driver's: the entries' bytes as they lie on disk, or the content of a base. The core never looks at it.

Heartbeats, votes, transfer and reads must not wait behind appends and bases: `BULK` has a lane of its own (L9).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tallystick.replication.durable import DiskState, Doubt
from tallystick.replication.membership import MembershipEntry


class TermRun(NamedTuple):
    """Entries of one term: those after the run before (or after the request's `prev_index`), up to `last_index`."""

    term: int
    last_index: int


# -- election ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreVoteRequest:
    """Would you vote for me in `asked_term`? Changes nothing at the receiver (L3)."""

    source: int
    target: int
    asked_term: int
    campaign: int
    """Echoed in the reply: which of the sender's attempts this is."""
    last_term: int
    last_index: int


@dataclass(frozen=True, slots=True)
class PreVoteReply:
    source: int
    target: int
    term: int
    """The voter's own term, which an agreement does not raise."""
    asked_term: int
    campaign: int
    granted: bool
    doubt: Doubt = Doubt.NONE
    """Not NONE: counts only where every voter agrees (D9)."""


@dataclass(frozen=True, slots=True)
class VoteRequest:
    source: int
    target: int
    term: int
    campaign: int
    last_term: int
    last_index: int
    transfer: bool = False
    """The leader told the sender to stand: voters do not stick to it (T3)."""


@dataclass(frozen=True, slots=True)
class VoteReply:
    source: int
    target: int
    term: int
    campaign: int
    granted: bool
    doubt: Doubt = Doubt.NONE
    """Not NONE: counts only where every voter agrees (D9)."""


# -- replication -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Entries (prev_index, last_index], maybe none, and up to where the leader has committed."""

    source: int
    target: int
    term: int
    session: int
    """Echoed in the reply. The leader begins a new one when the receiver came back with less than it had."""
    prev_index: int
    prev_term: int
    runs: tuple[TermRun, ...]
    """Terms of the entries, in order; empty: no entries."""
    commit_index: int
    memberships: tuple[MembershipEntry, ...] = ()
    """Those of the entries that are memberships."""
    payload: Any = field(default=b"", repr=False)  # bodies of messages do not belong into logs

    @property
    def last_index(self) -> int:
        """Index of the last entry inside; `prev_index` if there is none."""
        return self.runs[-1].last_index if self.runs else self.prev_index


@dataclass(frozen=True, slots=True)
class AppendReply:
    """Of an append or of a base. Sent when all that it says is durable (D2)."""

    source: int
    target: int
    term: int
    session: int
    incarnation: int
    """0, or a random number of this start of a member that began in doubt."""
    success: bool
    prev_index: int
    """Echo of the request's (of a base: its `base_index`)."""
    match_index: int
    """Success: the log agrees with the leader's up to here; never more than this request told (S8). Else -1."""
    disk: DiskState = DiskState.OK
    conflict_term: int | None = None
    """Refused: term of the entry at `prev_index`; None: there is no entry (L6)."""
    conflict_index: int = -1
    """Refused: first index of `conflict_term`; without a term, the index after the last entry."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The leader is there. Of one round, sent to all members at once; a read is answered when a majority answered."""

    source: int
    target: int
    term: int
    round: int
    sent_at: float
    """The leader's own clock, echoed: its lease and its patience count from here (L4, R3)."""
    commit_index: int
    incarnation: int = 0
    """Echo of the receiver's, as far as the leader knows it."""
    readmit_index: int | None = None
    """To a member in doubt of that incarnation: with all entries up to here it may vote and count again (D9, S14)."""


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    source: int
    target: int
    term: int
    round: int
    sent_at: float
    commit_index: int
    incarnation: int = 0
    doubt: Doubt = Doubt.NONE
    disk: DiskState = DiskState.OK


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """To a member that lacks entries which the leader does not keep any more (L11): begin anew behind this base.

    The transport may take long and resume; the message is handed to the receiver's core when `payload` is complete.
    """

    source: int
    target: int
    term: int
    session: int
    base_index: int
    base_term: int
    membership: MembershipEntry
    """The newest committed one."""
    payload: Any = field(default=b"", repr=False)  # bodies of messages do not belong into logs


# -- reads, transfer, leaving ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A follower asks up to where it must have applied before it may answer a read (R2)."""

    source: int
    target: int
    term: int
    token: int


@dataclass(frozen=True, slots=True)
class ReadReply:
    source: int
    target: int
    term: int
    token: int
    index: int | None
    """None: the receiver of the question cannot say, it does not lead."""


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader to its successor: stand at once, without pre-vote (T2, T3)."""

    source: int
    target: int
    term: int


@dataclass(frozen=True, slots=True)
class Removed:
    """Answer to a vote of who does not belong to the group, by all that is committed up to `commit_index` (M6)."""

    source: int
    target: int
    term: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """To a member that refused what it had acknowledged to this leader, up to `match_index` (D8)."""

    source: int
    target: int
    term: int
    match_index: int


Message = (
    PreVoteRequest
    | PreVoteReply
    | VoteRequest
    | VoteReply
    | AppendRequest
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | InstallRequest
    | ReadRequest
    | ReadReply
    | TimeoutNow
    | Removed
    | Forgotten
)

BULK = (AppendRequest, AppendReply, InstallRequest)
"""May wait behind each other; nothing else may wait behind them (L9)."""
