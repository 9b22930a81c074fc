"""The consensus of one member: it is told what happened, and answers with the effects to carry out. It uses no clock,
no I/O and no threads.

    FOLLOWER ──silence──▶ PRE_CANDIDATE ──agreed──▶ CANDIDATE ──elected──▶ LEADER
        ▲                      ▲  └─silence──▶ again     │                    │
        │                      └────────silence──────────┘                    │
        └───────── a newer term, a leader of this term, no majority ──────────┘

The sections are, in this order: election, terms and roles, what a leader says (follower), what followers say (leader),
commit, reads, transfer, membership, the disk. Other modules hold parts of the state: `term_runs` (terms of the log),
`peers` and `sender` (the progress of a follower, and what it is sent), `leadership` (majorities), `election`, `reads`,
`transfer` and `acknowledgements`. Only this module changes term, vote, role and commit index.

Letters with numbers (S1, D2, L3, ...) are the rules listed in the README beside this file. Sources: Ongaro and
Ousterhout, "In Search of an Understandable Consensus Algorithm", and Ongaro's dissertation "Consensus: Bridging Theory
and Practice" for pre-vote, transfer, membership and reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, ClassVar

from tallystick.replication.acknowledgements import Acknowledgements
from tallystick.replication.bounds import TERM_JUMP_MAX, TERM_MAX, FarTerms
from tallystick.replication.durable import DiskState, HardState, LogView, PossibleLoss
from tallystick.replication.effects import (
    AppendOwn,
    ChangeRefused,
    Commit,
    Effect,
    Fatal,
    InstallSnapshot,
    LossDetected,
    MembershipChanged,
    ReadFailed,
    Readmitted,
    ReadReady,
    Ready,
    Refused,
    RemovedFromGroup,
    Role,
    RoleChanged,
    SaveVote,
    Send,
    TransferEnded,
    TransferResult,
    Truncate,
    Write,
)
from tallystick.replication.election import Campaign, ElectionTimer
from tallystick.replication.leadership import Leadership
from tallystick.replication.membership import (
    Change,
    Membership,
    MembershipEntry,
    MembershipError,
    MembershipHistory,
    Promote,
    changed,
)
from tallystick.replication.messages import (
    AppendReply,
    AppendRequest,
    EntriesLost,
    Heartbeat,
    HeartbeatReply,
    InstallRequest,
    Message,
    PreVoteReply,
    PreVoteRequest,
    ReadReply,
    ReadRequest,
    Removed,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from tallystick.replication.peers import Peer
from tallystick.replication.reads import Read
from tallystick.replication.sender import Sender
from tallystick.replication.settings import RaftSettings
from tallystick.replication.term_runs import TermRuns
from tallystick.replication.transfer import Transfer, transfer_refusal
from tallystick.store.formats.ledger_format import EntryKind

_Effects = list[Effect]
_NEVER = float("-inf")
_REMOVED_TIMEOUTS = 10
"""After so many election timeouts, a member that was told that it is removed asks again. This disturbs no member
(L3)."""


class Raft:
    """One member of a group.

    Every call takes `now` (seconds of a clock that never goes back) and returns effects in the order in which they must
    be carried out (see `effects`).

    The driver must:
    - carry out all effects of a call before the next call;
    - call `tick` at `deadline` or somewhat later, and `step` with each message for this member;
    - append a leader's proposals to the log only while `accepting`, as entries of `term`, and then call `appended`.
      When it calls `transfer` or `change_membership`, all accepted proposals are in the log;
    - call `synced` after a sync, with the index up to which the log *as it is now* is durable;
    - call `installed` after it carried out an InstallSnapshot;
    - call `disk` when a write or sync failed, when space ran out, and when there is space again.

    A start is told what the disk holds:
    - `log`: everything that it shows is durable;
    - `memberships`: all membership entries in the log and the newest one before its first entry, oldest first; the one
      of the bootstrap has index -1; empty for a member that waits to be added;
    - `commit_index`: a hint, as it was last saved (D6);
    - `must_catch_up`: what may have been lost since the last start. LOG after an unclean stop with asynchronous flush
      (D9), and with a log that lost durable entries (D8). VOTES with an empty disk under the number of an earlier
      member (S14), and whenever that is not known. Until a leader readmits it, such a member neither votes nor counts,
      except where all voters agree;
    - `membership_seen`: the highest index of a membership entry that this member ever had;
    - `readable`: see the method of that name.
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
        must_catch_up: PossibleLoss = PossibleLoss.NONE,
        membership_seen: int = -1,
        readable: bool = True,
    ) -> None:
        """Starts a follower. SettingsError: see `RaftSettings.validate`."""
        settings.validate()
        self.id = member_id
        self._settings, self._log, self._random = settings, log, random
        self._terms = TermRuns.of(log)
        self._history = MembershipHistory(memberships)

        # Durable: the last SaveVote. If the log is ahead of it, the store lost its vote or never had one. The vote in
        # that term is then unknown, and counts as given.
        self.term = hard_state.term
        self.voted_for = hard_state.voted_for
        if self._terms.last_term > self.term:
            self.term, self.voted_for = self._terms.last_term, member_id
        self._term_at_start = self.term

        self.role = Role.FOLLOWER
        self.leader: int | None = None
        self.commit_index = min(max(commit_index, self._terms.base_index), self._terms.last_index)
        self.synced_index = self._terms.last_index
        """This member's log is durable up to here."""
        self.possible_loss = must_catch_up
        """What this member may have lost; NONE after it was readmitted."""
        self._membership_seen = membership_seen
        self.incarnation = random.getrandbits(62) + 1 if must_catch_up else 0
        self.disk_state = DiskState.OK
        self._readable = readable
        self.fatal: str | None = None
        """Why the core stopped; None while it runs."""
        self.elected_by: frozenset[int] = frozenset()
        """The voters of this member in the last election that it won."""
        self.leadership_lost = ""
        """Why this member last lost leadership, as a text for people."""
        self.halted = False
        """The core is stopped, or its disk failed. Every call then returns no effects."""

        # Follower: the index up to which the log agrees with this term's leader, and that leader's commit index.
        self._verified_index = -1
        self._leader_commit = -1
        self._acknowledgements = Acknowledgements()
        self._asked: dict[int, float] = {}  # reads that a leader was asked for, and when, oldest first
        # With leases, a start promises to wait: this member may have heard from a leader before it (R3).
        self._heard_at = now if settings.lease_reads else _NEVER
        self._removed_at = -1  # a member said: by what is committed up to here this is not a member (M6)
        self._removed_until = now  # until when this member believes it
        self._far_terms = FarTerms()
        self._leave_at = now  # when a leader without space next looks for a member that has more

        self._timer = ElectionTimer(settings.election_timeout_seconds, random, now)
        self._campaign: Campaign | None = None
        self._leading: Leadership | None = None
        self._transfer: Transfer | None = None
        self._prefer_again_at = now
        if self.membership.voters == {member_id}:
            self._timer.fire(now)  # L8

    # -- state for the driver and for invariants -----------------------------------------------------------------------

    @property
    def membership(self) -> Membership:
        """The newest membership in the log, committed or not (M1)."""
        return self._history.latest.membership

    @property
    def membership_index(self) -> int:
        """Index of the newest membership's entry; -1 from the bootstrap. It is committed at that `commit_index`."""
        return self._history.latest.index

    @property
    def ready(self) -> bool:
        """Whether this member leads and has committed an entry of its current term (S11)."""
        return self._leading is not None and self._leading.ready

    @property
    def accepting(self) -> bool:
        """Whether proposals can be appended: this member leads, is ready, transfers nothing, and can write."""
        return self.ready and self._transfer is None and self.disk_state.can_write and not self.halted

    @property
    def deadline(self) -> float:
        """When `tick` has something to do, if nothing else happens before."""
        if self.halted:
            return float("inf")
        due = self._timer.deadline if self._leading is None else self._leading.heartbeat_due
        return due if self._transfer is None else min(due, self._transfer.deadline)

    @property
    def peers(self) -> dict[int, Peer]:
        """Leader: the other members' progress, by member (do not modify); otherwise empty."""
        return {} if self._leading is None else self._leading.peers

    @property
    def match_indexes(self) -> dict[int, int]:
        """Leader: the index up to which each other member's durable log is known to agree; otherwise empty."""
        return {member: peer.match_index for member, peer in self.peers.items()}

    def silent_seconds(self, now: float) -> float | None:
        """Seconds since this member last heard a leader; None if it never heard one."""
        return None if self._heard_at == _NEVER else now - self._heard_at

    @property
    def removed(self) -> bool:
        """Whether a member that knows of later commits said that this one is not in the group (M6)."""
        return self._removed_at > self.membership_index

    @property
    def voters_with_room(self) -> int:
        """Leader: number of voters whose disk is not known to be low or full, including itself; otherwise 0."""
        leading = self._leading
        if leading is None:
            return 0
        own = leading.counts_itself and self.disk_state is DiskState.OK
        return own + sum(peer.disk is DiskState.OK for peer in leading.voters)

    @property
    def _told_disk(self) -> DiskState:
        """The disk state for other members. A member that cannot read its log reports LOW and gets no leadership
        (L12)."""
        return DiskState.LOW if self.disk_state is DiskState.OK and not self._readable else self.disk_state

    @property
    def transfer_target(self) -> int | None:
        """The member to which leadership is being transferred."""
        return None if self._transfer is None else self._transfer.target

    # -- events --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: stands for election (L1, L9), sends heartbeats, detects a lost majority (L4), sends
        again."""
        effects: _Effects = []
        if self.halted:
            return effects
        if self._transfer is not None and now >= self._transfer.deadline:
            self._transfer_timed_out(now, effects)
        if self._leading is not None:
            if now >= self._leading.heartbeat_due:
                self._lead_on(now, self._leading, effects)
        elif self._timer.expired(now):
            self._leader_is_silent(now, effects)
        self._give_up_reads(now, effects)
        return effects

    def step(self, now: float, message: Message) -> list[Effect]:
        """Handles a message. It drops one for another target, and refuses one that cannot be true."""
        effects: _Effects = []
        if not self.halted and message.target == self.id and self._is_near(now, message, effects):
            self._HANDLERS[type(message)](self, now, message, effects)
        return effects

    def appended(self, now: float) -> list[Effect]:
        """Entries of this leader's term were appended to the log. Raises RuntimeError if this member does not lead."""
        effects: _Effects = []
        if self.halted:
            return effects
        leading = self._leading
        if leading is None:
            raise RuntimeError("entries were appended by a member that does not lead")
        self._terms.append(self.term, self._log.last_index)
        for peer in leading.peers.values():
            leading.sender.feed(now, peer, self.commit_index, effects)
        if leading.regrouped:
            leading.regrouped = False
            self._advance_commit(now, leading, effects)
        return effects

    def synced(self, now: float, index: int) -> list[Effect]:
        """The log is durable up to `index`: sends the replies that waited for it; a leader counts itself (D2, D3,
        S10)."""
        effects: _Effects = []
        if self.halted:
            return effects
        if self._leading is not None and index > self._terms.last_index:
            # The sync finished before the call of `appended`, which follows: the entries are of this term.
            self._terms.append(self.term, min(index, self._log.last_index))
        index = min(index, self._terms.last_index)
        if index > self.synced_index:
            self.synced_index = index
            if self._leading is not None:
                self._advance_commit(now, self._leading, effects)
            else:
                reply = self._acknowledgements.covered(index)
                if reply is not None:
                    effects.append(Send(reply))
                self._follow_commit(effects)
        return effects

    def installed(self, now: float, request: InstallRequest) -> list[Effect]:
        """The driver carried out `request`'s InstallSnapshot: the log begins behind the snapshot, which is applied.

        Raises RuntimeError if the log does not begin there.
        """
        effects: _Effects = []
        if self.halted:
            return effects
        if self._log.first_index != request.snapshot_index + 1:
            raise RuntimeError(f"the log begins at {self._log.first_index}, not after entry {request.snapshot_index}")
        self._terms.reset(request.snapshot_index, request.snapshot_term)
        self._history.reset(request.membership)
        effects.append(MembershipChanged(request.membership))
        self._acknowledgements.clear()
        self.commit_index = self.synced_index = request.snapshot_index
        self._verified_index = -1
        if request.term == self.term:
            self._verified_index = request.snapshot_index
            effects.append(Send(self._append_reply(request, request.snapshot_index, request.snapshot_index)))
        return effects

    def disk(self, now: float, state: DiskState) -> list[Effect]:
        """The state of the disk changed.

        LOW, FULL: a leader hands over to a member with more space if there is one, otherwise it continues to lead; with
        FULL a member does not stand for election (L10). OK: there is space again. FAILED: the member steps down and
        sends nothing more until a restart (D7).

        Reads the log's end again: entries that a failed write did not append are dropped.
        """
        effects: _Effects = []
        if self.halted:
            return effects
        self.disk_state = state
        if state is DiskState.FAILED:
            if self._leading is not None:
                self._hand_over(now, self._leading, effects)
            self._become_follower(now, None, effects, "its disk failed")
            self._end_transfer(TransferResult.TIMED_OUT, effects)
            self.halted = True
            return effects
        self._look_at_log_again(now, effects)
        if state is DiskState.OK or self.fatal is not None:
            return effects
        if self._leading is not None:
            self._make_room_for_another(now, self._leading, effects)
        elif state is DiskState.FULL and self.role is not Role.FOLLOWER:
            self._become_follower(now, None, effects)
        return effects

    def readable(self, now: float, readable: bool) -> list[Effect]:
        """States whether this member can read all of its log. If not, it neither stands nor continues to lead: as a
        leader it would answer from a state that lacks committed entries, and it could not send these entries (L12).

        It votes, and counts for what it has acknowledged: it is known which entries it has, and it gets them back.
        """
        effects: _Effects = []
        self._readable = readable
        if self.halted or readable or self.role is Role.FOLLOWER:
            return effects
        if self._leading is not None:
            self._hand_over(now, self._leading, effects)
        self._become_follower(now, None, effects, "a part of its log cannot be read")
        return effects

    def link_opened(self, now: float, member: int) -> list[Effect]:
        """A connection to `member` was opened: what was sent on the previous one may be lost.

        This call is optional: without it a loss is detected after `append_timeout_seconds`.
        """
        effects: _Effects = []
        if not self.halted and self._leading is not None and (peer := self._leading.peers.get(member)) is not None:
            self._leading.sender.feed_again(now, peer, self.commit_index, effects)
        return effects

    # -- requests ------------------------------------------------------------------------------------------------------

    def read(self, now: float, token: int) -> list[Effect]:
        """Asks which index a read must see. Ends in one ReadReady or ReadFailed of `token`, which must be unique."""
        effects: _Effects = []
        if self.halted or self.leader is None:
            effects.append(ReadFailed(token))
        elif self._leading is not None:
            self._read(now, self._leading, Read(token, None), effects)
        else:
            self._asked[token] = now
            effects.append(Send(ReadRequest(self.id, self.leader, self.term, token)))
        return effects

    def transfer(self, now: float, target: int | None = None) -> list[Effect]:
        """Transfers leadership to `target`, or to the voter with the longest log.

        Ends in one TransferEnded within an election timeout; no proposals are accepted until then (T2).
        """
        effects: _Effects = []
        leading = self._leading
        if self.halted or leading is None:
            effects.append(TransferEnded(target, TransferResult.NOT_LEADER, self.leader))
            return effects
        if target is None:
            best = leading.best_successor(now - self._settings.election_timeout_seconds)
            target = None if best is None else best.member
        elif (peer := leading.peers.get(target)) is not None and peer.disk.rank < self.disk_state.rank:
            # A leader can choose the best member itself; it does not send leadership where it cannot stay.
            effects.append(TransferEnded(target, TransferResult.UNHEALTHY, self.id))
            return effects
        refusal = transfer_refusal(now, leading, self._transfer, self._settings, target)
        if refusal is not None or target is None:
            effects.append(TransferEnded(target, refusal or TransferResult.NO_TARGET, self.id))
        else:
            self._begin_transfer(now, leading, target, effects)
        return effects

    def change_membership(self, now: float, change: Change) -> list[Effect]:
        """Appends the changed membership, or returns ChangeRefused.

        The change is complete when `commit_index` reaches `membership_index`. If leadership is lost before, its outcome
        is unknown.
        """
        effects: _Effects = []
        leading = self._leading
        reason = self._change_refusal(now, leading, change)
        if reason is None:
            try:
                membership = changed(self.membership, change)
            except MembershipError as error:
                reason = error.reason
        if reason is not None or leading is None:
            effects.append(ChangeRefused(change, reason or ""))
            return effects
        self._append_membership(now, leading, membership, effects)
        return effects

    def restate_membership(self, now: float) -> list[Effect]:
        """Appends the membership of the bootstrap if no entry has it: the group was founded on a log of dledger. A
        member that gets all entries then also gets the membership (M8). It changes no majority. Call it when the leader
        is ready."""
        effects: _Effects = []
        leading = self._leading
        is_missing = self.membership_index < 0 and not self.halted
        if leading is not None and leading.ready and is_missing and self.disk_state.can_write:
            self._append_membership(now, leading, self.membership, effects)
        return effects

    def _append_membership(self, now: float, leading: Leadership, membership: Membership, effects: _Effects) -> None:
        entry = MembershipEntry(self._log.last_index + 1, membership)
        effects.append(AppendOwn(entry.index, self.term, EntryKind.MEMBERSHIP, membership))
        self._history.append(entry)  # M1: in force from now on; what it commits is checked once it is in the log
        effects.append(MembershipChanged(entry))
        leading.regroup(membership, next_index=entry.index, now=now)

    # -- election ------------------------------------------------------------------------------------------------------

    def _leader_is_silent(self, now: float, effects: _Effects) -> None:
        self._timer.reset(now)
        if self.term >= TERM_MAX:
            self._refuse(self.id, f"there is no term above {self.term}: this member cannot be a candidate", effects)
            return
        if self.removed and now >= self._removed_until:
            self._removed_at = -1  # the sender may not have been a member: ask again (M6)
        if not self._may_stand():
            if self.leader is not None or self.role is not Role.FOLLOWER:
                self._become_follower(now, None, effects)
            self._ask_whether_still_a_member(effects)
        elif self.membership.voters == {self.id}:
            self._stand(now, effects)  # L8
        else:
            self._ask_whether_to_stand(effects)

    def _may_stand(self) -> bool:
        # A member whose removal is not committed may be the only one that has what others need. It leads without
        # counting itself until the removal is committed (M7). The membership before the newest one is committed (M2),
        # whatever this member knows: after a start, its own commit index is an old hint.
        newest, before = self.membership, self._history.at(self.membership_index - 1).membership
        removal_open = self.membership_index > self.commit_index
        leaving = removal_open and self.id in before.voters and self.id not in newest.members
        return (
            (self.id in newest.voters or leaving)
            and self.disk_state.can_write  # L10
            and self._readable  # L12
            and self.possible_loss is not PossibleLoss.VOTES  # S14: its own vote does not count
            # D8: otherwise it is unknown who else must agree.
            and not (self.possible_loss and self._membership_seen > self.membership_index)
            and not self.removed  # M6
        )

    def _ask_whether_to_stand(self, effects: _Effects) -> None:
        """The pre-vote: term and vote do not change (L3)."""
        campaign = self._begin_campaign(self.term + 1, pre=True)
        self._take_role(Role.PRE_CANDIDATE, None, effects)
        self._send_pre_vote(campaign.number, effects)

    def _ask_whether_still_a_member(self, effects: _Effects) -> None:
        """A member that may not stand sends nothing by itself, and would never learn of its removal (M6).

        It therefore sends a pre-vote: a member that knows of the removal answers so, and other answers are ignored.
        """
        if self.id in self.membership.members and not self.removed:
            self._send_pre_vote(self._random.getrandbits(62), effects)

    def _send_pre_vote(self, number: int, effects: _Effects) -> None:
        last_term, last_index = self._terms.last_term, self._terms.last_index
        for voter in self._other_voters():
            effects.append(Send(PreVoteRequest(self.id, voter, self.term + 1, number, last_term, last_index)))

    def _stand(self, now: float, effects: _Effects, *, transfer: bool = False) -> None:
        """The election: a new term with the own vote, which is durable before the member asks for votes (D1)."""
        self._raise_term(self.term + 1, self.id, effects)
        campaign = self._begin_campaign(self.term, pre=False)
        self._take_role(Role.CANDIDATE, None, effects)
        self._timer.reset(now)
        if campaign.won(self.membership):
            self._lead(now, effects)
            return
        last_term, last_index = self._terms.last_term, self._terms.last_index
        for voter in self._other_voters():
            ask = VoteRequest(self.id, voter, self.term, campaign.number, last_term, last_index, transfer)
            effects.append(Send(ask))

    def _begin_campaign(self, term: int, *, pre: bool) -> Campaign:
        campaign = self._campaign = Campaign(term, self._random.getrandbits(62), pre=pre)
        campaign.count(self.id, granted=True, possible_loss=self.possible_loss)
        return campaign

    def _other_voters(self) -> list[int]:
        return sorted(self.membership.voters - {self.id})

    def _sticks(self, now: float) -> bool:
        """A leader is there, or this member is the leader: it supports no other candidate (L3, L5)."""
        return self._leading is not None or now - self._heard_at < self._settings.election_timeout_seconds

    def _is_up_to_date(self, request: PreVoteRequest | VoteRequest) -> bool:
        """Whether the candidate's log has everything that a majority may have received through this member (S1).

        A member cannot compare what it has lost, but a membership that it knew of must be there: a candidate without
        that membership may count the voters of an older one (D8).
        """
        if self.possible_loss and request.last_index < self._membership_seen:
            return False
        return (request.last_term, request.last_index) >= (self._terms.last_term, self._terms.last_index)

    def _tell_removed(self, member: int, effects: _Effects) -> bool:
        """Whether a candidate whose log lacks entries is no longer a member, and was told so (M6).

        A candidate whose log lacks nothing may have been added again by an entry that this member does not have yet.
        """
        if member in self.membership.members or self.membership_index > self.commit_index:
            return False
        if not self._readable:
            return False  # the membership itself may be what cannot be read (L12)
        effects.append(Send(Removed(self.id, member, self.term, self.commit_index)))
        return True

    def _on_pre_vote_request(self, now: float, request: PreVoteRequest, effects: _Effects) -> None:
        up_to_date = self._is_up_to_date(request)
        if not up_to_date and self._tell_removed(request.source, effects):
            return
        granted = up_to_date and request.asked_term > self.term and not self._sticks(now)
        reply = PreVoteReply(
            self.id, request.source, self.term, request.asked_term, request.campaign, granted, self.possible_loss
        )
        effects.append(Send(reply))  # L3: nothing durable, no new term, no timer

    def _on_vote_request(self, now: float, request: VoteRequest, effects: _Effects) -> None:
        """Grants or refuses a vote. A learner that is asked became a voter by an entry that it lacks, and answers
        (M5)."""
        up_to_date = self._is_up_to_date(request)
        if request.term >= self.term:
            if not request.transfer and self._sticks(now):
                return  # L5: it does not adopt the term either
            if not up_to_date and self._tell_removed(request.source, effects):
                return
            if request.term > self.term:  # S2 and S1 in one durable record
                self._enter_term(now, request.term, request.source if up_to_date else None, None, effects)
            elif self.voted_for is None and up_to_date:
                self.voted_for = request.source
                effects.append(SaveVote(self.term, self.voted_for))
                if self.role is not Role.FOLLOWER:
                    self._become_follower(now, None, effects)
        granted = request.term == self.term and self.voted_for == request.source and up_to_date
        if granted:
            self._timer.reset(now)  # L2
        reply = VoteReply(self.id, request.source, self.term, request.campaign, granted, self.possible_loss)
        effects.append(Send(reply))

    def _on_pre_vote_reply(self, now: float, reply: PreVoteReply, effects: _Effects) -> None:
        # S3: only answers to this attempt count. The term of a granting reply can be lower than the own term.
        if reply.term > self.term:
            self._enter_term(now, reply.term, None, None, effects)
            return
        campaign, answered = self._campaign, (reply.asked_term, reply.campaign)
        if campaign is not None and campaign.pre and answered == (campaign.term, campaign.number):
            campaign.count(reply.source, granted=reply.granted, possible_loss=reply.possible_loss)
            if campaign.won(self.membership):
                self._stand(now, effects)

    def _on_vote_reply(self, now: float, reply: VoteReply, effects: _Effects) -> None:
        campaign = self._campaign
        if not self._is_current(now, reply.term, effects) or campaign is None:
            return
        if campaign.pre or reply.campaign != campaign.number:  # S3
            return
        campaign.count(reply.source, granted=reply.granted, possible_loss=reply.possible_loss)
        if campaign.won(self.membership):
            self._lead(now, effects)
        elif campaign.lost(self.membership):
            self._timer.retry_soon(now)

    def _on_timeout_now(self, now: float, message: TimeoutNow, effects: _Effects) -> None:
        """The leader wants this member to lead (T3). A message of an older term is too late (T4)."""
        if (
            self._is_current(now, message.term, effects)
            and self.role is Role.FOLLOWER
            and self.leader == message.source
            and self._may_stand()
            and self.term < TERM_MAX
        ):
            self._stand(now, effects, transfer=True)

    def _on_removed(self, now: float, message: Removed, effects: _Effects) -> None:
        """Another member says that this one was removed, which holds in any term. It does not apply to a member that
        was added again later, as its log shows (M6). A membership in its log from before `commit_index` was superseded,
        or it was truncated and never took effect."""
        self._is_current(now, message.term, effects)
        newest = max(self.membership_index, self._removed_at)
        if self._leading is None and message.commit_index > newest:
            self._removed_at = message.commit_index
            self._removed_until = now + _REMOVED_TIMEOUTS * self._settings.election_timeout_seconds
            if self.role is not Role.FOLLOWER:
                self._become_follower(now, None, effects)
            effects.append(RemovedFromGroup(message.commit_index))

    # -- terms and roles -----------------------------------------------------------------------------------------------

    def _is_near(self, now: float, message: Message, effects: _Effects) -> bool:
        """Whether the group can have reached the message's term since this member last heard of it (S2, `bounds`)."""
        term = message.asked_term if isinstance(message, PreVoteRequest) else message.term
        if term <= self.term + TERM_JUMP_MAX:
            self._far_terms.near(message.source)
            return True
        from_leader = isinstance(message, Heartbeat | AppendRequest | InstallRequest)
        if from_leader and self.term <= 0 and term <= TERM_MAX:
            return True  # a new member has no term to compare with
        self._refuse(message.source, f"term {term} is far above this member's term {self.term}", effects)
        if self._far_terms.said(message.source, self.membership.voters, self.id):
            self._enter_term(now, min(self.term + TERM_JUMP_MAX, TERM_MAX), None, None, effects)
        return False

    def _refuse(self, member: int, reason: str, effects: _Effects) -> None:
        effects.append(Refused(member, reason))

    def _is_current(self, now: float, term: int, effects: _Effects) -> bool:
        """Whether a reply is of this term. A newer term ends what was in progress, an older one is dropped (S2, S3)."""
        if term > self.term:
            self._enter_term(now, term, None, None, effects)
            return False
        return term == self.term

    def _enter_term(self, now: float, term: int, voted_for: int | None, leader: int | None, effects: _Effects) -> None:
        """Follows a newer term that another member began (S2)."""
        self._raise_term(term, voted_for, effects)
        if leader is not None:
            why = f"n{leader} leads term {term}"
        else:
            why = f"term {term} began" if voted_for is None else f"n{voted_for} is a candidate in term {term}"
        self._become_follower(now, leader, effects, why)

    def _raise_term(self, term: int, voted_for: int | None, effects: _Effects) -> None:
        """The only place that drops a vote: together with its term, and in one record (S1)."""
        assert term > self.term
        self.term, self.voted_for = term, voted_for
        effects.append(SaveVote(term, voted_for))
        # The waiting answers are for an earlier leader. The next one has to show again how far the logs agree and what
        # is committed: a wrong commit index of one leader must not outlive its term.
        self._leader_commit = -1
        self._acknowledgements.clear()
        self._verified_index = -1

    def _become_follower(self, now: float, leader: int | None, effects: _Effects, why: str = "") -> None:
        """`why`: the reason for people, if this member led."""
        if self._leading is not None:
            self.leadership_lost = why
        leading, self._leading, self._campaign = self._leading, None, None
        self._take_role(Role.FOLLOWER, leader, effects)
        if leading is not None:
            self._timer.reset(now)
            for read in leading.reads.drain():
                self._answer_read(read, None, effects)

    def _take_role(self, role: Role, leader: int | None, effects: _Effects) -> None:
        self.role, self.leader = role, leader
        effects.append(RoleChanged(role, self.term, leader))
        effects.extend(ReadFailed(token) for token in self._asked)
        self._asked.clear()
        if leader is not None:
            taken = leader == self.transfer_target
            self._end_transfer(TransferResult.DONE if taken else TransferResult.NOT_TAKEN, effects)

    def _lead(self, now: float, effects: _Effects) -> None:
        """This member is elected. Heartbeats announce it at once; the no-op commits entries of earlier terms (S10,
        S11)."""
        self.elected_by = frozenset() if self._campaign is None else self._campaign.granted
        self._campaign = None
        self._take_role(Role.LEADER, self.id, effects)
        if self.possible_loss:
            # A majority that lost nothing, or all voters, elected this log: it has all that this member may have lost.
            self.possible_loss = PossibleLoss.NONE
            effects.append(Readmitted())
        term_start = self._terms.last_index + 1
        sender = Sender(self.id, self.term, self._settings, self._log, self._terms, self._history)
        leading = self._leading = Leadership(self.id, self.membership, term_start, sender, now)
        leading.heartbeat_due = now + self._settings.heartbeat_interval_seconds
        self._send_heartbeats(now, leading, effects)
        effects.append(AppendOwn(term_start, self.term, EntryKind.NO_OP))

    def _stop(self, reason: str, effects: _Effects) -> None:
        self.fatal, self.halted = reason, True
        effects.append(Fatal(reason))

    # -- follower: what a leader says ----------------------------------------------------------------------------------

    def _heard(self, now: float, request: AppendRequest | Heartbeat | InstallRequest, effects: _Effects) -> bool:
        """Whether the request comes from the leader of this term, which this member now follows."""
        if request.term < self.term:
            return False
        if request.term > self.term:
            self._enter_term(now, request.term, None, request.source, effects)
        elif self.leader is None:
            self._become_follower(now, request.source, effects)
        elif self.leader != request.source:
            self._refuse(request.source, f"it claims term {self.term}, which n{self.leader} leads (S4)", effects)
            return False
        self._removed_at = -1  # a leader sends only to its members (M6)
        self._timer.reset(now)  # L2: also when the entries will be refused
        self._heard_at = now
        return True

    def _on_append_request(self, now: float, request: AppendRequest, effects: _Effects) -> None:
        if not self._heard(now, request, effects):
            if request.term < self.term:  # L5: an old leader then steps down
                effects.append(Send(self._append_reply(request, request.prev_index, None)))
            return
        terms, prev_index, last = self._terms, request.prev_index, request.last_index
        if prev_index >= terms.base_index and terms.term_of(prev_index) != request.prev_term:  # S5
            if prev_index <= self.commit_index:
                reason = f"its entry {prev_index}, which is committed here, has term {request.prev_term} (S7)"
                self._refuse(request.source, reason, effects)
                return
            effects.append(Send(self._append_reply(request, prev_index, None)))
            return
        # Everything up to the base is committed and equal in both logs. Behind it, compare entry by entry (S6).
        agreed = terms.agree_up_to(max(prev_index, terms.base_index), request.runs)
        # The commit effect comes first: a write that fails drops the effects behind it.
        self._verified_index = max(self._verified_index, min(agreed, last))
        self._leader_commit = max(self._leader_commit, request.commit_index)
        self._follow_commit(effects)
        if agreed < last:
            if not self._fits_behind(agreed, request, effects):
                return
            if self.disk_state.can_write:
                if agreed < terms.last_index:
                    self._cut(agreed, effects)
                self._take_entries(request, agreed + 1, effects)
            else:
                last = agreed  # L10: the reply says why
        self._verified_index = max(self._verified_index, last)
        self._acknowledge(self._append_reply(request, prev_index, last), effects)

    def _fits_behind(self, agreed: int, request: AppendRequest, effects: _Effects) -> bool:
        """Whether the entries after `agreed` can be accepted: they replace no committed entry (S7), and their terms do
        not decrease."""
        if agreed < self.commit_index:
            reason = f"its entry {agreed + 1} differs from the committed one (S7)"
            self._refuse(request.source, reason, effects)
            return False
        known = self._terms.term_of(agreed)
        first = next(run.term for run in request.runs if run.last_index > agreed)
        if known is None or first < known:
            self._refuse(request.source, f"its entry {agreed + 1} has term {first}, after term {known}", effects)
            return False
        return True

    def _cut(self, last_kept: int, effects: _Effects) -> None:
        """Removes entries that no leader committed (S6)."""
        effects.append(Truncate(last_kept))
        self._terms.truncate(last_kept)
        self.synced_index = min(self.synced_index, last_kept)
        self._fall_back(last_kept, effects)

    def _take_entries(self, request: AppendRequest, first: int, effects: _Effects) -> None:
        effects.append(Write(request, first))
        for run in request.runs:
            self._terms.append(run.term, run.last_index)
        before = self._history.latest
        for entry in request.memberships:
            if entry.index >= first and entry.index > self._history.latest.index:
                self._history.append(entry)
        if self._history.latest is not before:
            effects.append(MembershipChanged(self._history.latest))

    def _acknowledge(self, reply: AppendReply, effects: _Effects) -> None:
        if reply.match_index <= self.synced_index:
            effects.append(Send(reply))
        else:
            self._acknowledgements.add(reply)  # D2

    def _append_reply(
        self, request: AppendRequest | InstallRequest, prev_index: int, match_index: int | None
    ) -> AppendReply:
        """A success with `match_index`, which is at most the request's last entry (S8); without it a refusal."""
        source, target, session = self.id, request.source, request.session
        if match_index is not None:
            return AppendReply(
                source, target, self.term, session, self.incarnation, True, prev_index, match_index, self._told_disk
            )
        conflict_term = self._terms.term_of(prev_index)
        if conflict_term is None:
            conflict_index = self._terms.last_index + 1
        else:  # L6; what is committed agrees in any case
            conflict_index = max(self._terms.first_of_run(prev_index), self.commit_index + 1)
        return AppendReply(
            source,
            target,
            self.term,
            session,
            self.incarnation,
            False,
            prev_index,
            -1,
            self._told_disk,
            conflict_term,
            conflict_index,
        )

    def _on_heartbeat(self, now: float, heartbeat: Heartbeat, effects: _Effects) -> None:
        if self._heard(now, heartbeat, effects):
            self._leader_commit = max(self._leader_commit, heartbeat.commit_index)
            self._follow_commit(effects)
            if self.possible_loss and heartbeat.incarnation == self.incarnation and heartbeat.readmit_index is not None:
                self._readmit_self(heartbeat.readmit_index, effects)
        elif heartbeat.term == self.term:
            return  # S4
        # L5: an old leader learns the newer term, but not the round: it may lead that term by now, and would count the
        # answer for a round of it (S3).
        reply = HeartbeatReply(
            self.id,
            heartbeat.source,
            self.term,
            heartbeat.round if heartbeat.term == self.term else 0,
            heartbeat.sent_at,
            self.commit_index,
            self.incarnation,
            self.possible_loss,
            self._told_disk,
        )
        effects.append(Send(reply))

    def _readmit_self(self, readmit_index: int, effects: _Effects) -> None:
        """Counts again when the log has all entries that a majority could have had from this member (D9, S14)."""
        if min(self._verified_index, self.synced_index) >= readmit_index:
            self.possible_loss = PossibleLoss.NONE
            effects.append(Readmitted())

    def _follow_commit(self, effects: _Effects) -> None:
        """S9: commits up to where the log agrees with the leader's, regardless of later entries. Only durable entries
        are committed, so that a failed write removes nothing that was applied."""
        index = min(self._leader_commit, self._verified_index, self.synced_index)
        if index > self.commit_index:
            self.commit_index = index
            effects.append(Commit(index))

    def _on_entries_lost(self, now: float, message: EntriesLost, effects: _Effects) -> None:
        """D8. While its leader leads, a follower's log does not end before what the follower acknowledged. If it does,
        the disk lost durable entries in a way that looks like the log's end."""
        lacks = message.match_index > self._terms.last_index
        if (
            not self._is_current(now, message.term, effects)
            or self.leader != message.source
            or not lacks
            or self.possible_loss
        ):
            return
        if self.term != self._term_at_start:
            # This process knows what it acknowledged in a term that began after its start: only a start can have lost
            # it.
            self._refuse(message.source, f"it claims that entry {message.match_index} was acknowledged here", effects)
            return
        self.possible_loss, self.incarnation = PossibleLoss.LOG, self._random.getrandbits(62) + 1
        self._acknowledgements.clear()
        effects.append(LossDetected(message.match_index))

    def _on_install_request(self, now: float, request: InstallRequest, effects: _Effects) -> None:
        snapshot_index = request.snapshot_index
        if not self._heard(now, request, effects):
            if request.term < self.term:
                effects.append(Send(self._append_reply(request, snapshot_index, None)))
        elif snapshot_index <= self.commit_index or self._terms.term_of(snapshot_index) == request.snapshot_term:
            # Nothing is missing. The entries behind the snapshot may have been acknowledged and must stay.
            self._verified_index = max(self._verified_index, snapshot_index)
            self._acknowledge(self._append_reply(request, snapshot_index, snapshot_index), effects)
        elif self.disk_state.can_write:
            effects.append(InstallSnapshot(request))  # L11; `installed` answers

    # -- leader: what followers say ------------------------------------------------------------------------------------

    def _on_append_reply(self, now: float, reply: AppendReply, effects: _Effects) -> None:
        leading = self._leading
        if not self._is_current(now, reply.term, effects) or leading is None:
            return
        peer = leading.peers.get(reply.source)
        if peer is None:
            return
        if reply.incarnation != peer.incarnation and peer.meet(reply.incarnation):
            leading.sender.feed(now, peer, self.commit_index, effects)
            return
        if reply.session != peer.session:
            return  # S3: it answers what was sent before the member lost entries
        last_index = self._terms.last_index
        if reply.success and not -1 <= reply.match_index <= last_index:
            self._refuse(reply.source, f"it acknowledges entry {reply.match_index} of {last_index} (S3)", effects)
            return
        if not -1 <= reply.prev_index <= last_index:
            return  # S3: of an earlier leadership; the log was truncated since
        if not reply.success:
            if peer.refused(reply, self._terms):
                leading.sender.feed(now, peer, self.commit_index, effects)
            elif peer.contradicts(reply):
                effects.append(Send(EntriesLost(self.id, peer.member, self.term, peer.match_index)))
            return
        rose = peer.accepted(reply.match_index, self._log.first_index, now)
        if reply.disk is not DiskState.OK:
            peer.disk = reply.disk
            if not reply.disk.can_write:
                peer.pause(now)
        if rose and reply.match_index > self.commit_index:
            self._advance_commit(now, leading, effects)
            if self._leading is None:
                return
        leading.sender.feed(now, peer, self.commit_index, effects)
        if self._transfer is not None:
            self._drive_transfer(leading, effects)

    def _on_heartbeat_reply(self, now: float, reply: HeartbeatReply, effects: _Effects) -> None:
        leading = self._leading
        if not self._is_current(now, reply.term, effects) or leading is None:
            return
        peer = leading.peers.get(reply.source)
        if peer is None or reply.round <= peer.acked_round or reply.sent_at < leading.began_at:
            return  # S3: it answers an earlier leadership of this member
        if reply.round > leading.round or not reply.sent_at <= now:
            reason = f"it answers round {reply.round} of {leading.round}, sent {reply.sent_at - now} s from now (S3)"
            self._refuse(reply.source, reason, effects)
            return
        anew = peer.meet(reply.incarnation)
        peer.acked_round, peer.acked_at = reply.round, reply.sent_at
        can_write_again = not peer.disk.can_write and reply.disk.can_write
        peer.disk = reply.disk
        if reply.possible_loss is not peer.possible_loss:
            peer.possible_loss = reply.possible_loss
            self._advance_commit(now, leading, effects)
            if self._leading is None:
                return
        if leading.reads.oldest_round is not None:
            self._confirm_reads(now, leading, effects)
        if anew or can_write_again:
            leading.sender.feed_again(now, peer, self.commit_index, effects)
        else:
            leading.sender.tell_commit(peer, reply.commit_index, self.commit_index, effects)

    def _lead_on(self, now: float, leading: Leadership, effects: _Effects) -> None:
        """The work of each heartbeat interval, regardless of how many rounds reads have caused since the last one."""
        settings = self._settings
        heard_at, late_by = leading.heard_at(now), now - leading.heartbeat_due
        leading.heartbeat_due = now + settings.heartbeat_interval_seconds
        if late_by > settings.election_timeout_seconds / 2 and leading.patient_from <= heard_at:
            leading.patient_from = now  # L9: the own loop was blocked; answers may be unread
        if max(heard_at, leading.patient_from) + settings.election_timeout_seconds <= now:
            why = f"no majority answered for {settings.election_timeout_seconds:g} s"
            self._become_follower(now, None, effects, why)  # L4
            return
        for peer in leading.peers.values():
            if leading.sender.is_overdue(now, peer):
                leading.sender.feed_again(now, peer, self.commit_index, effects)
        if self._transfer is not None:
            if self._transfer.told:  # the first message may be lost
                effects.append(Send(TimeoutNow(self.id, self._transfer.target, self.term)))
        elif self.disk_state is not DiskState.OK:
            if now >= self._leave_at:
                self._make_room_for_another(now, leading, effects)
                if self._leading is None:
                    return
        elif settings.preferred_leader is not None:
            self._consider_preferred(now, leading, settings.preferred_leader, effects)
        self._send_heartbeats(now, leading, effects)

    def _send_heartbeats(self, now: float, leading: Leadership, effects: _Effects) -> None:
        """Sends a round to all members. It serves the waiting reads (R1), and readmits members with a possible loss
        (D9, S14)."""
        leading.round += 1
        leading.reads.sent(leading.round, self.commit_index)
        for peer in leading.peers.values():
            if peer.possible_loss:
                self._consider_readmission(leading, peer)
            heartbeat = Heartbeat(
                self.id,
                peer.member,
                self.term,
                leading.round,
                now,
                self.commit_index,
                peer.incarnation or 0,
                peer.readmit_index,
            )
            effects.append(Send(heartbeat))
        if leading.quorum == 1:
            self._confirm_reads(now, leading, effects)

    def _consider_readmission(self, leading: Leadership, peer: Peer) -> None:
        """Readmits at the current end of the log, once it is certain that this leader is the newest one now."""
        if peer.readmit_round is None:
            peer.readmit_round, peer.readmit_target = leading.round, self._terms.last_index
        elif peer.readmit_index is None and leading.confirmed_without(peer, peer.readmit_round):
            peer.readmit_index = peer.readmit_target

    # -- leader: commit ------------------------------------------------------------------------------------------------

    def _advance_commit(self, now: float, leading: Leadership, effects: _Effects) -> None:
        index = leading.committed_index(self.synced_index)
        if index <= self.commit_index or index < leading.term_start:
            return  # S10: entries of earlier terms are committed only with one of this term
        self.commit_index = index
        effects.append(Commit(index))
        if not leading.counts_itself and self.membership_index <= index:  # M7
            self._hand_over(now, leading, effects)
            self._become_follower(now, None, effects, "it was removed from the group")
            effects.append(RemovedFromGroup(index))
        elif not leading.ready:
            leading.ready = True
            effects.append(Ready(self.term))
            leading.reads.make_ready()
            if leading.reads.round_wanted:
                self._send_heartbeats(now, leading, effects)

    # -- reads ---------------------------------------------------------------------------------------------------------

    def _read(self, now: float, leading: Leadership, read: Read, effects: _Effects) -> None:
        if not leading.ready:
            leading.reads.add_early(read)  # it is not known yet what earlier leaders committed
        elif self._settings.lease_reads and leading.has_lease(now, self._settings):  # R3
            self._answer_read(read, self.commit_index, effects)
        else:
            leading.reads.add(read)
            if leading.reads.round_wanted:
                self._send_heartbeats(now, leading, effects)

    def _confirm_reads(self, now: float, leading: Leadership, effects: _Effects) -> None:
        for commit_index, read in leading.reads.confirmed(leading.confirmed_round()):
            self._answer_read(read, commit_index, effects)
        if leading.reads.round_wanted:
            self._send_heartbeats(now, leading, effects)

    def _answer_read(self, read: Read, index: int | None, effects: _Effects) -> None:
        if read.asker is not None:
            effects.append(Send(ReadReply(self.id, read.asker, self.term, read.token, index)))
        elif index is not None:
            effects.append(ReadReady(read.token, index))
        else:
            effects.append(ReadFailed(read.token))

    def _on_read_request(self, now: float, request: ReadRequest, effects: _Effects) -> None:
        read = Read(request.token, request.source)
        if self._is_current(now, request.term, effects) and self._leading is not None:
            self._read(now, self._leading, read, effects)
        else:
            self._answer_read(read, None, effects)

    def _on_read_reply(self, now: float, reply: ReadReply, effects: _Effects) -> None:
        if self._is_current(now, reply.term, effects) and self._asked.pop(reply.token, None) is not None:
            self._answer_read(Read(reply.token, None), reply.index, effects)

    def _give_up_reads(self, now: float, effects: _Effects) -> None:
        """Fails reads whose question or answer was lost."""
        while self._asked:
            token, asked_at = next(iter(self._asked.items()))
            if now - asked_at < self._settings.election_timeout_seconds:
                return
            del self._asked[token]
            effects.append(ReadFailed(token))

    # -- transfer ------------------------------------------------------------------------------------------------------

    def _begin_transfer(self, now: float, leading: Leadership, target: int, effects: _Effects) -> None:
        self._transfer = Transfer(target, now + self._settings.election_timeout_seconds)
        # T5, R3. For the rest of the term: a TimeoutNow can arrive late, and voters then ignore that they hear a
        # leader.
        leading.lease_void = True
        self._drive_transfer(leading, effects)

    def _drive_transfer(self, leading: Leadership, effects: _Effects) -> None:
        """Tells the target to stand as soon as it has all entries (T2)."""
        transfer = self._transfer
        assert transfer is not None
        peer = leading.peers.get(transfer.target)
        if not transfer.told and peer is not None and peer.match_index == self._log.last_index:
            transfer.told = True
            effects.append(Send(TimeoutNow(self.id, transfer.target, self.term)))

    def _transfer_timed_out(self, now: float, effects: _Effects) -> None:
        """This member continues to lead, if it still leads (T4)."""
        self._end_transfer(TransferResult.TIMED_OUT, effects)
        self._prefer_again_at = now + self._settings.preferred_retry_seconds
        self._leave_at = now + 10 * self._settings.election_timeout_seconds

    def _end_transfer(self, result: TransferResult, effects: _Effects) -> None:
        """Reports how the transfer ended and which member leads (T7)."""
        if self._transfer is not None:
            effects.append(TransferEnded(self._transfer.target, result, self.leader))
            self._transfer = None

    def _consider_preferred(self, now: float, leading: Leadership, preferred: int, effects: _Effects) -> None:
        """T6: only to a member that has been fit for some time, and only some time after a failed attempt."""
        peer = leading.peers.get(preferred)
        if peer is None:
            return
        refusal = transfer_refusal(now, leading, self._transfer, self._settings, preferred)
        if refusal is not None or peer.disk is not DiskState.OK:
            peer.healthy_since = None
        elif peer.healthy_since is None:
            peer.healthy_since = now
        elif now - peer.healthy_since >= self._settings.preferred_after_seconds and now >= self._prefer_again_at:
            self._begin_transfer(now, leading, preferred, effects)

    def _hand_over(self, now: float, leading: Leadership, effects: _Effects) -> None:
        """Steps down without a transfer: the follower with the longest log need not wait for its timeout."""
        best = leading.best_successor(now - self._settings.election_timeout_seconds)
        if best is not None:
            effects.append(Send(TimeoutNow(self.id, best.member, self.term)))

    # -- membership ----------------------------------------------------------------------------------------------------

    def memberships_read(self, memberships: Sequence[MembershipEntry]) -> None:
        """Sets all membership entries, as at the start, after unreadable ones were restored (L12)."""
        assert self._leading is None or memberships[-1] == self._history.latest, "a leader has all membership entries"
        self._history = MembershipHistory(memberships)

    def _change_refusal(self, now: float, leading: Leadership | None, change: Change) -> str | None:
        if self.halted or leading is None:
            return "this member does not lead"
        if not leading.ready:
            return "the leader has not committed an entry of its current term yet"  # M3
        if self.membership_index > self.commit_index:
            return "the previous change is not committed yet"  # M2
        if self._transfer is not None:
            return "a transfer of leadership is in progress"
        if not self.disk_state.can_write:
            return "the leader's disk is full"
        peer = leading.peers.get(change.member) if isinstance(change, Promote) else None
        if peer is not None:  # M5
            if peer.incarnation is None or peer.acked_at < now - self._settings.election_timeout_seconds:
                return f"member {change.member} does not answer"
            if peer.possible_loss or not leading.sender.lacks_at_most(peer, self._settings.promote_within_bytes):
                return f"member {change.member} lacks too many entries to become a voter"
        return None

    def _fall_back(self, last_kept: int, effects: _Effects) -> None:
        """Membership entries behind `last_kept` are removed: the previous one is in force again (M1)."""
        before = self._history.latest
        self._history.truncate(last_kept)
        if self._history.latest is not before:
            effects.append(MembershipChanged(self._history.latest))

    # -- the disk ------------------------------------------------------------------------------------------------------

    def _look_at_log_again(self, now: float, effects: _Effects) -> None:
        """A write failed: its entries are not in the log, or only the first ones are."""
        last = self._log.last_index
        if last < self.commit_index:
            self._stop(f"the log ends at {last}, but {self.commit_index} is committed (S7)", effects)
            return
        self._terms.truncate(last)
        self.synced_index = min(self.synced_index, last)
        self._verified_index = min(self._verified_index, last)
        self._acknowledgements.forget_above(last)
        before = self.membership
        self._fall_back(last, effects)
        if self._leading is not None and self.membership is not before:
            self._leading.regroup(self.membership, next_index=last + 1, now=now)

    def _make_room_for_another(self, now: float, leading: Leadership, effects: _Effects) -> None:
        """L10. Members hold the same data and fill up together: if no member has more space, this one rightly continues
        to lead. It commits what is in progress and answers reads, and an election would gain nothing."""
        if self._transfer is not None:
            return
        self._leave_at = now + 2 * self._settings.election_timeout_seconds
        if not leading.ready:
            # It may never become ready, because there is no space for its first entry: another member may succeed.
            if self.disk_state is DiskState.FULL and leading.voters:
                self._become_follower(now, None, effects, "its disk is full")
            return
        best = leading.best_successor(now - self._settings.election_timeout_seconds)
        if (
            best is not None
            and best.disk.rank > self.disk_state.rank
            and transfer_refusal(now, leading, self._transfer, self._settings, best.member) is None
        ):
            self._begin_transfer(now, leading, best.member, effects)

    _HANDLERS: ClassVar[dict[type, Callable[[Raft, float, Any, _Effects], None]]] = {
        PreVoteRequest: _on_pre_vote_request,
        PreVoteReply: _on_pre_vote_reply,
        VoteRequest: _on_vote_request,
        VoteReply: _on_vote_reply,
        AppendRequest: _on_append_request,
        AppendReply: _on_append_reply,
        Heartbeat: _on_heartbeat,
        HeartbeatReply: _on_heartbeat_reply,
        InstallRequest: _on_install_request,
        ReadRequest: _on_read_request,
        ReadReply: _on_read_reply,
        TimeoutNow: _on_timeout_now,
        Removed: _on_removed,
        EntriesLost: _on_entries_lost,
    }
