"""Ships a snapshot to a member that lacks entries which the leader has deleted (L11).

    leader                                              the member
    Install ─▶ snapshot, offered as a shipment
               InstallRequest, with the shipment's number ─▶ fetch
                                                      ◀─ ... ─▶
                                                             InstallRequest, whole, to the core ─▶ InstallSnapshot

The log that the member keeps afterwards begins behind the request's `snapshot_index`, as the leader's log does. The
leader ships its applied state as bytes. This state can be newer: the bytes contain their own index. The entries behind
`snapshot_index` follow as appends. The request's payload is the ticket, big-endian: the number of the shipment (8
bytes), and the position (8) and chain CRC (4) of the log at `snapshot_index`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from collections.abc import Callable, Mapping, Sequence

from tallystick.replication.ledger.mark import EntryPoint
from tallystick.replication.messages import InstallRequest
from tallystick.replication.transport.shipping import ShipmentError, Shipping
from tallystick.replication.transport.shipping_messages import ShippedFile
from tallystick.replication.transport.transport import Transport

_TICKET = struct.Struct(">qqI")
_SNAPSHOT = "snapshot"

_logger = logging.getLogger("tallystick.replication")


class _BlobSource:
    def __init__(self, blob: bytes) -> None:
        self._blob = blob

    def files(self) -> Sequence[ShippedFile]:
        return [ShippedFile(_SNAPSHOT, len(self._blob))]

    def read(self, file: ShippedFile, offset: int, size: int) -> bytes:
        return self._blob[offset : offset + size]


class _BlobTarget:
    """Keeps the bytes in memory: a broker holds its applied state in memory anyway."""

    def __init__(self) -> None:
        self.blob = bytearray()

    def received(self, file: ShippedFile) -> int:
        return len(self.blob)

    def write(self, file: ShippedFile, offset: int, data: memoryview) -> None:
        self.blob += data

    def read(self, file: ShippedFile, offset: int, size: int) -> bytes:
        return bytes(self.blob[offset : offset + size])

    def finish(self, file: ShippedFile) -> None:
        pass  # `Member.open`'s `restore` makes it durable

    def discard(self, file: ShippedFile) -> None:
        self.blob.clear()


class SnapshotSender:
    """The leader's side: one offer for each member that needs a snapshot."""

    def __init__(self, transport: Transport, shipping: Shipping) -> None:
        self._transport = transport
        self._shipping = shipping
        self._offers: dict[int, tuple[InstallRequest, int, bytes]] = {}
        self._refused: set[int] = set()  # members whose lane refused the request

    def send(self, request: InstallRequest, start: EntryPoint, snapshot: Callable[[], bytes]) -> None:
        """Offers the snapshot and sends the request to the member. `start`: the entry before the start of the log.

        A repeated call with the same request keeps the offer.
        """
        if start.index != request.snapshot_index:
            return  # old segments were deleted meanwhile: the core asks again, with the log's new start
        known = self._offers.get(request.target)
        if known is None or known[0] != request:
            self.withdraw(request.target)
            number = 1 << 62 | secrets.randbits(48)  # shipments of segments use their positions as numbers
            self._shipping.offer(number, _BlobSource(snapshot()))
            self._offers[request.target] = request, number, _TICKET.pack(number, start.pos, start.chain)
        self.send_again(request.target)

    def send_again(self, member: int) -> None:
        """Sends the request again: it may be lost."""
        self._refused.discard(member)
        if member in self._offers:
            request, _, ticket = self._offers[member]
            if not self._transport.send(request, ticket):
                self._refused.add(member)

    def on_room(self, member: int) -> None:
        """The member's lane accepts messages again. Chunks of the snapshot itself fill it most of the time."""
        if member in self._refused:
            self.send_again(member)

    def withdraw(self, member: int) -> None:
        """Ends the offer: the member has the snapshot, or will not get it from this member."""
        found = self._offers.pop(member, None)
        if found is not None:
            self._shipping.withdraw(found[1])

    def withdraw_from_matched(self, match_indexes: Mapping[int, int]) -> None:
        """Ends the offers to members that have their snapshot, or more."""
        for member, (request, _, _) in list(self._offers.items()):
            if match_indexes.get(member, -1) >= request.snapshot_index:
                self.withdraw(member)

    def withdraw_all(self) -> None:
        for member in list(self._offers):
            self.withdraw(member)


class SnapshotReceiver:
    """The receiving side. Calls `arrived(request, point, blob)` once a snapshot is complete."""

    def __init__(self, shipping: Shipping, arrived: Callable[[InstallRequest, EntryPoint, bytes], None]) -> None:
        self._shipping = shipping
        self._arrived = arrived
        self._under_way: InstallRequest | None = None
        self._task: asyncio.Task[None] | None = None

    def receive(self, request: InstallRequest) -> None:
        """Begins to fetch the snapshot, unless that is in progress. A newer request ends an older one."""
        if request == self._under_way:
            return
        self.cancel()
        try:
            number, pos, chain = _TICKET.unpack(request.payload)
        except struct.error:
            _logger.error("n%d sent a snapshot of an unknown format", request.source)
            return
        self._under_way = request
        point = EntryPoint(request.snapshot_index, request.snapshot_term, chain, pos)
        self._task = asyncio.get_running_loop().create_task(self._fetch(request, number, point), name="fetch-snapshot")

    async def _fetch(self, request: InstallRequest, number: int, point: EntryPoint) -> None:
        target = _BlobTarget()
        try:
            await self._shipping.fetch(request.source, number, target)
        except (ShipmentError, OSError) as error:
            _logger.warning("could not fetch the snapshot at entry %d: %s", request.snapshot_index, error)
            self._under_way = None  # the leader sends the request again
            return
        self._under_way = None
        self._arrived(request, point, bytes(target.blob))

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = self._under_way = None
