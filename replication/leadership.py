"""The term of a leader: what it knows about the other members, and the majorities that follow. Pure arithmetic.

Three values are counted over the voters, including the leader itself unless it has removed itself (M7): durable entries
(S10), answered rounds of heartbeats (R1), and the times at which those rounds were sent (L4, R3).
"""

from __future__ import annotations

from typing import TypeVar

from tallystick.replication.durable import PossibleLoss
from tallystick.replication.membership import Membership
from tallystick.replication.peers import Peer
from tallystick.replication.reads import Reads
from tallystick.replication.sender import Sender
from tallystick.replication.settings import RaftSettings

_Value = TypeVar("_Value", int, float)


class Leadership:
    """Created when an election is won, dropped when leadership ends."""

    __slots__ = (
        "began_at",
        "counts_itself",
        "heartbeat_due",
        "lease_from_round",
        "lease_void",
        "member",
        "patient_from",
        "peers",
        "quorum",
        "reads",
        "ready",
        "regrouped",
        "round",
        "sender",
        "term_start",
        "voters",
    )

    def __init__(self, member: int, membership: Membership, term_start: int, sender: Sender, now: float) -> None:
        self.member = member
        self.sender = sender
        self.term_start = term_start
        """Index of the first entry of this term, the no-op (S11)."""
        self.ready = False
        self.round = 0
        self.began_at = now
        """A heartbeat that was sent earlier belongs to an earlier leadership (S3)."""
        self.heartbeat_due = now
        self.patient_from = now
        """The wait for a majority began here, or started again here because the own event loop was blocked (L9)."""
        self.reads = Reads()
        self.lease_void = False
        """A TimeoutNow may be on its way. Voters grant a vote after it even if they hear a leader (T5)."""
        self.lease_from_round = 1
        self.regrouped = False
        """The membership changed and is not in the log yet. Once it is, the core checks what it commits."""
        self.peers: dict[int, Peer] = {}
        self.regroup(membership, next_index=term_start, now=now)

    def regroup(self, membership: Membership, *, next_index: int, now: float) -> None:
        """Uses another membership from now on (M1). Members that stay keep their progress."""
        others = sorted(membership.members - {self.member})
        known = self.peers
        self.peers = {
            member: known.get(member) or Peer(member, voter=False, next_index=next_index, now=now) for member in others
        }
        for peer in self.peers.values():
            peer.voter = peer.member in membership.voters
        self.voters = tuple(peer for peer in self.peers.values() if peer.voter)
        self.counts_itself = self.member in membership.voters
        self.quorum = membership.quorum
        self.lease_from_round = self.round + 1  # R3: a change voids the lease until a later round
        self.regrouped = True

    def committed_index(self, synced_index: int) -> int:
        """The index up to which a majority has durable entries. The leader counts its own synced entries (D3, S10)."""
        matches = [peer.counted_match for peer in self.voters]
        return self._held(matches, synced_index)

    def confirmed_round(self) -> int:
        """The newest round that a majority answered; members that may have lost data do not count (R1)."""
        return self._held([0 if peer.possible_loss else peer.acked_round for peer in self.voters], self.round)

    def heard_at(self, now: float) -> float:
        """When the newest round was sent that a majority answered (L4). Members that may have lost data count here."""
        return self._held([peer.acked_at for peer in self.voters], now)

    def has_lease(self, now: float, settings: RaftSettings) -> bool:
        """Whether a majority has promised to elect no other leader until later than `now` (R3).

        Each of these members promised it for T when it answered, which was after the round was sent. The comparison
        allows for clocks that differ by `clock_drift`.
        """
        if self.lease_void or (self.voters and self.confirmed_round() < self.lease_from_round):
            return False
        promised_at = self._held([float("-inf") if peer.possible_loss else peer.acked_at for peer in self.voters], now)
        return now < promised_at + settings.election_timeout_seconds * (1 - settings.clock_drift)

    def confirmed_without(self, peer: Peer, round_: int) -> bool:
        """Whether the others have confirmed that this is still the newest term, since `peer` reported a possible loss
        (D9, S14).

        If only entries may be lost, the confirmation of a majority without `peer` is enough: it overlaps with the
        majority that elected any newer leader. If its votes may be lost, it may have voted for any candidate: all
        others must have answered. All others are also enough if so many may have lost data that the rest is no
        majority.
        """
        others = [other for other in self.voters if other is not peer]
        answered = [other for other in others if other.acked_round >= round_]
        if len(answered) == len(others):
            return True
        sound = sum(not other.possible_loss for other in answered) + self.counts_itself
        return peer.possible_loss is PossibleLoss.LOG and sound >= self.quorum

    def best_successor(self, reachable_since: float) -> Peer | None:
        """The best voter of those that answer and are sound: the one with the most disk space, then the longest log
        (T1, L10)."""
        fit = [peer for peer in self.voters if not peer.possible_loss and peer.disk.can_write]
        reachable = [peer for peer in fit if peer.acked_at >= reachable_since]
        return max(reachable, key=lambda peer: (peer.disk.rank, peer.match_index), default=None)

    def _held(self, values: list[_Value], own: _Value) -> _Value:
        """The highest value that a majority has reached."""
        if self.counts_itself:
            values.append(own)
        values.sort()
        return values[-self.quorum]
