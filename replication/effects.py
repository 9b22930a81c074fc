"""What the core wants done, as values, in the order in which it is to be done. The order is the contract.

The driver carries out the effects of one call one after the other, all of them before it makes the next call:

1. `SaveVote`, `Truncate` and `InstallBase` are durable before the effect after them is begun (D1, D4).
2. `Write` and `AppendOwn` put entries into the log; that they are written is enough, `Raft.synced` tells the rest.
   After a list with an `AppendOwn` the driver calls `Raft.appended`, after one with an `InstallBase` `Raft.installed`.
3. `Send` needs no answer and may be lost. An append's bytes are taken from the log when the effect is carried out.
4. An effect that fails for the disk's sake ends the list: the rest of it is dropped, and `Raft.disk` is called next.
   A `Write` or `AppendOwn` that failed must have left the log as it was, or with a part of its entries from the front.
5. After `Fatal` nothing is to be done any more.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tallystick.replication.membership import Change, Membership, MembershipEntry
from tallystick.replication.messages import AppendRequest, InstallRequest, Message
from tallystick.store.ledger_format import EntryKind


class Role(enum.Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class TransferResult(enum.Enum):
    """How a transfer of leadership ended (T7). The value is for people."""

    DONE = "the target leads"
    NOT_TAKEN = "another member than the target leads"
    TIMED_OUT = "not done in time"
    NOT_LEADER = "this member does not lead"
    NOT_READY = "the leader is not ready"
    UNDER_WAY = "a transfer is under way"
    NO_TARGET = "no voter other than the leader can take it"
    NOT_A_VOTER = "the target is no other voter"
    UNREACHABLE = "the target does not answer"
    UNHEALTHY = "the target's disk or log is not sound"
    TOO_FAR_BEHIND = "the target lacks too much"


@dataclass(frozen=True, slots=True)
class SaveVote:
    """Make term and vote durable, in one record (D1)."""

    term: int
    voted_for: int | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the entries after `last_kept`, durably (D4). Counters and queues that were built from them roll back (B3).

    A sync that began before must not be reported for entries that are written after: wait for it, or drop its report.
    """

    last_kept: int


@dataclass(frozen=True, slots=True)
class Write:
    """Put the entries of `request` from `first_index` on at the end of the log, which is just before them."""

    request: AppendRequest
    first_index: int


@dataclass(frozen=True, slots=True)
class AppendOwn:
    """Append an entry of this leader's term. `membership` is the content of a MEMBERSHIP entry, None for a NO_OP."""

    index: int
    """Where it must come to stand: the log's end, as the core saw it."""
    term: int
    kind: EntryKind
    membership: Membership | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Hand a message to the transport, for `message.target`."""

    message: Message


@dataclass(frozen=True, slots=True)
class Commit:
    """Entries up to `index` are committed: apply them in order, answer who waits for them if this member leads (B1)."""

    index: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """Role, term or known leader changed.

    From LEADER to any other: whoever waits for a commit is told "outcome unknown" (L4, B2), timers that only a leader
    runs are stopped (B7), and what was taken in and is not in the log yet is dropped.
    """

    role: Role
    term: int
    leader: int | None


@dataclass(frozen=True, slots=True)
class Ready:
    """This leader has committed an entry of its own term: it may take proposals once that is applied (S11)."""

    term: int


@dataclass(frozen=True, slots=True)
class MembershipChanged:
    """The newest membership in the log is another one: appended, or fallen back to by a truncation (M1).

    Its index is made durable outside of the log, before the effect after it: the start's `membership_seen`.
    """

    entry: MembershipEntry


@dataclass(frozen=True, slots=True)
class ChangeRefused:
    """A change of the membership that was asked for cannot be made now; `reason` is for people."""

    change: Change
    reason: str


@dataclass(frozen=True, slots=True)
class RemovedFromGroup:
    """By all that is committed up to `commit_index` this is no member: stop it (M6, M7)."""

    commit_index: int


@dataclass(frozen=True, slots=True)
class Doubted:
    """This member lost entries that were durable, and no start noticed: mark it for `must_catch_up` (LOG), before the
    next effect (D8). `match_index`: up to where a leader knew it to have them."""

    match_index: int


@dataclass(frozen=True, slots=True)
class Readmitted:
    """This member is in doubt no more: remove the mark for `must_catch_up` from its disk, before the next effect.

    That of an emptied disk: an unclean stop marks itself anew with each start, and only a clean stop removes it.
    """


@dataclass(frozen=True, slots=True)
class ReadReady:
    """The read `token` may be answered as soon as this member has applied `index` (R1, R2)."""

    token: int
    index: int


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """The read `token` will get no index here: leadership was lost, or there is no leader to ask. Ask again."""

    token: int


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """A transfer that was asked for, or that the core began itself, is over. `leader`: who leads now, if known."""

    target: int | None
    result: TransferResult
    leader: int | None


@dataclass(frozen=True, slots=True)
class Install:
    """Ship a base to `request.target` and hand it `request` when all is there (L11).

    May take long and go on while other effects are done. One for the same target, base and session that is under way
    goes on; any other replaces it.
    """

    request: InstallRequest


@dataclass(frozen=True, slots=True)
class InstallBase:
    """Replace the log by the base of `request`: base and content first, durably, then drop the old entries (L11).

    Afterwards `first_index` is base_index + 1 and `last_index` is base_index.
    """

    request: InstallRequest


@dataclass(frozen=True, slots=True)
class Refused:
    """A message of `member` was dropped because it cannot be true: count it, and report it (S2, S4, S7).

    The member itself, a stranger that speaks in its name, or the network between is not sound. Nothing has changed
    here, and nothing of it needs to be taken back.
    """

    member: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fatal:
    """Going on would break what the group has promised: stop the process, keep the disk, tell somebody (S7)."""

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
    | Doubted
    | Readmitted
    | ReadReady
    | ReadFailed
    | TransferEnded
    | Install
    | InstallBase
    | Refused
    | Fatal
)
