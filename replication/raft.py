"""The consensus of one member: told what happened, it answers what to do. No clock, no I/O, no thread of its own.

Rule ids (S1, D2, L3, ...) are those of docs/replication.md; the paper is Ongaro and Ousterhout, "In Search of an
Understandable Consensus Algorithm", and Ongaro's dissertation for pre-vote, transfer, membership and reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tallystick.replication.durable import DiskState, Doubt, HardState, LogView
from tallystick.replication.effects import Effect, Role
from tallystick.replication.membership import Change, Membership, MembershipEntry
from tallystick.replication.messages import Message
from tallystick.replication.settings import RaftSettings


class Raft:
    """One member of a group.

    Every call takes `now` (seconds of a clock that never goes back) and returns effects, in the order in which they are
    to be carried out (`effects` says how).

    The driver's part:
    - carry out all effects of a call before the next call;
    - `tick` at `deadline` or somewhat later, `step` with each message for this member;
    - a leader's proposals: put into the log only while `accepting`, as entries of `term`; then `appended`. When
      `transfer` or `change_membership` is called, all that was accepted is in the log;
    - `synced` when a sync came back, with the index up to which the log *as it is now* is durable;
    - `disk` when a write or sync failed, when space ran out and when it is back.
    """

    def __init__(
        self,
        member_id: int,
        settings: RaftSettings,
        log: LogView,
        *,
        hard_state: HardState,
        memberships: Sequence[MembershipEntry],
        random: Random,
        now: float,
        commit_index: int = -1,
        must_catch_up: Doubt = Doubt.NONE,
    ) -> None:
        """`log`: all that it shows is durable. `memberships`: all membership entries in the log and the newest before
        its first entry, oldest first; the bootstrap's has index -1; none for a member that waits to be let in.
        `commit_index`: a hint, as it was last saved (D6). `must_catch_up`: what may have been forgotten since (D9,
        S14); such a member neither votes nor counts, except where all voters agree, until a leader readmits it.
        """
        # Durable: what SaveVote said last.
        self.term: int
        self.voted_for: int | None
        # Volatile.
        self.role: Role
        self.leader: int | None
        self.commit_index: int
        self.synced_index: int
        """The own log is durable up to here."""
        self.ready: bool
        """Leads, and has committed an entry of its own term (S11)."""
        self.doubt: Doubt
        self.disk_state: DiskState
        self.fatal: str | None
        """Why this machine stopped; every call then returns no effects."""
        raise NotImplementedError

    # -- what the driver and invariants look at ------------------------------------------------------------------------

    @property
    def membership(self) -> Membership:
        """The newest in the log, committed or not (M1)."""
        raise NotImplementedError

    @property
    def membership_index(self) -> int:
        """Index of its entry; -1: from the bootstrap. Committed once `commit_index` is there."""
        raise NotImplementedError

    @property
    def accepting(self) -> bool:
        """Whether proposals may be put into the log now: leads, is ready, hands nothing over, can write."""
        raise NotImplementedError

    @property
    def deadline(self) -> float:
        """When `tick` has something to do next, if nothing else happens."""
        raise NotImplementedError

    @property
    def match_indexes(self) -> dict[int, int]:
        """Leader: up to where each other member's durable log is known to agree; else empty."""
        raise NotImplementedError

    @property
    def transfer_target(self) -> int | None:
        """The member to which leadership is being handed."""
        raise NotImplementedError

    # -- what happened -------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: stand for election (L1, L9), send heartbeats, notice a lost majority (L4), send again."""
        raise NotImplementedError

    def step(self, now: float, message: Message) -> list[Effect]:
        """A message came in. One for another target is dropped."""
        raise NotImplementedError

    def appended(self, now: float) -> list[Effect]:
        """Entries of this leader's term were put at the end of the log. RuntimeError: this member does not lead."""
        raise NotImplementedError

    def synced(self, now: float, index: int) -> list[Effect]:
        """The log is durable up to `index`: replies that waited for it go out, a leader counts itself (D2, D3, S10)."""
        raise NotImplementedError

    def disk(self, now: float, state: DiskState) -> list[Effect]:
        """FULL: hands leadership over or steps down, never stands (L10); OK: there is space again. FAILED: steps down
        and says nothing any more (D7); nothing but a new start ends that.

        Looks at the log anew: what a failed write left out is forgotten.
        """
        raise NotImplementedError

    def link_opened(self, now: float, member: int) -> list[Effect]:
        """A connection to `member` was opened: what was on its way on the former one may be lost.

        Optional: without it a loss is noticed after `append_timeout_seconds`.
        """
        raise NotImplementedError

    # -- what is wanted ------------------------------------------------------------------------------------------------

    def read(self, now: float, token: int) -> list[Effect]:
        """From where may a read be answered? Ends in ReadReady(token) or ReadFailed(token).

        A follower asks the leader; that may be lost on the way, then it ends in neither. Tokens are not used twice.
        """
        raise NotImplementedError

    def transfer(self, now: float, target: int | None = None) -> list[Effect]:
        """Hand leadership to `target`, or to the voter that is furthest.

        Ends in one TransferEnded, at the latest after an election timeout; no proposals are accepted until then (T2).
        """
        raise NotImplementedError

    def change_membership(self, now: float, change: Change) -> list[Effect]:
        """Append the changed membership, or ChangeRefused.

        It is done when `commit_index` reaches `membership_index`; its outcome is unknown if leadership is lost before.
        """
        raise NotImplementedError
