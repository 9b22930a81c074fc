"""Whole files from one member to another that is too far behind for the log (L11): sealed segments, and a snapshot.

    the one who has them                       the one who lacks them
    offer(number, source)                      fetch(member, number, target)
                                          <─   which files?            list
                                          <─   bytes [a, b) of file i  chunk with its CRC   (several under way)
                                          <─   its SHA-256?            digest of the whole file
                                               finish: the file is whole and durable

The one who lacks them asks, and so decides the pace, knows what it has, and goes on where it was: after a broken
connection, after its own restart (`ShipmentTarget.received`), and with another member's shipment of the same sealed
segment. The one who has them keeps nothing but the offer, and answers no faster than `ship_bytes_per_second` for all.

What was received is read back from the disk and compared with the other's digest before it is finished, so that a file
put together from several attempts, or from two members, is the file. A file that does not agree is dropped and fetched
once more; if that does not help, one of the two disks is not sound, and `fetch` says so.

Questions and answers travel on the bulk lane and may be lost like everything there; who asks asks again.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, assert_never

from tallystick.replication.transport.handshake import Lane
from tallystick.replication.transport.link import Payload
from tallystick.replication.transport.shipping_messages import (
    Chunk,
    ChunkRequest,
    DigestReply,
    DigestRequest,
    ListReply,
    ListRequest,
    ShippedFile,
    ShippingMessage,
    ShippingRefusal,
    ShippingReply,
    ShippingRequest,
    is_file_name,
)
from tallystick.replication.transport.throttle import Throttle
from tallystick.replication.transport.transport import Transport

_CHUNKS_UNDER_WAY = 4
_SERVED_AT_ONCE = 2 * _CHUNKS_UNDER_WAY  # for each member; more is not asked for by ours, and not answered
_HASHED_AT_ONCE = 1 << 20
_ATTEMPTS = 2

R = TypeVar("R", bound=ShippingReply)


class ShipmentError(Exception):
    """A shipment did not arrive; what arrived of it stays with the target, but for damaged files."""


class ShipmentRefusedError(ShipmentError):
    """The other member does not have it (any more), or cannot read it."""


class ShipmentDamagedError(ShipmentError):
    """A file was received twice, and differs from the other member's each time."""


class ShipmentSource(Protocol):
    """Files that do not change while they are offered. `read` is called on threads, several at a time."""

    def files(self) -> Sequence[ShippedFile]:
        """All of them, in the order in which they are of use."""
        ...

    def read(self, file: ShippedFile, offset: int, size: int) -> Payload:
        """These bytes, all of them. OSError."""
        ...


class ShipmentTarget(Protocol):
    """Where files arrive. Called on threads, one call at a time. OSError of any of them ends the fetch."""

    def received(self, file: ShippedFile) -> int:
        """Bytes from the file's begin that are there, of an earlier attempt; its size if it is finished."""
        ...

    def write(self, file: ShippedFile, offset: int, data: memoryview) -> None:
        """`offset` is always what was received so far."""
        ...

    def read(self, file: ShippedFile, offset: int, size: int) -> Payload:
        """What was written, from the disk."""
        ...

    def finish(self, file: ShippedFile) -> None:
        """The file is what it should be: make it durable."""
        ...

    def discard(self, file: ShippedFile) -> None:
        """It is not: forget what was received."""
        ...


