"""The consensus of one member: told what happened, it answers what to do. No clock, no I/O, no thread of its own.

    FOLLOWER ──silence──▶ PRE_CANDIDATE ──agreed──▶ CANDIDATE ──elected──▶ LEADER
        ▲                      ▲  └─silence──▶ again     │                    │
        │                      └────────silence──────────┘                    │
        └───────── a newer term, a leader of this term, no majority ──────────┘

In this order: election, terms and roles, what a leader says (follower), what followers say (leader), commit, reads,
transfer, membership, the disk. Next door are `term_runs` (terms of the log), `peers` and `sender` (how far a follower
is, and what it is sent), `leadership` (majorities), `election`, `reads`, `transfer` and `acknowledgements`. This file
decides; it is the only one that changes term, vote, role and commit index.

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
from tallystick.replication.durable import DiskState, Doubt, HardState, LogView
from tallystick.replication.effects import (
    AppendOwn,
    ChangeRefused,
    Commit,
    Doubted,
    Effect,
    Fatal,
    InstallBase,
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
    Forgotten,
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
from tallystick.store.ledger_format import EntryKind

_Effects = list[Effect]
_NEVER = float("-inf")
_REMOVED_TIMEOUTS = 10
"""A member that was told that it is removed asks again after so many election timeouts. It disturbs nobody (L3)."""


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
    - `installed` when an InstallBase was carried out;
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
        membership_seen: int = -1,
        readable: bool = True,
    ) -> None:
        """`log`: all that it shows is durable. `memberships`: all membership entries in the log and the newest before
        its first entry, oldest first; the bootstrap's has index -1; none for a member that waits to be let in.
        `commit_index`: a hint, as it was last saved (D6).

        `must_catch_up`: what may have been forgotten since the last start. LOG after an unclean stop with asynchronous
        flushing (D9), and with a log that lost what was durable (D8); VOTES with an empty disk under a number that was
        a member's before (S14), and whenever that is not known. Until a leader readmits it, such a member neither votes
        nor counts, except where all voters agree.

        `readable`: see the method of that name.
        """
        settings.validate()
        self.id = member_id
        self._settings = settings
        self._log = log
        self._random = random
        self._terms = TermRuns.of(log)
        self._history = MembershipHistory(memberships)

        # Durable: what SaveVote said last. A log that is ahead of it is one of a store whose vote was lost or never
        # kept; that term's vote is not known, and held as given away.
        self.term = hard_state.term
        self.voted_for = hard_state.voted_for
        if self._terms.last_term > self.term:
            self.term, self.voted_for = self._terms.last_term, member_id
        self._term_at_start = self.term

        self.role = Role.FOLLOWER
        self.leader: int | None = None
        self.commit_index = min(max(commit_index, self._terms.base_index), self._terms.last_index)
        self.synced_index = self._terms.last_index
        """The own log is durable up to here."""
        self.doubt = must_catch_up
        """What this member may have forgotten; NONE once it was readmitted."""
        self._membership_seen = membership_seen
        self.incarnation = random.getrandbits(62) + 1 if must_catch_up else 0
        self.disk_state = DiskState.OK
        self._readable = readable
        self.fatal: str | None = None
        """Why this machine stopped by itself."""
        self.elected_by: frozenset[int] = frozenset()
        """Who voted for this member when it was elected last."""
        self.leadership_lost = ""
        """Why it lost leadership last, for people."""
        self.mute = False
        """Does nothing any more: stopped, or its disk failed. Every call then returns no effects."""

        # Follower: up to where the log agrees with the leader of this term, and what that leader has committed.
        self._verified_index = -1
        self._leader_commit = -1
        self._acknowledgements = Acknowledgements()
        self._asked: dict[int, float] = {}  # reads that a leader was asked for, and when, oldest first
        # Under leases a start is a promise as well: before it this member may have heard from a leader (R3).
        self._heard_at = now if settings.lease_reads else _NEVER
        self._removed_at = -1  # by all that is committed up to here we are no member, somebody said (M6)
        self._removed_until = now  # and is believed until then
        self._far_terms = FarTerms()
        self._leave_at = now  # a leader without room looks then for a member that has some

        self._timer = ElectionTimer(settings.election_timeout_seconds, random, now)
        self._campaign: Campaign | None = None
        self._leading: Leadership | None = None
        self._transfer: Transfer | None = None
        self._prefer_again_at = now
        if self.membership.voters == {member_id}:
            self._timer.fire(now)  # L8

    # -- what the driver and invariants look at ------------------------------------------------------------------------

    @property
    def membership(self) -> Membership:
        """The newest in the log, committed or not (M1)."""
        return self._history.latest.membership

    @property
    def membership_index(self) -> int:
        """Index of its entry; -1: from the bootstrap. Committed once `commit_index` is there."""
        return self._history.latest.index

    @property
    def ready(self) -> bool:
        """Leads, and has committed an entry of its own term (S11)."""
        return self._leading is not None and self._leading.ready

    @property
    def accepting(self) -> bool:
        """Whether proposals may be put into the log now: leads, is ready, hands nothing over, can write."""
        return self.ready and self._transfer is None and self.disk_state.can_write and not self.mute

    @property
    def deadline(self) -> float:
        """When `tick` has something to do next, if nothing else happens."""
        if self.mute:
            return float("inf")
        due = self._timer.deadline if self._leading is None else self._leading.heartbeat_due
        return due if self._transfer is None else min(due, self._transfer.deadline)

    @property
    def peers(self) -> dict[int, Peer]:
        """Leader: the other members' progress, by member, to be read only; else empty."""
        return {} if self._leading is None else self._leading.peers

    @property
    def match_indexes(self) -> dict[int, int]:
        """Leader: up to where each other member's durable log is known to agree; else empty."""
        return {member: peer.match_index for member, peer in self.peers.items()}

    def silent_seconds(self, now: float) -> float | None:
        """Since a leader was heard last; None: none ever was."""
        return None if self._heard_at == _NEVER else now - self._heard_at

    @property
    def removed(self) -> bool:
        """Somebody who knows of later commits than this member said that it does not belong to the group (M6)."""
        return self._removed_at > self.membership_index

    @property
    def voters_with_room(self) -> int:
        """Leader: voters whose disk is not known to be low or full, itself included; else 0."""
        leading = self._leading
        if leading is None:
            return 0
        own = leading.counts_itself and self.disk_state is DiskState.OK
        return own + sum(peer.disk is DiskState.OK for peer in leading.voters)

    @property
    def _told_disk(self) -> DiskState:
        """What others hear. A member that cannot read its log says LOW: nobody hands leadership to it (L12)."""
        return DiskState.LOW if self.disk_state is DiskState.OK and not self._readable else self.disk_state

    @property
    def transfer_target(self) -> int | None:
        """The member to which leadership is being handed."""
        return None if self._transfer is None else self._transfer.target

    # -- what happened -------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: stand for election (L1, L9), send heartbeats, notice a lost majority (L4), send again."""
        effects: _Effects = []
        if self.mute:
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
        """A message came in. One for another target is dropped, one that cannot be true is refused."""
        effects: _Effects = []
        if not self.mute and message.target == self.id and self._is_near(now, message, effects):
            self._HANDLERS[type(message)](self, now, message, effects)
        return effects

    def appended(self, now: float) -> list[Effect]:
        """Entries of this leader's term were put at the end of the log. RuntimeError: this member does not lead."""
        effects: _Effects = []
        if self.mute:
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
        """The log is durable up to `index`: replies that waited for it go out, a leader counts itself (D2, D3, S10)."""
        effects: _Effects = []
        if self.mute:
            return effects
        if self._leading is not None and index > self._terms.last_index:
            # The disk was quicker than the word of what was put into the log: it is of this term, and comes.
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
        """The InstallBase of `request` was carried out: the log begins behind its base, and all before is applied.

        RuntimeError: it does not begin there.
        """
        effects: _Effects = []
        if self.mute:
            return effects
        if self._log.first_index != request.base_index + 1:
            raise RuntimeError(f"the log begins at {self._log.first_index}, not behind the base {request.base_index}")
        self._terms.reset(request.base_index, request.base_term)
        self._history.reset(request.membership)
        effects.append(MembershipChanged(request.membership))
        self._acknowledgements.clear()
        self.commit_index = self.synced_index = request.base_index
        self._verified_index = -1
        if request.term == self.term:
            self._verified_index = request.base_index
            effects.append(Send(self._append_reply(request, request.base_index, request.base_index)))
        return effects

    def disk(self, now: float, state: DiskState) -> list[Effect]:
        """LOW, FULL: hands leadership to a member with more room, if there is one, else goes on to lead; with FULL it
        never stands (L10). OK: there is room again. FAILED: steps down and says nothing any more (D7); nothing but a
        new start ends that.

        Looks at the log anew: what a failed write left out is forgotten.
        """
        effects: _Effects = []
        if self.mute:
            return effects
        self.disk_state = state
        if state is DiskState.FAILED:
            if self._leading is not None:
                self._hand_over(now, self._leading, effects)
            self._become_follower(now, None, effects, "its disk failed")
            self._end_transfer(TransferResult.TIMED_OUT, effects)
            self.mute = True
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
        """Whether this member can read all of its log. One that cannot does not stand, and does not go on to lead: as a
        leader it would answer from a state that lacks committed entries, and it cannot send these entries (L12).

        It votes, and counts for what it has acknowledged: which entries it has is known, and they come back.
        """
        effects: _Effects = []
        self._readable = readable
        if self.mute or readable or self.role is Role.FOLLOWER:
            return effects
        if self._leading is not None:
            self._hand_over(now, self._leading, effects)
        self._become_follower(now, None, effects, "a part of its log cannot be read")
        return effects

    def link_opened(self, now: float, member: int) -> list[Effect]:
        """A connection to `member` was opened: what was on its way on the former one may be lost.

        Optional: without it a loss is noticed after `append_timeout_seconds`.
        """
        effects: _Effects = []
        if not self.mute and self._leading is not None and (peer := self._leading.peers.get(member)) is not None:
            self._leading.sender.feed_again(now, peer, self.commit_index, effects)
        return effects

    # -- what is wanted ------------------------------------------------------------------------------------------------

    def read(self, now: float, token: int) -> list[Effect]:
        """From where may a read be answered? Ends in one ReadReady(token) or ReadFailed(token). No token twice."""
        effects: _Effects = []
        if self.mute or self.leader is None:
            effects.append(ReadFailed(token))
        elif self._leading is not None:
            self._read(now, self._leading, Read(token, None), effects)
        else:
            self._asked[token] = now
            effects.append(Send(ReadRequest(self.id, self.leader, self.term, token)))
        return effects

    def transfer(self, now: float, target: int | None = None) -> list[Effect]:
        """Hand leadership to `target`, or to the voter that is furthest.

        Ends in one TransferEnded, at the latest after an election timeout; no proposals are accepted until then (T2).
        """
        effects: _Effects = []
        leading = self._leading
        if self.mute or leading is None:
            effects.append(TransferEnded(target, TransferResult.NOT_LEADER, self.leader))
            return effects
        if target is None:
            best = leading.best_successor(now - self._settings.election_timeout_seconds)
            target = None if best is None else best.member
        elif (peer := leading.peers.get(target)) is not None and peer.disk.rank < self.disk_state.rank:
            # A leader may choose the best member by itself; leadership is not sent where it does not stay.
            effects.append(TransferEnded(target, TransferResult.UNHEALTHY, self.id))
            return effects
        refusal = transfer_refusal(now, leading, self._transfer, self._settings, target)
        if refusal is not None or target is None:
            effects.append(TransferEnded(target, refusal or TransferResult.NO_TARGET, self.id))
        else:
            self._begin_transfer(now, leading, target, effects)
        return effects

    def change_membership(self, now: float, change: Change) -> list[Effect]:
        """Append the changed membership, or ChangeRefused.

        It is done when `commit_index` reaches `membership_index`; its outcome is unknown if leadership is lost before.
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
        entry = MembershipEntry(self._log.last_index + 1, membership)
        effects.append(AppendOwn(entry.index, self.term, EntryKind.MEMBERSHIP, membership))
        self._history.append(entry)  # M1: from now on; what that commits is looked at when it is in the log
        effects.append(MembershipChanged(entry))
        leading.regroup(membership, next_index=entry.index, now=now)
        return effects

    # -- election ------------------------------------------------------------------------------------------------------

    def _leader_is_silent(self, now: float, effects: _Effects) -> None:
        self._timer.reset(now)
        if self.term >= TERM_MAX:
            self._refuse(self.id, f"there is no term behind {self.term}: it cannot stand", effects)
            return
        if self.removed and now >= self._removed_until:
            self._removed_at = -1  # the sender may have been no member: the next question tells (M6)
        if not self._may_stand():
            if self.leader is not None or self.role is not Role.FOLLOWER:
                self._become_follower(now, None, effects)
            self._ask_whether_still_a_member(effects)
        elif self.membership.voters == {self.id}:
            self._stand(now, effects)  # L8
        else:
            self._ask_whether_to_stand(effects)

    def _may_stand(self) -> bool:
        # One whose removal is not committed may be the only one that has what others need, and leads without counting
        # itself until it is (M7). The membership before the newest is committed (M2), whatever this member knows of it:
        # its own commit index is a hint of the past after a start.
        newest, before = self.membership, self._history.at(self.membership_index - 1).membership
        removal_open = self.membership_index > self.commit_index
        leaving = removal_open and self.id in before.voters and self.id not in newest.members
        return (
            (self.id in newest.voters or leaving)
            and self.disk_state.can_write  # L10
            and self._readable  # L12
            and self.doubt is not Doubt.VOTES  # S14: its own vote is worth nothing
            and not (self.doubt and self._membership_seen > self.membership_index)  # D8: nor who else must agree
            and not self.removed  # M6
        )

    def _ask_whether_to_stand(self, effects: _Effects) -> None:
        """The pre-vote: term and vote stay as they are (L3)."""
        campaign = self._begin_campaign(self.term + 1, pre=True)
        self._take_role(Role.PRE_CANDIDATE, None, effects)
        self._send_pre_vote(campaign.number, effects)

    def _ask_whether_still_a_member(self, effects: _Effects) -> None:
        """One that may not stand is silent for its own part, and would never hear that it was left out (M6).

        The question is the pre-vote: whoever knows better says so, and no other answer is looked at.
        """
        if self.id in self.membership.members and not self.removed:
            self._send_pre_vote(self._random.getrandbits(62), effects)

    def _send_pre_vote(self, number: int, effects: _Effects) -> None:
        last_term, last_index = self._terms.last_term, self._terms.last_index
        for voter in self._other_voters():
            effects.append(Send(PreVoteRequest(self.id, voter, self.term + 1, number, last_term, last_index)))

    def _stand(self, now: float, effects: _Effects, *, transfer: bool = False) -> None:
        """The election: a new term, and the own vote in it, durable before anybody is asked (D1)."""
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
        campaign.count(self.id, granted=True, doubt=self.doubt)
        return campaign

    def _other_voters(self) -> list[int]:
        return sorted(self.membership.voters - {self.id})

    def _sticks(self, now: float) -> bool:
        """A leader is there, or this is it: nobody else is helped to become one (L3, L5)."""
        return self._leading is not None or now - self._heard_at < self._settings.election_timeout_seconds

    def _is_up_to_date(self, request: PreVoteRequest | VoteRequest) -> bool:
        """Whether the asker's log has all that a majority may have got through this member (S1).

        What this member has forgotten it cannot compare, but a membership that it knew of must be there: an asker
        without it may take the voters of the past for all of them (D8).
        """
        if self.doubt and request.last_index < self._membership_seen:
            return False
        return (request.last_term, request.last_index) >= (self._terms.last_term, self._terms.last_index)

    def _tell_removed(self, member: int, effects: _Effects) -> bool:
        """Whether an asker whose log lacks something is no member any more, and was told so (M6).

        One whose log lacks nothing may have been let in again by an entry that this member has not yet.
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
            self.id, request.source, self.term, request.asked_term, request.campaign, granted, self.doubt
        )
        effects.append(Send(reply))  # L3: nothing durable, no new term, no timer

    def _on_vote_request(self, now: float, request: VoteRequest, effects: _Effects) -> None:
        """Learners are not asked; one that is was made a voter by an entry that it has not yet, and answers (M5)."""
        up_to_date = self._is_up_to_date(request)
        if request.term >= self.term:
            if not request.transfer and self._sticks(now):
                return  # L5: not even its term is taken
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
        reply = VoteReply(self.id, request.source, self.term, request.campaign, granted, self.doubt)
        effects.append(Send(reply))

    def _on_pre_vote_reply(self, now: float, reply: PreVoteReply, effects: _Effects) -> None:
        # S3: counted are answers to this attempt only. The term of one that agrees may be lower than ours.
        if reply.term > self.term:
            self._enter_term(now, reply.term, None, None, effects)
            return
        campaign, answered = self._campaign, (reply.asked_term, reply.campaign)
        if campaign is not None and campaign.pre and answered == (campaign.term, campaign.number):
            campaign.count(reply.source, granted=reply.granted, doubt=reply.doubt)
            if campaign.won(self.membership):
                self._stand(now, effects)

    def _on_vote_reply(self, now: float, reply: VoteReply, effects: _Effects) -> None:
        campaign = self._campaign
        if not self._is_current(now, reply.term, effects) or campaign is None:
            return
        if campaign.pre or reply.campaign != campaign.number:  # S3
            return
        campaign.count(reply.source, granted=reply.granted, doubt=reply.doubt)
        if campaign.won(self.membership):
            self._lead(now, effects)
        elif campaign.lost(self.membership):
            self._timer.retry_soon(now)

    def _on_timeout_now(self, now: float, message: TimeoutNow, effects: _Effects) -> None:
        """The leader wants this member to lead (T3). Of an old term, it is too late (T4)."""
        if (
            self._is_current(now, message.term, effects)
            and self.role is Role.FOLLOWER
            and self.leader == message.source
            and self._may_stand()
            and self.term < TERM_MAX
        ):
            self._stand(now, effects, transfer=True)

    def _on_removed(self, now: float, message: Removed, effects: _Effects) -> None:
        """True whatever the term. One that was let in again later than that is not meant: its log says so (M6). A
        membership in its log from before that is over, or was cut off there and never came to be."""
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
        """Whether its term is one that the group can have reached since this member last heard of it (S2, `bounds`)."""
        term = message.asked_term if isinstance(message, PreVoteRequest) else message.term
        if term <= self.term + TERM_JUMP_MAX:
            self._far_terms.near(message.source)
            return True
        from_leader = isinstance(message, Heartbeat | AppendRequest | InstallRequest)
        if from_leader and self.term <= 0 and term <= TERM_MAX:
            return True  # a member that never took part has no term to compare with
        self._refuse(message.source, f"term {term}, far above {self.term}, the own one", effects)
        if self._far_terms.said(message.source, self.membership.voters, self.id):
            self._enter_term(now, min(self.term + TERM_JUMP_MAX, TERM_MAX), None, None, effects)
        return False

    def _refuse(self, member: int, reason: str, effects: _Effects) -> None:
        effects.append(Refused(member, reason))

    def _is_current(self, now: float, term: int, effects: _Effects) -> bool:
        """Whether a reply is of this term. A newer one ends whatever was going on, an older one is dropped (S2, S3)."""
        if term > self.term:
            self._enter_term(now, term, None, None, effects)
            return False
        return term == self.term

    def _enter_term(self, now: float, term: int, voted_for: int | None, leader: int | None, effects: _Effects) -> None:
        """Somebody else has begun a newer term (S2)."""
        self._raise_term(term, voted_for, effects)
        if leader is not None:
            why = f"n{leader} leads term {term}"
        else:
            why = f"term {term} has begun" if voted_for is None else f"n{voted_for} stands for election in term {term}"
        self._become_follower(now, leader, effects, why)

    def _raise_term(self, term: int, voted_for: int | None, effects: _Effects) -> None:
        """The only place where a vote is forgotten: with its term, and in one record (S1)."""
        assert term > self.term
        self.term, self.voted_for = term, voted_for
        effects.append(SaveVote(term, voted_for))
        # The pending answers are for an earlier leader. How far the logs agree and what is committed has to be shown
        # again by the next one: a false commit index ends with the term of its author.
        self._leader_commit = -1
        self._acknowledgements.clear()
        self._verified_index = -1

    def _become_follower(self, now: float, leader: int | None, effects: _Effects, why: str = "") -> None:
        """`why`: for people, where it was a leader."""
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
        """Elected. Heartbeats say so at once; the no-op commits what earlier terms left (S10, S11)."""
        self.elected_by = frozenset() if self._campaign is None else self._campaign.granted
        self._campaign = None
        self._take_role(Role.LEADER, self.id, effects)
        if self.doubt:
            # A majority without doubts, or everybody, voted for this log: nothing that it may lack is left anywhere.
            self.doubt = Doubt.NONE
            effects.append(Readmitted())
        term_start = self._terms.last_index + 1
        sender = Sender(self.id, self.term, self._settings, self._log, self._terms, self._history)
        leading = self._leading = Leadership(self.id, self.membership, term_start, sender, now)
        leading.heartbeat_due = now + self._settings.heartbeat_interval_seconds
        self._send_heartbeats(now, leading, effects)
        effects.append(AppendOwn(term_start, self.term, EntryKind.NO_OP))

    def _stop(self, reason: str, effects: _Effects) -> None:
        self.fatal, self.mute = reason, True
        effects.append(Fatal(reason))

    # -- follower: what a leader says ----------------------------------------------------------------------------------

    def _heard(self, now: float, request: AppendRequest | Heartbeat | InstallRequest, effects: _Effects) -> bool:
        """Whether it comes from the leader of this term, whom this member now follows."""
        if request.term < self.term:
            return False
        if request.term > self.term:
            self._enter_term(now, request.term, None, request.source, effects)
        elif self.leader is None:
            self._become_follower(now, request.source, effects)
        elif self.leader != request.source:
            self._refuse(request.source, f"it says to lead term {self.term}, which n{self.leader} leads (S4)", effects)
            return False
        self._removed_at = -1  # a leader speaks to its members only (M6)
        self._timer.reset(now)  # L2: also when the entries will be refused
        self._heard_at = now
        return True

    def _on_append_request(self, now: float, request: AppendRequest, effects: _Effects) -> None:
        if not self._heard(now, request, effects):
            if request.term < self.term:  # L5: so that a leader of the past steps down
                effects.append(Send(self._append_reply(request, request.prev_index, None)))
            return
        terms, prev_index, last = self._terms, request.prev_index, request.last_index
        if prev_index >= terms.base_index and terms.term_of(prev_index) != request.prev_term:  # S5
            if prev_index <= self.commit_index:
                reason = f"it has entry {prev_index}, which is committed here, of term {request.prev_term} (S7)"
                self._refuse(request.source, reason, effects)
                return
            effects.append(Send(self._append_reply(request, prev_index, None)))
            return
        # All up to the base is committed, here and there alike. Behind it, entry by entry (S6).
        agreed = terms.agree_up_to(max(prev_index, terms.base_index), request.runs)
        # What is committed of it is told first: a write that fails must not take the word of it along.
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
                last = agreed  # L10: and the reply says why
        self._verified_index = max(self._verified_index, last)
        self._acknowledge(self._append_reply(request, prev_index, last), effects)

    def _fits_behind(self, agreed: int, request: AppendRequest, effects: _Effects) -> bool:
        """Whether the entries after `agreed` can be taken: they replace nothing that is committed (S7), and their terms
        go on from what is there."""
        if agreed < self.commit_index:
            reason = f"it has another entry {agreed + 1}, which is committed here (S7)"
            self._refuse(request.source, reason, effects)
            return False
        known = self._terms.term_of(agreed)
        first = next(run.term for run in request.runs if run.last_index > agreed)
        if known is None or first < known:
            self._refuse(request.source, f"it has entry {agreed + 1} of term {first}, behind one of {known}", effects)
            return False
        return True

    def _cut(self, last_kept: int, effects: _Effects) -> None:
        """Entries that no leader ever committed make room (S6)."""
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
        """Success with `match_index`, which is never more than the request told (S8); a refusal without."""
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
            if self.doubt and heartbeat.incarnation == self.incarnation and heartbeat.readmit_index is not None:
                self._end_doubt(heartbeat.readmit_index, effects)
        elif heartbeat.term == self.term:
            return  # S4
        # L5: a leader of the past is told the newer term, and no round: it may lead that one by now, and take it for an
        # answer to a round of this term (S3).
        reply = HeartbeatReply(
            self.id,
            heartbeat.source,
            self.term,
            heartbeat.round if heartbeat.term == self.term else 0,
            heartbeat.sent_at,
            self.commit_index,
            self.incarnation,
            self.doubt,
            self._told_disk,
        )
        effects.append(Send(reply))

    def _end_doubt(self, readmit_index: int, effects: _Effects) -> None:
        """All that a majority could have had from this member before it started is in its log again (D9, S14)."""
        if min(self._verified_index, self.synced_index) >= readmit_index:
            self.doubt = Doubt.NONE
            effects.append(Readmitted())

    def _follow_commit(self, effects: _Effects) -> None:
        """S9: up to where the log agrees with that of the leader, whatever stands behind it. And only what is durable,
        so that nothing is applied that a failed write takes away."""
        index = min(self._leader_commit, self._verified_index, self.synced_index)
        if index > self.commit_index:
            self.commit_index = index
            effects.append(Commit(index))

    def _on_forgotten(self, now: float, message: Forgotten, effects: _Effects) -> None:
        """D8. As long as its leader leads, a follower's log does not end before what it acknowledged: where it does,
        a disk has lost what it had made durable, in a way that looks like the log's end."""
        lacks = message.match_index > self._terms.last_index
        if not self._is_current(now, message.term, effects) or self.leader != message.source or not lacks or self.doubt:
            return
        if self.term != self._term_at_start:
            # What this process acknowledged in a term that it saw begin, it knows: only a start can have lost it.
            self._refuse(message.source, f"it knows of entry {message.match_index} here, which never was", effects)
            return
        self.doubt, self.incarnation = Doubt.LOG, self._random.getrandbits(62) + 1
        self._acknowledgements.clear()
        effects.append(Doubted(message.match_index))

    def _on_install_request(self, now: float, request: InstallRequest, effects: _Effects) -> None:
        base_index = request.base_index
        if not self._heard(now, request, effects):
            if request.term < self.term:
                effects.append(Send(self._append_reply(request, base_index, None)))
        elif base_index <= self.commit_index or self._terms.term_of(base_index) == request.base_term:
            # Nothing is lacking; the entries behind the base may have been acknowledged and must stay.
            self._verified_index = max(self._verified_index, base_index)
            self._acknowledge(self._append_reply(request, base_index, base_index), effects)
        elif self.disk_state.can_write:
            effects.append(InstallBase(request))  # L11; `installed` answers

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
            return  # S3: of what was sent before the member came back with less
        last_index = self._terms.last_index
        if reply.success and not -1 <= reply.match_index <= last_index:
            self._refuse(reply.source, f"it has entries up to {reply.match_index} of {last_index} (S3)", effects)
            return
        if not -1 <= reply.prev_index <= last_index:
            return  # S3: of an earlier leadership, whose log was cut since
        if not reply.success:
            if peer.refused(reply, self._terms):
                leading.sender.feed(now, peer, self.commit_index, effects)
            elif peer.contradicts(reply):
                effects.append(Send(Forgotten(self.id, peer.member, self.term, peer.match_index)))
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
            return  # S3: the last of an earlier leadership of this member
        if reply.round > leading.round or not reply.sent_at <= now:
            reason = f"it answers round {reply.round} of {leading.round}, sent {reply.sent_at - now} s from now (S3)"
            self._refuse(reply.source, reason, effects)
            return
        anew = peer.meet(reply.incarnation)
        peer.acked_round, peer.acked_at = reply.round, reply.sent_at
        can_write_again = not peer.disk.can_write and reply.disk.can_write
        peer.disk = reply.disk
        if reply.doubt is not peer.doubt:
            peer.doubt = reply.doubt
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
        """What is due once a heartbeat interval, however many rounds reads have sent meanwhile."""
        settings = self._settings
        heard_at, late_by = leading.heard_at(now), now - leading.heartbeat_due
        leading.heartbeat_due = now + settings.heartbeat_interval_seconds
        if late_by > settings.election_timeout_seconds / 2 and leading.patient_from <= heard_at:
            leading.patient_from = now  # L9: it was our own loop that stood still; what was answered may lie unread
        if max(heard_at, leading.patient_from) + settings.election_timeout_seconds <= now:
            why = f"no majority answered for {settings.election_timeout_seconds:g} s"
            self._become_follower(now, None, effects, why)  # L4
            return
        for peer in leading.peers.values():
            if leading.sender.is_overdue(now, peer):
                leading.sender.feed_again(now, peer, self.commit_index, effects)
        if self._transfer is not None:
            if self._transfer.told:  # it may have been lost
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
        """A round to everybody. It serves the reads that have gathered (R1), and readmits who is in doubt (D9, S14)."""
        leading.round += 1
        leading.reads.sent(leading.round, self.commit_index)
        for peer in leading.peers.values():
            if peer.doubt:
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
        """With everything that this leader has now, once it is certain that it is the newest leader now."""
        if peer.readmit_round is None:
            peer.readmit_round, peer.readmit_target = leading.round, self._terms.last_index
        elif peer.readmit_index is None and leading.confirmed_without(peer, peer.readmit_round):
            peer.readmit_index = peer.readmit_target

    # -- leader: commit ------------------------------------------------------------------------------------------------

    def _advance_commit(self, now: float, leading: Leadership, effects: _Effects) -> None:
        index = leading.committed_index(self.synced_index)
        if index <= self.commit_index or index < leading.term_start:
            return  # S10: entries of earlier terms are committed with one of this term, never by themselves
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
            leading.reads.add_early(read)  # what earlier leaders have committed is not known yet
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
        """A question or its answer was lost."""
        while self._asked:
            token, asked_at = next(iter(self._asked.items()))
            if now - asked_at < self._settings.election_timeout_seconds:
                return
            del self._asked[token]
            effects.append(ReadFailed(token))

    # -- transfer ------------------------------------------------------------------------------------------------------

    def _begin_transfer(self, now: float, leading: Leadership, target: int, effects: _Effects) -> None:
        self._transfer = Transfer(target, now + self._settings.election_timeout_seconds)
        # T5, R3. For the rest of the term: a TimeoutNow may arrive late, and its vote passes over who has a leader.
        leading.lease_void = True
        self._drive_transfer(leading, effects)

    def _drive_transfer(self, leading: Leadership, effects: _Effects) -> None:
        """As soon as the target has everything, it is told to stand (T2)."""
        transfer = self._transfer
        assert transfer is not None
        peer = leading.peers.get(transfer.target)
        if not transfer.told and peer is not None and peer.match_index == self._log.last_index:
            transfer.told = True
            effects.append(Send(TimeoutNow(self.id, transfer.target, self.term)))

    def _transfer_timed_out(self, now: float, effects: _Effects) -> None:
        """This member goes on to lead, if it still does (T4)."""
        self._end_transfer(TransferResult.TIMED_OUT, effects)
        self._prefer_again_at = now + self._settings.preferred_retry_seconds
        self._leave_at = now + 10 * self._settings.election_timeout_seconds

    def _end_transfer(self, result: TransferResult, effects: _Effects) -> None:
        """Whoever asked is told how it ended and who leads (T7)."""
        if self._transfer is not None:
            effects.append(TransferEnded(self._transfer.target, result, self.leader))
            self._transfer = None

    def _consider_preferred(self, now: float, leading: Leadership, preferred: int, effects: _Effects) -> None:
        """T6: only to a member that has been fit to take it for some time, and not again soon after it failed."""
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
        """Leaving without a transfer: the furthest follower need not wait for silence."""
        best = leading.best_successor(now - self._settings.election_timeout_seconds)
        if best is not None:
            effects.append(Send(TimeoutNow(self.id, best.member, self.term)))

    # -- membership ----------------------------------------------------------------------------------------------------

    def memberships_read(self, memberships: Sequence[MembershipEntry]) -> None:
        """All membership entries, as at the start, after some that could not be read came back (L12)."""
        assert self._leading is None or memberships[-1] == self._history.latest, "who does not know all does not lead"
        self._history = MembershipHistory(memberships)

    def _change_refusal(self, now: float, leading: Leadership | None, change: Change) -> str | None:
        if self.mute or leading is None:
            return "this member does not lead"
        if not leading.ready:
            return "the leader has not committed an entry of its own term yet"  # M3
        if self.membership_index > self.commit_index:
            return "the change before is not committed yet"  # M2
        if self._transfer is not None:
            return "leadership is being handed over"
        if not self.disk_state.can_write:
            return "the leader's disk is full"
        peer = leading.peers.get(change.member) if isinstance(change, Promote) else None
        if peer is not None:  # M5
            if peer.incarnation is None or peer.acked_at < now - self._settings.election_timeout_seconds:
                return f"member {change.member} does not answer"
            if peer.doubt or not leading.sender.lacks_at_most(peer, self._settings.promote_within_bytes):
                return f"member {change.member} lacks too much to become a voter"
        return None

    def _fall_back(self, last_kept: int, effects: _Effects) -> None:
        """Membership entries behind `last_kept` are gone: the one before holds again (M1)."""
        before = self._history.latest
        self._history.truncate(last_kept)
        if self._history.latest is not before:
            effects.append(MembershipChanged(self._history.latest))

    # -- the disk ------------------------------------------------------------------------------------------------------

    def _look_at_log_again(self, now: float, effects: _Effects) -> None:
        """A write failed: what it was to put into the log is not there, or a part of it is."""
        last = self._log.last_index
        if last < self.commit_index:
            self._stop(f"the log ends at {last}, and {self.commit_index} is committed (S7)", effects)
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
        """L10. Members hold the same data and fill up together: where nobody has more room, to go on leading is right.
        What is under way is committed, reads are answered, and nothing is gained by an election."""
        if self._transfer is not None:
            return
        self._leave_at = now + 2 * self._settings.election_timeout_seconds
        if not leading.ready:
            # It may not get there, for want of room for its first entry: another may.
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
        Forgotten: _on_forgotten,
    }
