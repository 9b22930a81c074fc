"""The actions that the core requests, as values, in the order in which they must be carried out. The order is a
contract.

The driver carries out the effects of one call one after the other, and all of them before the next call:

1. `SaveVote`, `Truncate` and `InstallSnapshot` must be durable before the driver begins the next effect (D1, D4).
2. `Write` and `AppendOwn` append entries to the log. They need to be written, not synced; the driver reports the sync
   with `Raft.synced`. After a list with an `AppendOwn` the driver calls `Raft.appended`, after one with an
   `InstallSnapshot` it calls `Raft.installed`.
3. `Send` needs no answer, and the message can be lost. The transport reads an append's bytes from the log when the
   driver carries out the effect.
4. If an effect fails because of the disk, the driver drops the rest of the list and calls `Raft.disk` next. A `Write`
   or `AppendOwn` that failed must leave the log as it was, or with the first part of its entries.
5. After `Fatal` the driver does nothing more.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tallystick.replication.membership import Change, Membership, MembershipEntry
from tallystick.replication.messages import AppendRequest, InstallRequest, Message
from tallystick.store.formats.ledger_format import EntryKind


class Role(enum.Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class TransferResult(enum.Enum):
    """How a transfer of leadership ended (T7). The values appear in logs and answers."""

    DONE = "the target leads"
    NOT_TAKEN = "another member than the target leads"
    TIMED_OUT = "not done in time"
    NOT_LEADER = "this member does not lead"
    NOT_READY = "the leader is not ready"
    UNDER_WAY = "a transfer is in progress"
    NO_TARGET = "no voter other than the leader can become leader"
    NOT_A_VOTER = "the target is not another voter"
    UNREACHABLE = "the target does not answer"
    UNHEALTHY = "the target's disk or log is not sound"
    TOO_FAR_BEHIND = "the target lacks too many entries"


@dataclass(frozen=True, slots=True)
class SaveVote:
    """Make term and vote durable, in one record (D1)."""

    term: int
    voted_for: int | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log after `last_kept`, durably (D4). Counters and queues that were built from it roll back (B3).

    A sync that began earlier must not be reported for entries that are written later: the driver waits for it, or
    ignores its result.
    """

    last_kept: int


@dataclass(frozen=True, slots=True)
class Write:
    """Append the entries of `request` from `first_index` on to the log, which ends just before them."""

    request: AppendRequest
    first_index: int


@dataclass(frozen=True, slots=True)
class AppendOwn:
    """Append an entry of this leader's term. `membership` is the content of a MEMBERSHIP entry, None for a NO_OP."""

    index: int
    """The index that the entry must get: the end of the log as the core saw it."""
    term: int
    kind: EntryKind
    membership: Membership | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Pass a message to the transport, which sends it to `message.target`."""

    message: Message


@dataclass(frozen=True, slots=True)
class Commit:
    """Entries up to `index` are committed: apply them in order. A leader then answers the waiting callers (B1)."""

    index: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """Role, term or known leader changed.

    After a change from LEADER to another role, the driver answers callers that wait for a commit with "outcome
    unknown" (L4, B2), stops the timers that only a leader runs (B7), and drops what was accepted and is not in the log.
    """

    role: Role
    term: int
    leader: int | None


@dataclass(frozen=True, slots=True)
class Ready:
    """This leader has committed an entry of its current term: it can take proposals once it has applied it (S11)."""

    term: int


@dataclass(frozen=True, slots=True)
class MembershipChanged:
    """The newest membership in the log changed, through an append or through a truncation that restores an older one
    (M1).

    The driver stores its index durably outside of the log before the next effect: it is `membership_seen` at a start.
    """

    entry: MembershipEntry


@dataclass(frozen=True, slots=True)
class ChangeRefused:
    """A requested change of the membership is not possible at present; `reason` is a text for people."""

    change: Change
    reason: str


@dataclass(frozen=True, slots=True)
class RemovedFromGroup:
    """According to the entries committed up to `commit_index` this is not a member: stop it (M6, M7)."""

    commit_index: int


@dataclass(frozen=True, slots=True)
class LossDetected:
    """This member lost durable entries, and no start detected it. Before the next effect, the driver writes the mark
    for `must_catch_up` (LOG) to the disk (D8). `match_index`: the leader knew that the member had the entries up to
    here."""

    match_index: int


@dataclass(frozen=True, slots=True)
class Readmitted:
    """The group has readmitted this member: the driver removes the mark for `must_catch_up` from the disk first.

    This is the mark of an emptied disk. The mark of an unclean stop is written at each start and removed only by a
    clean stop.
    """


@dataclass(frozen=True, slots=True)
class ReadReady:
    """The read `token` can be answered as soon as this member has applied `index` (R1, R2)."""

    token: int
    index: int


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """The read `token` gets no index: leadership was lost, or there is no leader to ask. The caller can retry."""

    token: int


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """A transfer ended that was requested or that the core began itself. `leader` is the current leader, if known."""

    target: int | None
    result: TransferResult
    leader: int | None


@dataclass(frozen=True, slots=True)
class SendSnapshot:
    """Ship a snapshot to `request.target` and deliver `request` there when the snapshot is complete (L11).

    This can take long and continues while other effects run. An effect for the same target, snapshot and session as a
    running one lets it continue; any other effect replaces it.
    """

    request: InstallRequest


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Replace the log by the snapshot of `request`: first store the snapshot durably, then drop the old entries (L11).

    Afterwards `first_index` is snapshot_index + 1 and `last_index` is snapshot_index.
    """

    request: InstallRequest


@dataclass(frozen=True, slots=True)
class Refused:
    """The core dropped a message of `member` because it cannot be true: count and report it (S2, S4, S7).

    The sender is faulty, another process uses its name, or the network is faulty. The state of this member has not
    changed, so nothing needs to be undone.
    """

    member: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fatal:
    """Continuing would break the group's guarantees: stop the process, keep the disk, inform an operator (S7)."""

    reason: str


Effect = (
    SaveVote
    | Truncate
    | Write
    | AppendOwn
    | Send
    | Commit
    | RoleChanged
    | Ready
    | MembershipChanged
    | ChangeRefused
    | RemovedFromGroup
    | LossDetected
    | Readmitted
    | ReadReady
    | ReadFailed
    | TransferEnded
    | SendSnapshot
    | InstallSnapshot
    | Refused
    | Fatal
)
