"""A running member's exchange with other members: messages of the core, entries, and snapshots.

transport ─▶ delivered ─▶ Inbox ─▶ Raft.step
   ▲                        └─▶ SnapshotReceiver ◀── shipments ──▶ SnapshotSender
   └─────── Outbox ◀─ Send                                           ▲
                                                    SendSnapshot ────┘
"""

from __future__ import annotations

from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.member.core_calls import CoreCalls
from tallystick.replication.member.health import Health
from tallystick.replication.member.inbox import Inbox
from tallystick.replication.member.outbox import Outbox
from tallystick.replication.member.repair_task import RepairTask
from tallystick.replication.member.snapshot_transfer import SnapshotReceiver, SnapshotSender
from tallystick.replication.messages import Message
from tallystick.replication.raft import Raft
from tallystick.replication.transport.handshake import Lane
from tallystick.replication.transport.shipping import Shipping
from tallystick.replication.transport.transport import Transport


class Connections:
    """Owns inbox, outbox, and the snapshots that are sent and received. `transport` must call `deliver`, `connected`
    and `room`."""

    def __init__(
        self,
        transport: Transport,
        shipping: Shipping,
        raft: Raft,
        ledger: Ledger,
        calls: CoreCalls,
        repairs: RepairTask,
        health: Health,
        *,
        max_append_bytes: int,
    ) -> None:
        self.transport = transport
        self.shipping = shipping
        self.outbox = Outbox(
            raft,
            ledger,
            transport,
            calls,
            max_append_bytes=max_append_bytes,
            note=health.note,
            repair=lambda first, end_pos: repairs.add(ledger.pos_of(first), end_pos),
        )
        self.inbox = Inbox(
            raft,
            ledger,
            calls,
            fetch_snapshot=lambda request: self._receiver.receive(request),
            refuse=health.refuse_range,
        )
        self.snapshots = SnapshotSender(transport, shipping)
        self._receiver = SnapshotReceiver(shipping, self.inbox.snapshot_arrived)
        self._repairs = repairs
        self._health = health

    def deliver(self, message: Message, payload: memoryview | None) -> None:
        """A message arrived."""
        if self._health.stopped is None:
            self.inbox.deliver(message, payload)

    def connected(self, member: int, lane: Lane) -> None:
        """A lane has a new connection."""
        if lane is Lane.BULK and self._health.stopped is None:
            self.outbox.connected(member)
            self.snapshots.send_again(member)
            self._repairs.try_now()

    def room(self, member: int, lane: Lane) -> None:
        """A lane that was full accepts messages again."""
        if lane is Lane.BULK and self._health.stopped is None:
            self.outbox.room(member)
            self.snapshots.on_room(member)

    def halt(self) -> None:
        """Ends the transfers of snapshots."""
        self._receiver.cancel()
        self.snapshots.withdraw_all()

    async def close(self) -> None:
        """Ends all connections."""
        await self.shipping.close()
        await self.transport.close()
