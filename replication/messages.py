"""Messages between members about the log and its leader. Pure values: the transport encodes them.

Every message names its sender (`source`), its receiver (`target`) and, except for the pre-vote, the sender's term. A
member answers a request of a lower term with its own term, and drops a reply of a lower term (S2). It counts a reply of
the same term only if the reply echoes the value of the request (S3): `campaign`, `session` or `round`.

`payload` belongs to the driver: the entries' bytes as they are on disk, or the content of a snapshot. The core never
looks at it.

Heartbeats, votes, transfers and reads must not wait behind appends and snapshots: `BULK` has a separate lane (L9).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.membership import MembershipEntry


class TermRun(NamedTuple):
    """Entries of one term: those after the previous run (or after the request's `prev_index`), up to `last_index`."""

    term: int
    last_index: int


# -- election ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreVoteRequest:
    """Asks whether the receiver would vote for the sender in `asked_term`. Changes nothing at the receiver (L3)."""

    source: int
    target: int
    asked_term: int
    campaign: int
    """Number of the sender's attempt. The reply echoes it."""
    last_term: int
    last_index: int


@dataclass(frozen=True, slots=True)
class PreVoteReply:
    source: int
    target: int
    term: int
    """The voter's own term. A granted pre-vote does not raise it."""
    asked_term: int
    campaign: int
    granted: bool
    possible_loss: PossibleLoss = PossibleLoss.NONE
    """If not NONE, the vote counts only if all voters agree (D9)."""


@dataclass(frozen=True, slots=True)
class VoteRequest:
    source: int
    target: int
    term: int
    campaign: int
    last_term: int
    last_index: int
    transfer: bool = False
    """The leader told the sender to stand: voters do not refuse because they hear a leader (T3)."""


@dataclass(frozen=True, slots=True)
class VoteReply:
    source: int
    target: int
    term: int
    campaign: int
    granted: bool
    possible_loss: PossibleLoss = PossibleLoss.NONE
    """If not NONE, the vote counts only if all voters agree (D9)."""


# -- replication -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """The entries (prev_index, last_index], possibly none, and the leader's commit index."""

    source: int
    target: int
    term: int
    session: int
    """The reply echoes it. The leader begins a new session when the receiver returned with fewer entries than
    before."""
    prev_index: int
    prev_term: int
    runs: tuple[TermRun, ...]
    """Terms of the entries, in order; empty if there are no entries."""
    commit_index: int
    memberships: tuple[MembershipEntry, ...] = ()
    """The memberships among the entries."""
    payload: Any = field(default=b"", repr=False)  # bodies of messages do not belong into logs

    @property
    def last_index(self) -> int:
        """Index of the last entry of this request; `prev_index` if it has none."""
        return self.runs[-1].last_index if self.runs else self.prev_index


@dataclass(frozen=True, slots=True)
class AppendReply:
    """Answers an append or a snapshot. The member sends it when everything that it states is durable (D2)."""

    source: int
    target: int
    term: int
    session: int
    incarnation: int
    """0, or a random number of this start if the member may have lost data at this start."""
    success: bool
    prev_index: int
    """Echo of the request's `prev_index` (for a snapshot: of its `snapshot_index`)."""
    match_index: int
    """Success: the log agrees with the leader's up to here; at most the last entry of the request (S8). Otherwise
    -1."""
    disk: DiskState = DiskState.OK
    conflict_term: int | None = None
    """Refusal: term of the entry at `prev_index`; None if there is no such entry (L6)."""
    conflict_index: int = -1
    """Refusal: first index of `conflict_term`; without a term, the index after the last entry."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Announces the leader. A round is sent to all members at once; a read is answered when a majority answered."""

    source: int
    target: int
    term: int
    round: int
    sent_at: float
    """The leader's own clock. The reply echoes it: the lease and the wait for a majority count from here (L4, R3)."""
    commit_index: int
    incarnation: int = 0
    """Echo of the receiver's incarnation, as far as the leader knows it."""
    readmit_index: int | None = None
    """For a member with this incarnation that may have lost data: when it has all entries up to here, it votes and
    counts again (D9, S14)."""


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    source: int
    target: int
    term: int
    round: int
    sent_at: float
    commit_index: int
    incarnation: int = 0
    possible_loss: PossibleLoss = PossibleLoss.NONE
    disk: DiskState = DiskState.OK


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """Tells a member that lacks entries which the leader no longer has to install this snapshot (L11).

    The transport can take long and resume. It passes the message to the receiver's core when `payload` is complete.
    """

    source: int
    target: int
    term: int
    session: int
    snapshot_index: int
    snapshot_term: int
    membership: MembershipEntry
    """The newest committed membership."""
    payload: Any = field(default=b"", repr=False)  # bodies of messages do not belong into logs


# -- reads, transfer, leaving ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A follower asks which index it must have applied before it can answer a read (R2)."""

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
    """None: the receiver of the request does not lead and cannot tell."""


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader tells its successor to stand at once, without a pre-vote (T2, T3)."""

    source: int
    target: int
    term: int


@dataclass(frozen=True, slots=True)
class Removed:
    """Answers a vote request of a process that is not a member according to the entries up to `commit_index` (M6)."""

    source: int
    target: int
    term: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class EntriesLost:
    """Informs a member that it refused entries which it had acknowledged to this leader, up to `match_index` (D8)."""

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
    | EntriesLost
)

BULK = (AppendRequest, AppendReply, InstallRequest)
"""These can wait behind each other; no other message waits behind them (L9)."""
