"""Ships whole files to a member that is too far behind for the log (L11): sealed segments, and a snapshot.

    the member that has the files              the member that lacks them

    offer(number, source)                      fetch(member, number, target)
                                          <─   which files?            list
                                          <─   bytes [a, b) of file i  chunk with its CRC   (several in progress)
                                          <─   its SHA-256?            digest of the whole file
                                               finish: the file is whole and durable

The receiving member asks. It therefore controls the rate, knows what it has, and resumes after a lost connection, after
its own restart (`ShipmentTarget.received`), and with another member's shipment of the same sealed segment. The sending
member keeps only the offer, and sends at most `ship_bytes_per_second` to all members together.

The receiver reads the file back from the disk and compares its digest with the sender's before it finishes the file.
This also verifies a file that consists of several attempts, or comes from two members. A file that differs is dropped
and fetched once more. If it differs again, one of the two disks is faulty, and `fetch` reports that.

Questions and answers use the bulk lane and can be lost there; the receiver then asks again.
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
_SERVED_AT_ONCE = 2 * _CHUNKS_UNDER_WAY  # for each member: members never ask for more, and more is not answered
_HASHED_AT_ONCE = 1 << 20
_ATTEMPTS = 2

R = TypeVar("R", bound=ShippingReply)


class ShipmentError(Exception):
    """A shipment did not arrive. What arrived stays with the target, except for damaged files."""


class ShipmentRefusedError(ShipmentError):
    """The other member does not have the shipment, or cannot read it."""


class ShipmentDamagedError(ShipmentError):
    """A file was received twice and differs from the other member's each time."""


class ShipmentSource(Protocol):
    """Files that do not change while they are offered. `read` is called on threads, several at a time."""

    def files(self) -> Sequence[ShippedFile]:
        """All files, in the order in which they are useful."""
        ...

    def read(self, file: ShippedFile, offset: int, size: int) -> Payload:
        """Exactly these bytes. Raises OSError."""
        ...


class ShipmentTarget(Protocol):
    """Where files arrive. Called on threads, one call at a time. An OSError from any method ends the fetch."""

    def received(self, file: ShippedFile) -> int:
        """Number of bytes from the file's start that an earlier attempt received; its size if it is finished."""
        ...

    def write(self, file: ShippedFile, offset: int, data: memoryview) -> None:
        """Writes received bytes. `offset` is always the number of bytes received so far."""
        ...

    def read(self, file: ShippedFile, offset: int, size: int) -> Payload:
        """Reads what was written, from the disk."""
        ...

    def finish(self, file: ShippedFile) -> None:
        """The file is verified: make it durable."""
        ...

    def discard(self, file: ShippedFile) -> None:
        """The file is wrong: drop what was received."""
        ...


class Shipping:
    """Offers and fetches of one member. `answer_timeout_s`: when a question is asked again."""

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
        """Number of received chunks whose CRC was wrong."""
        self._transport = transport
        self._answer_timeout_s = answer_timeout_s
        self._clock = clock
        self._sleep = sleep
        self._chunk_bytes = settings.ship_chunk_bytes
        self._throttle = Throttle(settings.ship_bytes_per_second, _CHUNKS_UNDER_WAY * settings.ship_chunk_bytes)
        self.on_demand: Callable[[int], ShipmentSource | None] = lambda shipment: None
        """Creates the source of a shipment that was not offered, or returns None. It may raise OSError."""
        self._offers: dict[int, _Offer] = {}
        self._served: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._questions: dict[tuple[int, int], asyncio.Future[ShippingReply]] = {}
        self._next_request = random.getrandbits(48)  # differs from an earlier start, whose answers may still arrive
        transport.deliver_shipping = self._deliver

    # --- sending ------------------------------------------------------------------------------------------------------

    def offer(self, shipment: int, source: ShipmentSource) -> None:
        """Lets members fetch it under this number until `withdraw`. ValueError: a file name that cannot be shipped."""
        files = tuple(source.files())
        if wrong := [file.name for file in files if not is_file_name(file.name)]:
            raise ValueError(f"{wrong[0]!r} cannot be the name of a shipped file")
        self._offers[shipment] = _Offer(source, files)

    def withdraw(self, shipment: int) -> None:
        """The files may change from now on: they are no longer read, except by reads in progress."""
        offer = self._offers.pop(shipment, None)
        if offer is not None:
            offer.close()

    async def close(self) -> None:
        """Stops answering. Callers must cancel their own fetches."""
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
            return  # the member asks again if it still needs it
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
                    raise _NotServedError(f"{file.name} does not have {size} bytes at {offset}")
                await self._sleep(self._throttle.take(size, self._clock()))
                data = await asyncio.to_thread(offer.source.read, file, offset, size)
                if len(data) != size:
                    raise _NotServedError(f"{file.name} is shorter than announced")
                return Chunk(*to, await asyncio.to_thread(zlib.crc32, data)), data
            case DigestRequest(file=number):
                return DigestReply(*to, await offer.digest(number)), None
            case _:
                assert_never(request)

    def _made_on_demand(self, shipment: int) -> _Offer | None:
        source = self.on_demand(shipment)
        return None if source is None else _Offer(source, tuple(source.files()))

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def fetch(
        self,
        member: int,
        shipment: int,
        target: ShipmentTarget,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> tuple[ShippedFile, ...]:
        """Fetches all files of a member's shipment; returns them when the last one is finished. Cancel it to give up.

        `progress(received, total)`: numbers of bytes, including those that were there before. Raises
        ShipmentRefusedError, ShipmentDamagedError, or the target's OSError. It waits without limit for a member that
        does not answer.
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
        raise ShipmentDamagedError(f"{file.name} of n{member} was received twice and differs each time")

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
        """Asks until there is an answer, and returns it. All attempts have one number, so a late answer counts."""
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
                    raise ShipmentRefusedError(f"n{reply.source} sent another kind of answer")
                if isinstance(request, ChunkRequest) and isinstance(reply, Chunk) and not _is_answer(reply, request):
                    self.damaged_chunks += 1
                    continue
                return reply
        finally:
            del self._questions[key]


class _NotServedError(Exception):
    """A question that cannot be answered; the text goes to the other member."""


class _Offer:
    """A shipment, and the requested digests of its files: each is computed once."""

    def __init__(self, source: ShipmentSource, files: tuple[ShippedFile, ...]) -> None:
        self.source = source
        self.files = files
        self._digests: dict[int, asyncio.Future[bytes]] = {}

    def file(self, number: int) -> ShippedFile:
        """Raises _NotServedError if there is no such file."""
        if number >= len(self.files):
            raise _NotServedError(f"the shipment has no file {number}")
        return self.files[number]

    async def digest(self, number: int) -> bytes:
        """SHA-256 of the file. Raises OSError, also for later callers."""
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
