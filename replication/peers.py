"""The state of one other member as its leader knows it, and how much the leader can send before it answers (L7).

    PROBE      it is unknown where the two logs agree: one request with one entry at a time, until one is accepted
    PIPELINE   the leader sends requests without waiting while the unanswered ones fit into max_inflight_bytes
    INSTALL    the member lacks entries that are no longer kept: it gets a snapshot, and no appends until then (L11)

A refusal or a timeout leads back to PROBE, an accepted request to PIPELINE. Nothing here depends on another member: a
slow or failed member delays no other one.
"""

from __future__ import annotations

import enum

from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.messages import AppendReply
from tallystick.replication.term_runs import TermRuns


class PeerState(enum.Enum):
    PROBE = "probe"
    PIPELINE = "pipeline"
    INSTALL = "install"


class Peer:
    """One other member as the leader of one term sees it. It is valid for that term only."""

    __slots__ = (
        "acked_at",
        "acked_round",
        "disk",
        "healthy_since",
        "incarnation",
        "match_index",
        "member",
        "next_index",
        "possible_loss",
        "readmit_index",
        "readmit_round",
        "readmit_target",
        "session",
        "state",
        "voter",
        "waiting_since",
    )

    def __init__(self, member: int, *, voter: bool, next_index: int, now: float) -> None:
        self.member = member
        self.voter = voter
        self.state = PeerState.PROBE
        self.next_index = next_index
        """The first entry that was not sent yet."""
        self.match_index = -1
        """The member's durable log agrees with the leader's up to here. It only rises within a session."""
        self.waiting_since: float | None = None
        """An answer is outstanding, and there was no progress since this time."""
        self.session = 0
        self.incarnation: int | None = None
        self.possible_loss = PossibleLoss.NONE
        self.disk = DiskState.OK
        self.acked_round = 0
        """The newest round of heartbeats that the member answered. `acked_at` is when that round was sent; at first it
        is the current time (L4)."""
        self.acked_at = now
        self.healthy_since: float | None = None
        # Readmission (D9, S14): the leader's last entry when a round began, that round, and the index once confirmed.
        self.readmit_target = -1
        self.readmit_round: int | None = None
        self.readmit_index: int | None = None

    @property
    def counted_match(self) -> int:
        """What the member contributes to a majority: nothing while it may have lost entries (D9)."""
        return -1 if self.possible_loss else self.match_index

    def meet(self, incarnation: int) -> bool:
        """Notes from which start of the member an answer came. True if it differs from the previous one: then
        everything that the member acknowledged may be lost, and answers to earlier requests no longer count."""
        if incarnation == self.incarnation:
            return False
        met_before, self.incarnation = self.incarnation is not None, incarnation
        # Until an answer to a newer heartbeat states what it may have lost, the leader assumes the worst.
        self.possible_loss = PossibleLoss.VOTES if incarnation or met_before else PossibleLoss.NONE
        self.readmit_round = self.readmit_index = None
        if met_before:
            self.session += 1
            self.match_index = -1
            self.state = PeerState.PROBE
            self.waiting_since = None
        return met_before

    def accepted(self, match_index: int, first_index: int, now: float) -> bool:
        """Handles a success of this session; returns whether the match rose. `first_index` is of the leader's log."""
        rose = match_index > self.match_index
        if rose:
            self.match_index = match_index
        if self.state is not PeerState.PIPELINE:
            behind = self.match_index + 1 < first_index
            if behind and self.state is PeerState.INSTALL:
                return rose  # it answers an append that was sent before the snapshot
            self.state = PeerState.PROBE if behind else PeerState.PIPELINE
            self.next_index, self.waiting_since = self.match_index + 1, None
        elif rose:
            if self.next_index <= match_index:
                self.next_index = match_index + 1
            self.waiting_since = now if self.next_index > match_index + 1 else None
        return rose

    def refused(self, reply: AppendReply, terms: TermRuns) -> bool:
        """Whether this refusal is new; then `next_index` is the next position to probe (L6)."""
        if self.state is PeerState.INSTALL or reply.prev_index <= self.match_index:
            return False  # an old answer: the entry was accepted since
        if self.state is PeerState.PROBE and reply.prev_index != self.next_index - 1:
            return False  # it does not answer the probe
        index: int | None = None
        if reply.conflict_term is not None:
            index = terms.last_of_term(reply.conflict_term)
        after = reply.conflict_index if index is None else index + 1
        self.next_index = max(self.match_index + 1, min(after, reply.prev_index))
        self.state, self.waiting_since = PeerState.PROBE, None
        return True

    def contradicts(self, reply: AppendReply) -> bool:
        """Whether it refuses what it acknowledged in this session: the answer is old, or its disk lost the entries."""
        return self.state is not PeerState.INSTALL and reply.prev_index <= self.match_index

    def lost(self) -> None:
        """Considers the unanswered requests lost: the leader probes again how far the member's log agrees."""
        if self.state is PeerState.PIPELINE:
            self.state, self.next_index = PeerState.PROBE, self.match_index + 1
        self.waiting_since = None

    def pause(self, now: float) -> None:
        """The member cannot write: one attempt per append timeout until it reports that it can (L10)."""
        self.lost()
        self.waiting_since = now
