"""Ships the base of a log to a member that lacks entries which are not kept any more (L11).

    leader                                              the member
    Install ─▶ snapshot, offered as a shipment
               InstallRequest, with the shipment's number ─▶ fetch
                                                      ◀─ ... ─▶
                                                             InstallRequest, whole, to the core ─▶ InstallBase

What is shipped is the applied state of the leader as bytes: it may be newer than the base, and says so itself. The
entries behind the base follow as appends. The number, with the place and the chain CRC of the base, is the request's
payload, big-endian: shipment 8, pos 8, chain 4.
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
    """In memory: what is applied is what a broker holds in memory anyway."""

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


class BaseSender:
    """A leader's side: one offer for each member that needs a base."""

    def __init__(self, transport: Transport, shipping: Shipping) -> None:
        self._transport = transport
        self._shipping = shipping
        self._offers: dict[int, tuple[InstallRequest, int, bytes]] = {}
        self._refused: set[int] = set()  # members whose lane did not take the request

    def send(self, request: InstallRequest, base: EntryPoint, snapshot: Callable[[], bytes]) -> None:
        """Offers the base and tells the member of it. The same request again goes on with the same offer."""
        if base.index != request.base_index:
            return  # old segments were deleted just now: the core asks again, with the log's new begin
        known = self._offers.get(request.target)
        if known is None or known[0] != request:
            self.withdraw(request.target)
            number = 1 << 62 | secrets.randbits(48)  # shipments of segments have their positions for numbers
            self._shipping.offer(number, _BlobSource(snapshot()))
            self._offers[request.target] = request, number, _TICKET.pack(number, base.pos, base.chain)
        self.send_again(request.target)

    def send_again(self, member: int) -> None:
        """The request may not have reached it."""
        self._refused.discard(member)
        if member in self._offers:
            request, _, ticket = self._offers[member]
            if not self._transport.send(request, ticket):
                self._refused.add(member)

    def on_room(self, member: int) -> None:
        """The lane to it takes messages again. Chunks of the base itself fill it all the time."""
        if member in self._refused:
            self.send_again(member)

    def withdraw(self, member: int) -> None:
        """It has the base, or will not get it from here."""
        found = self._offers.pop(member, None)
        if found is not None:
            self._shipping.withdraw(found[1])

    def withdraw_from_matched(self, match_indexes: Mapping[int, int]) -> None:
        """Those who have their base, or more, need no offer any longer."""
        for member, (request, _, _) in list(self._offers.items()):
            if match_indexes.get(member, -1) >= request.base_index:
                self.withdraw(member)

    def withdraw_all(self) -> None:
        for member in list(self._offers):
            self.withdraw(member)


class BaseReceiver:
    """The other side. `arrived(request, point, blob)`, once all of a base is here."""

    def __init__(self, shipping: Shipping, arrived: Callable[[InstallRequest, EntryPoint, bytes], None]) -> None:
        self._shipping = shipping
        self._arrived = arrived
        self._under_way: InstallRequest | None = None
        self._task: asyncio.Task[None] | None = None

    def receive(self, request: InstallRequest) -> None:
        """Begins to fetch, unless it does already. A newer request ends an older one."""
        if request == self._under_way:
            return
        self.cancel()
        try:
            number, pos, chain = _TICKET.unpack(request.payload)
        except struct.error:
            _logger.error("n%d sent a base of an unknown form", request.source)
            return
        self._under_way = request
        point = EntryPoint(request.base_index, request.base_term, chain, pos)
        self._task = asyncio.get_running_loop().create_task(self._fetch(request, number, point), name="fetch-base")

    async def _fetch(self, request: InstallRequest, number: int, point: EntryPoint) -> None:
        target = _BlobTarget()
        try:
            await self._shipping.fetch(request.source, number, target)
        except (ShipmentError, OSError) as error:
            _logger.warning("the base behind entry %d was not got: %s", request.base_index, error)
            self._under_way = None  # the leader sends the request again
            return
        self._under_way = None
        self._arrived(request, point, bytes(target.blob))

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = self._under_way = None