class Shipping:
    """Offers and fetches of one member. `answer_timeout_s`: after so long a question is asked again."""

    def __init__(
        self,
        transport: Transport,
        *,
        answer_timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        settings = transport.settings
        self.bytes_sent = 0
        self.bytes_received = 0
        self.damaged_chunks = 0
        """Chunks whose CRC was wrong when they came."""
        self._transport = transport
        self._answer_timeout_s = answer_timeout_s
        self._clock = clock
        self._sleep = sleep
        self._chunk_bytes = settings.ship_chunk_bytes
        self._throttle = Throttle(settings.ship_bytes_per_second, _CHUNKS_UNDER_WAY * settings.ship_chunk_bytes)
        self.on_demand: Callable[[int], ShipmentSource | None] = lambda shipment: None
        """Makes the source of a shipment that was not offered, if there is one by this number. May raise OSError."""
        self._offers: dict[int, _Offer] = {}
        self._served: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._questions: dict[tuple[int, int], asyncio.Future[ShippingReply]] = {}
        self._next_request = random.getrandbits(48)  # not those of an earlier start, which may still be answered
        transport.deliver_shipping = self._deliver

    # --- the one who has them ---

    def offer(self, shipment: int, source: ShipmentSource) -> None:
        """Let members fetch it under this number, until it is withdrawn. ValueError: a name that cannot be shipped."""
        files = tuple(source.files())
        if wrong := [file.name for file in files if not is_file_name(file.name)]:
            raise ValueError(f"{wrong[0]!r} cannot be the name of a shipped file")
        self._offers[shipment] = _Offer(source, files)

    def withdraw(self, shipment: int) -> None:
        """The files may change from now on: nothing is read any more, but for reads that are under way."""
        offer = self._offers.pop(shipment, None)
        if offer is not None:
            offer.close()

    async def close(self) -> None:
        """Answer nothing more. Fetches are their callers' to cancel."""
        self._transport.deliver_shipping = None
        for shipment in list(self._offers):
            self.withdraw(shipment)
        tasks = list(self._served.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _deliver(self, message: ShippingMessage) -> None:
        key = message.source, message.request
        if isinstance(message, ListRequest | ChunkRequest | DigestRequest):
            under_way = sum(member == message.source for member, _ in self._served)
            if key not in self._served and under_way < _SERVED_AT_ONCE:
                task = asyncio.get_running_loop().create_task(self._serve(message))
                self._served[key] = task
                task.add_done_callback(lambda _: self._served.pop(key))
            return
        question = self._questions.get(key)
        if question is not None and not question.done():
            question.set_result(message)

    async def _serve(self, request: ShippingRequest) -> None:
        payload: Payload | None = None
        reply: ShippingReply
        try:
            reply, payload = await self._answer(request)
        except (OSError, _NotServedError) as error:
            reply = ShippingRefusal(request.target, request.source, request.request, str(error))
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                while not self._transport.send_shipping(reply, payload):
                    await self._transport.room(request.source, Lane.BULK)
        except TimeoutError:
            return  # it will ask again, if it is still there
        self.bytes_sent += 0 if payload is None else len(payload)

    async def _answer(self, request: ShippingRequest) -> tuple[ShippingReply, Payload | None]:
        offer = self._offers.get(request.shipment) or self._made_on_demand(request.shipment)
        if offer is None:
            raise _NotServedError(f"shipment {request.shipment} is not offered")
        to = request.target, request.source, request.request
        match request:
            case ListRequest():
                return ListReply(*to, offer.files), None
            case ChunkRequest(file=number, offset=offset, size=size):
                file = offer.file(number)
                if not 0 < size <= self._transport.settings.payload_max_bytes or offset + size > file.size:
                    raise _NotServedError(f"{file.name} has no {size} bytes at {offset}")
                await self._sleep(self._throttle.take(size, self._clock()))
                data = await asyncio.to_thread(offer.source.read, file, offset, size)
                if len(data) != size:
                    raise _NotServedError(f"{file.name} is shorter than it was")
                return Chunk(*to, await asyncio.to_thread(zlib.crc32, data)), data
            case DigestRequest(file=number):
                return DigestReply(*to, await offer.digest(number)), None
            case _:
                assert_never(request)

    def _made_on_demand(self, shipment: int) -> _Offer | None:
        source = self.on_demand(shipment)
        return None if source is None else _Offer(source, tuple(source.files()))

    # --- the one who lacks them ---

    async def fetch(
        self,
        member: int,
        shipment: int,
        target: ShipmentTarget,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> tuple[ShippedFile, ...]:
        """Get all files of a member's shipment; returns them when the last one is finished. Cancel it to give up.

        `progress(received, total)`: bytes, what was there before included. ShipmentRefusedError; ShipmentDamagedError;
        OSError of the target. It waits without end for a member that does not answer.
        """
        listed = await self._ask(ListRequest(self._own, member, 0, shipment), ListReply)
        total, done = sum(file.size for file in listed.files), 0
        for number, file in enumerate(listed.files):
            await self._fetch_file(member, shipment, number, file, target, _Progress(progress, done, total))
            done += file.size
        return listed.files

    async def _fetch_file(
        self, member: int, shipment: int, number: int, file: ShippedFile, target: ShipmentTarget, progress: _Progress
    ) -> None:
        for _ in range(_ATTEMPTS):
            await self._fetch_bytes(member, shipment, number, file, target, progress)
            theirs = await self._ask(DigestRequest(self._own, member, 0, shipment, number), DigestReply)
            if await asyncio.to_thread(_digest, target.read, file) == theirs.digest:
                await asyncio.to_thread(target.finish, file)
                return
            await asyncio.to_thread(target.discard, file)
        raise ShipmentDamagedError(f"{file.name} of n{member} came twice, and was another file each time")

    async def _fetch_bytes(
        self, member: int, shipment: int, number: int, file: ShippedFile, target: ShipmentTarget, progress: _Progress
    ) -> None:
        written = await asyncio.to_thread(target.received, file)
        if written > file.size:
            await asyncio.to_thread(target.discard, file)
            written = 0
        asked = written
        progress(written)
        loop = asyncio.get_running_loop()
        under_way: deque[asyncio.Task[Chunk]] = deque()
        try:
            while written < file.size:
                while asked < file.size and len(under_way) < _CHUNKS_UNDER_WAY:
                    size = min(self._chunk_bytes, file.size - asked)
                    request = ChunkRequest(self._own, member, 0, shipment, number, asked, size)
                    under_way.append(loop.create_task(self._ask(request, Chunk)))
                    asked += size
                chunk = await under_way[0]
                under_way.popleft()
                data = memoryview(chunk.payload)
                await asyncio.to_thread(target.write, file, written, data)
                written += len(data)
                self.bytes_received += len(data)
                progress(written)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    @property
    def _own(self) -> int:
        return self._transport.identity.member

    async def _ask(self, request: ShippingRequest, expected: type[R]) -> R:
        """The answer, however often it has to be asked for. All attempts have one number, so a late answer counts."""
        self._next_request += 1
        request = replace(request, request=self._next_request)
        key = request.target, request.request
        try:
            while True:
                question: asyncio.Future[ShippingReply]
                question = self._questions[key] = asyncio.get_running_loop().create_future()
                try:
                    async with asyncio.timeout(self._answer_timeout_s):
                        while not self._transport.send_shipping(request):
                            await self._transport.room(request.target, Lane.BULK)
                        reply = await question
                except TimeoutError:
                    continue
                if isinstance(reply, ShippingRefusal):
                    raise ShipmentRefusedError(f"n{reply.source}: {reply.reason}")
                if not isinstance(reply, expected):
                    raise ShipmentRefusedError(f"n{reply.source} answers something else")
                if isinstance(request, ChunkRequest) and isinstance(reply, Chunk) and not _is_answer(reply, request):
                    self.damaged_chunks += 1
                    continue
                return reply
        finally:
            del self._questions[key]


class _NotServedError(Exception):
    """A question that has no answer; the text goes to the one who asked."""


class _Offer:
    """A shipment, and the digests of its files as far as they were asked for: each is computed once."""

    def __init__(self, source: ShipmentSource, files: tuple[ShippedFile, ...]) -> None:
        self.source = source
        self.files = files
        self._digests: dict[int, asyncio.Future[bytes]] = {}

    def file(self, number: int) -> ShippedFile:
        """_NotServedError: there are not so many."""
        if number >= len(self.files):
            raise _NotServedError(f"the shipment has no file {number}")
        return self.files[number]

    async def digest(self, number: int) -> bytes:
        """SHA-256 of the file. OSError, which the next one who asks gets too."""
        file = self.file(number)
        if number not in self._digests:
            self._digests[number] = asyncio.ensure_future(asyncio.to_thread(_digest, self.source.read, file))
        return await asyncio.shield(self._digests[number])

    def close(self) -> None:
        for digest in self._digests.values():
            digest.cancel()


class _Progress:
    def __init__(self, report: Callable[[int, int], None] | None, before: int, total: int) -> None:
        self._report = report
        self._before = before
        self._total = total

    def __call__(self, received: int) -> None:
        if self._report is not None:
            self._report(self._before + received, self._total)


def _is_answer(chunk: Chunk, request: ChunkRequest) -> bool:
    return len(chunk.payload) == request.size and zlib.crc32(chunk.payload) == chunk.crc


def _digest(read: Callable[[ShippedFile, int, int], Payload], file: ShippedFile) -> bytes:
    digest = hashlib.sha256()
    for offset in range(0, file.size, _HASHED_AT_ONCE):
        data = read(file, offset, min(_HASHED_AT_ONCE, file.size - offset))
        if not len(data):
            raise OSError(f"{file.name} ends at {offset}, not at {file.size}")
        digest.update(data)
    return digest.digest()
