"""What an operator is told about a group, as seen by one of its members."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.replication.durable import DiskState, Doubt
from tallystick.replication.effects import Role
from tallystick.replication.transport.peer_lane import Address


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
