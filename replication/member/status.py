"""The state of a group for operators, as one of its members sees it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.effects import Role
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.member.recovered import Recovered
from tallystick.replication.raft import Raft
from tallystick.replication.transport.handshake import Identity, Lane
from tallystick.replication.transport.peer_lane import Address
from tallystick.replication.transport.transport import PeerStatus

if TYPE_CHECKING:
    from tallystick.replication.member.applier import Applier
    from tallystick.replication.member.damage import LogDamage
    from tallystick.replication.member.driver import Driver
    from tallystick.replication.member.health import Health


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """Another member. Values that only a leader knows are None elsewhere."""

    member: int
    voter: bool
    address: Address | None
    connected: bool
    """This member has both of its lanes to it."""
    match_index: int | None
    lag_bytes: int | None
    """How much of the leader's log is not known to be durable there."""
    state: str | None
    """`probe`, `pipeline` or `install`."""
    seconds_since_heard: float | None
    """Seconds since the newest round of heartbeats that it answered was sent."""
    disk: DiskState | None
    doubt: PossibleLoss | None
    """What it may have lost of what it acknowledged. The HTTP API has a field of this name."""


@dataclass(frozen=True, slots=True)
class Unrepaired:
    """Damage of this member's log that could not be repaired so far. The repair is retried."""

    first: int
    """The first damaged entry, at byte `pos`; the damage ends before byte `end_pos`."""
    pos: int
    end_pos: int
    reason: str
    """Why the last attempt failed."""
    no_copy: bool
    """All other members answered several times that they have no sound copy. False: some have not answered yet."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One member's view. Indexes are those of entries; -1 means that there is none."""

    cluster: str
    group: str
    member: int
    role: Role
    term: int
    leader: int | None
    ready: bool
    """Whether it leads and has committed an entry of its current term."""
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
    doubt: PossibleLoss
    """What it may have lost of what it acknowledged."""
    fatal: str | None
    last_error: str
    """The last error, as a text for people; empty if there was none."""
    peers: tuple[PeerProgress, ...]
    refused_messages: int = 0
    """Number of messages that were dropped because they cannot be true, and of entries that were damaged."""
    removed: bool = False
    """Another member said that this one is no longer in the group."""
    unreadable: str | None = None
    """Why this member does not lead in any case: a part of its log cannot be read. None if all of it can."""
    unrepaired: tuple[Unrepaired, ...] = ()
    """Sorted by position."""
    recovered: Recovered | None = None
    """This member was once made the only voter of its group by force; None: it was not."""


def status_of(
    identity: Identity,
    driver: Driver,
    ledger: Ledger,
    applier: Applier,
    damage: LogDamage,
    health: Health,
    recovered: Recovered | None,
) -> GroupStatus:
    """The state of a running member and of its group."""
    raft, roles = driver.raft, driver.roles
    membership = raft.membership
    return GroupStatus(
        cluster=identity.cluster,
        group=identity.group,
        member=identity.member,
        role=roles.role,
        term=raft.term,
        leader=roles.leader,
        ready=roles.ready,
        accepting=roles.accepting,
        voters=tuple(sorted(membership.voters)),
        learners=tuple(sorted(membership.learners)),
        membership_index=raft.membership_index,
        membership_committed=raft.membership_index <= applier.committed_index,
        first_index=ledger.first_index,
        last_index=ledger.last_index,
        synced_index=ledger.synced_index,
        commit_index=applier.committed_index,
        applied_index=applier.applied_index,
        transfer_target=raft.transfer_target,
        disk=raft.disk_state,
        doubt=raft.possible_loss,
        fatal=health.fatal,
        last_error=health.last_error,
        refused_messages=health.refused_messages + health.refused_ranges,
        removed=raft.removed,
        unreadable=damage.unreadable,
        unrepaired=damage.task.unrepaired(),
        recovered=recovered,
        peers=_progress_of(raft, ledger, driver.connections.transport.status(), time.monotonic()),
    )


def _progress_of(raft: Raft, ledger: Ledger, lanes: Sequence[PeerStatus], now: float) -> tuple[PeerProgress, ...]:
    """The progress of all other members, and of other processes with a connection; sorted by number."""
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
        doubt=None if peer is None else peer.possible_loss,
    )
