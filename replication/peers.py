"""What a leader knows of one other member, and how far it may run ahead of its answers (L7).

    PROBE      where the two logs agree is not known: one request with one entry at a time, until one is accepted
    PIPELINE   requests go out without waiting, as long as what is unanswered fits max_inflight_bytes
    INSTALL    the member lacks entries that are not kept any more: it gets a base, and no appends until it has it (L11)

A refusal or a silence leads back to PROBE, an acceptance to PIPELINE. Nothing here depends on another member: a slow or
dead one holds up nobody.
"""

from __future__ import annotations

import enum

from tallystick.replication.durable import DiskState, Doubt
from tallystick.replication.messages import AppendReply
from tallystick.replication.term_runs import TermRuns


class PeerState(enum.Enum):
    PROBE = "probe"
    PIPELINE = "pipeline"
    INSTALL = "install"


class Peer:
    """One other member, as seen by the leader of one term. It holds for that term only."""

    __slots__ = (
        "acked_at",
        "acked_round",
        "disk",
        "doubt",
        "healthy_since",
        "incarnation",
        "match_index",
        "member",
        "next_index",
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
        """First entry that was not sent yet."""
        self.match_index = -1
        """Its durable log agrees with ours up to here. Rises only, within a session."""
        self.waiting_since: float | None = None
        """An answer is outstanding, with no progress since then."""
        self.session = 0
        self.incarnation: int | None = None
        self.doubt = Doubt.NONE
        self.disk = DiskState.OK
        self.acked_round = 0
        """Newest round of heartbeats that it answered, and when that round was sent: now, for a start (L4)."""
        self.acked_at = now
        self.healthy_since: float | None = None
        # Readmission (D9, S14): what was our last entry when a round began, that round, and the index once confirmed.
        self.readmit_target = -1
        self.readmit_round: int | None = None
        self.readmit_index: int | None = None

    @property
    def counted_match(self) -> int:
        """What it adds to a majority: nothing while it may have forgotten (D9)."""
        return -1 if self.doubt else self.match_index

    def meet(self, incarnation: int) -> bool:
        """Notes which start of the member an answer came from; whether it is another than before, so that everything it
        once acknowledged is in doubt: the answers to what was sent before do not count any more."""
        if incarnation == self.incarnation:
            return False
        met_before, self.incarnation = self.incarnation is not None, incarnation
        # Until the answer to a newer heartbeat tells, the worst is assumed.
        self.doubt = Doubt.VOTES if incarnation or met_before else Doubt.NONE
        self.readmit_round = self.readmit_index = None
        if met_before:
            self.session += 1
            self.match_index = -1
            self.state = PeerState.PROBE
            self.waiting_since = None
        return met_before

    def accepted(self, match_index: int, first_index: int, now: float) -> bool:
        """A success that was answered in this session; whether the match rose. `first_index`: of the leader's log."""
        rose = match_index > self.match_index
        if rose:
            self.match_index = match_index
        if self.state is not PeerState.PIPELINE:
            behind = self.match_index + 1 < first_index
            if behind and self.state is PeerState.INSTALL:
                return rose  # of an append that was on its way before
            self.state = PeerState.PROBE if behind else PeerState.PIPELINE
            self.next_index, self.waiting_since = self.match_index + 1, None
        elif rose:
            if self.next_index <= match_index:
                self.next_index = match_index + 1
            self.waiting_since = now if self.next_index > match_index + 1 else None
        return rose

    def refused(self, reply: AppendReply, terms: TermRuns) -> bool:
        """Whether this refusal is news; then `next_index` is where to probe next (L6)."""
        if self.state is PeerState.INSTALL or reply.prev_index <= self.match_index:
            return False  # an old one: what it speaks of was accepted since
        if self.state is PeerState.PROBE and reply.prev_index != self.next_index - 1:
            return False  # not the probe's
        index: int | None = None
        if reply.conflict_term is not None:
            index = terms.last_of_term(reply.conflict_term)
        after = reply.conflict_index if index is None else index + 1
        self.next_index = max(self.match_index + 1, min(after, reply.prev_index))
        self.state, self.waiting_since = PeerState.PROBE, None
        return True

    def contradicts(self, reply: AppendReply) -> bool:
        """Whether it refuses what it acknowledged in this session. It is an old answer, or its disk has lost that."""
        return self.state is not PeerState.INSTALL and reply.prev_index <= self.match_index

    def lost(self) -> None:
        """What was on its way is held for lost: find out anew how far the member is."""
        if self.state is PeerState.PIPELINE:
            self.state, self.next_index = PeerState.PROBE, self.match_index + 1
        self.waiting_since = None

    def pause(self, now: float) -> None:
        """It cannot write: one try each append timeout, until it says that it can (L10)."""
        self.lost()
        self.waiting_since = now
