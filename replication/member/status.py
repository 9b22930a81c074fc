"""What an operator is told about a group, as seen by one of its members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tallystick.replication.durable import DiskState, Doubt
from tallystick.replication.effects import Role
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.raft import Raft
from tallystick.replication.transport.handshake import Lane
from tallystick.replication.transport.peer_lane import Address
from tallystick.replication.transport.transport import PeerStatus


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """Another member. What only a leader knows is None elsewhere."""

    member: int
    voter: bool
    address: Address | None
    connected: bool
    """We have both of our lanes to it."""
    match_index: int | None
    lag_bytes: int | None
    """How much of the leader's log is not known to be durable there."""
    state: str | None
    """`probe`, `pipeline` or `install`."""
    seconds_since_heard: float | None
    """Since the round of heartbeats was sent that it answered last."""
    disk: DiskState | None
    doubt: Doubt | None


@dataclass(frozen=True, slots=True)
class Unrepaired:
    """Damage of this member's log that could not be repaired so far. It is tried again and again."""

    first: int
    """The first damaged entry, at byte `pos`; the damage ends before byte `end_pos`."""
    pos: int
    end_pos: int
    reason: str
    """Why the last try failed."""
    no_copy: bool
    """All other members have answered several times that they have no sound copy. False: some did not answer yet."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One member's view. Indexes are those of entries, -1: there is none."""

    cluster: str
    group: str
    member: int
    role: Role
    term: int
    leader: int | None
    ready: bool
    """Leads, and has committed an entry of its own term."""
    accepting: bool
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    membership_index: int
    membership_committed: bool
    first_index: int
    last_index: int
    synced_index: int
    commit_index: int
    applied_index: int
    transfer_target: int | None
    disk: DiskState
    doubt: Doubt
    fatal: str | None
    last_error: str
    """The last thing that went wrong here, empty: nothing did. For people."""
    peers: tuple[PeerProgress, ...]
    refused_messages: int = 0
    """Messages of others that were dropped because they cannot be true, and entries that were not sound."""
    removed: bool = False
    """Another member said that this one does not belong to the group any more."""
    unreadable: str | None = None
    """Why this member does not lead, whatever the others do: a part of its log cannot be read. None: all can."""
    unrepaired: tuple[Unrepaired, ...] = ()
    """By position."""


def progress_of(raft: Raft, ledger: Ledger, lanes: Sequence[PeerStatus], now: float) -> tuple[PeerProgress, ...]:
    """Of all members but the own one, and of whoever else there is a connection with; by number."""
    known = {status.member: status for status in lanes}
    members = sorted((raft.membership.members | known.keys()) - {raft.id})
    return tuple(_progress(raft, ledger, member, known.get(member), now) for member in members)


def _progress(raft: Raft, ledger: Ledger, member: int, status: PeerStatus | None, now: float) -> PeerProgress:
    peer, lag = raft.peers.get(member), None
    if peer is not None:
        has = ledger.end_of(peer.match_index) if peer.match_index >= ledger.base.index else 0
        lag = ledger.log.written - has
    return PeerProgress(
        member=member,
        voter=member in raft.membership.voters,
        address=None if status is None else status.address,
        connected=status is not None
        and len(status.lanes) == len(Lane)
        and all(lane.connected for lane in status.lanes.values()),
        match_index=None if peer is None else peer.match_index,
        lag_bytes=lag,
        state=None if peer is None else peer.state.value,
        seconds_since_heard=None if peer is None else max(0.0, now - peer.acked_at),
        disk=None if peer is None else peer.disk,
        doubt=None if peer is None else peer.doubt,
    )
