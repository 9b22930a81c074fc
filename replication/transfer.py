"""A transfer of leadership in progress, and to which members it is possible (T1 to T7)."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.replication.effects import TransferResult
from tallystick.replication.leadership import Leadership
from tallystick.replication.settings import RaftSettings


@dataclass(slots=True)
class Transfer:
    """Lasts from the request until another leader is known or the deadline has passed (T4)."""

    target: int
    deadline: float
    told: bool = False
    """TimeoutNow was sent: the target had all entries (T2)."""


def transfer_refusal(
    now: float, leading: Leadership, under_way: Transfer | None, settings: RaftSettings, target: int | None
) -> TransferResult | None:
    """Why leadership cannot be transferred to `target` now; None if it can. The target must be a voter that answers and
    whose disk and log are sound (T1). It must not lack so much that producers would wait long for it (T2)."""
    if not leading.ready:
        return TransferResult.NOT_READY
    if under_way is not None:
        return TransferResult.UNDER_WAY
    if target is None:
        return TransferResult.NO_TARGET
    peer = leading.peers.get(target)
    if peer is None or not peer.voter:
        return TransferResult.NOT_A_VOTER
    if peer.acked_at < now - settings.election_timeout_seconds:
        return TransferResult.UNREACHABLE
    if peer.possible_loss or not peer.disk.can_write:
        return TransferResult.UNHEALTHY
    if not leading.sender.lacks_at_most(peer, settings.transfer_within_bytes):
        return TransferResult.TOO_FAR_BEHIND
    return None
