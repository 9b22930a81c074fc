"""Whole files to a member that is far behind (L11): what arrives is what was offered, through everything in between."""

import asyncio
import random
from dataclasses import replace

import pytest
import uvloop
from transport_lab import QUICK, Member, Proxy, append, group, heartbeat, until

from tallystick.replication.transport import Lane
from tallystick.replication.transport.shipping import ShipmentDamagedError, ShipmentRefusedError, Shipping
from tallystick.replication.transport.shipping_messages import ShippedFile
from tallystick.replication.transport.throttle import Throttle

# Newer versions of the plugin have a hook for this, older ones do not.
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy.:pytest.PytestDeprecationWarning")
SMALL_CHUNKS = replace(QUICK, ship_chunk_bytes=10_000, ship_bytes_per_second=1 << 40)


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


class Files:
    """A source, and what a target should be equal to."""

    def __init__(self, seed: int, sizes: dict[str, int]) -> None:
        dice = random.Random(seed)
        self.content = {name: dice.randbytes(size) for name, size in sizes.items()}
        self.reads: list[tuple[str, int, int]] = []
        self.error: OSError | None = None

    def files(self) -> list[ShippedFile]:
        return [ShippedFile(name, len(content)) for name, content in self.content.items()]

    def read(self, file: ShippedFile, offset: int, size: int) -> bytes:
        if self.error is not None:
            raise self.error
        self.reads.append((file.name, offset, size))
        return self.content[file.name][offset : offset + size]


class Target:
    """Keeps what it is given, as a disk would: partly received files outlive a fetch."""

    def __init__(self) -> None:
        self.partly: dict[str, bytearray] = {}
        self.finished: dict[str, bytes] = {}
        self.discarded: list[str] = []
        self.damage = 0
        """So many more writes get one byte wrong."""
        self.error: OSError | None = None
        self.at_most: int | None = None

    def received(self, file: ShippedFile) -> int:
        if file.name in self.finished:
            return len(self.finished[file.name])
        return len(self.partly.get(file.name, b""))

    def write(self, file: ShippedFile, offset: int, data: memoryview) -> None:
        if self.error is not None:
            raise self.error
        content = self.partly.setdefault(file.name, bytearray())
        assert offset == len(content), "in order, without holes"
        content += data
        if self.damage:
            self.damage -= 1
            content[-1] ^= 1

    def read(self, file: ShippedFile, offset: int, size: int) -> bytes:
        content = self.finished.get(file.name) or self.partly.get(file.name, b"")
        return bytes(content[offset : offset + size])

    def finish(self, file: ShippedFile) -> None:
        if file.name not in self.finished:
            self.finished[file.name] = bytes(self.partly.pop(file.name, b""))

    def discard(self, file: ShippedFile) -> None:
        self.discarded.append(file.name)
        self.partly.pop(file.name, None)
        self.finished.pop(file.name, None)


SIZES = {"data/00000000000000000000": 300_001, "index/00000000000000000000": 10_000, "empty": 0, "metadata": 123}


async def close(*members: Member) -> None:
    for member in members:
        await member.transport.close()


async def test_all_files_arrive_in_order_and_whole() -> None:
    a, b = Member(0, SMALL_CHUNKS), Member(1, SMALL_CHUNKS)
    await group(a, b)
    shipping, fetching = Shipping(a.transport), Shipping(b.transport)
    source, target = Files(1, SIZES), Target()
    shipping.offer(7, source)
    steps: list[tuple[int, int]] = []
    files = await fetching.fetch(0, 7, target, progress=lambda done, total: steps.append((done, total)))
    assert files == tuple(source.files())
    assert target.finished == source.content and list(target.finished) == list(SIZES)
    assert (fetching.bytes_received, shipping.bytes_sent) == (sum(SIZES.values()),) * 2
    assert steps == sorted(steps) and steps[-1] == (sum(SIZES.values()),) * 2
    await shipping.close()
    await close(a, b)


async def test_the_rate_is_kept_for_all_members_together() -> None:
    a, b, c = (
        Member(0, replace(SMALL_CHUNKS, ship_bytes_per_second=100_000)),
        Member(1, SMALL_CHUNKS),
        Member(2, SMALL_CHUNKS),
    )
    await group(a, b, c)
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    shipping = Shipping(a.transport, clock=lambda: now, sleep=sleep)
    source, targets = Files(1, {"data/0": 1_000_000}), (Target(), Target())
    shipping.offer(7, source)
    await asyncio.gather(*(Shipping(m.transport).fetch(0, 7, t) for m, t in zip((b, c), targets, strict=True)))
    assert [target.finished for target in targets] == [source.content] * 2
    assert now == pytest.approx((2_000_000 - 40_000) / 100_000), "what is asked for at once is not waited for"
    await close(a, b, c)


async def test_what_is_there_is_not_fetched_again() -> None:
    """A member that restarted in the middle, and a sealed segment that another member gave before."""
    a, b = Member(0, SMALL_CHUNKS), Member(1, SMALL_CHUNKS)
    await group(a, b)
    shipping, fetching = Shipping(a.transport), Shipping(b.transport)
    source, target = Files(1, SIZES), Target()
    shipping.offer(7, source)
    first, second, *_ = source.content
    target.finished[second] = source.content[second]
    target.partly[first] = bytearray(source.content[first][:123_456])
    await fetching.fetch(0, 7, target)
    assert target.finished == source.content and target.discarded == []
    assert fetching.bytes_received == 300_001 - 123_456 + 123
    await close(a, b)


async def test_a_transfer_continues_after_a_cut() -> None:
    a, b = Member(0, SMALL_CHUNKS), Member(1, SMALL_CHUNKS)
    async with Proxy(b.port) as towards_b, Proxy(a.port) as towards_a:
        a.start()
        b.start()
        a.transport.set_peers({1: ("127.0.0.1", towards_b.port)})
        b.transport.set_peers({0: ("127.0.0.1", towards_a.port)})
        await until(lambda: a.connected(1) and b.connected(0))
        shipping, fetching = Shipping(a.transport), Shipping(b.transport, answer_timeout_s=0.05)
        source, target = Files(2, {"data/0": 2_000_000}), Target()
        shipping.offer(7, source)
        cuts = 0

        def progress(done: int, total: int) -> None:
            nonlocal cuts
            if done > (cuts + 1) * 300_000 and cuts < 5:
                cuts += 1
                (towards_a, towards_b)[cuts % 2].cut()

        await fetching.fetch(0, 7, target, progress=progress)
        assert cuts == 5 and target.finished == source.content and target.discarded == []
        assert fetching.bytes_received == 2_000_000, "nothing twice"
        await close(a, b)


async def test_lost_questions_and_answers_are_asked_for_again() -> None:
    a, b = Member(0, SMALL_CHUNKS), Member(1, SMALL_CHUNKS)
    await group(a, b)
    shipping, fetching = Shipping(a.transport), Shipping(b.transport, answer_timeout_s=0.02)
    source, target = Files(3, {"data/0": 200_000}), Target()
    shipping.offer(7, source)
    dice = random.Random(4)
    for end, deliver in ((a, a.transport.deliver_shipping), (b, b.transport.deliver_shipping)):

        def lossy(message, deliver=deliver):
            for _ in range(dice.choice([0, 1, 1, 2])):  # lost, or twice
                deliver(message)

        end.transport.deliver_shipping = lossy
    await fetching.fetch(0, 7, target)
    assert target.finished == source.content and fetching.bytes_received == 200_000
    await close(a, b)


async def test_a_damaged_chunk_is_asked_for_again() -> None:
    """The payload of a frame has no CRC: the chunk's CRC has to find the error."""
    a, b = Member(0, SMALL_CHUNKS), Member(1, SMALL_CHUNKS)
    async with Proxy(b.port) as proxy:
        a.start()
        b.start()
        a.transport.set_peers({1: ("127.0.0.1", proxy.port)})
        b.transport.set_peers({0: ("127.0.0.1", a.port)})
        await until(lambda: a.connected(1) and b.connected(0))
        shipping, fetching = Shipping(a.transport), Shipping(b.transport, answer_timeout_s=0.1)
        source, target = Files(5, {"data/0": 100_000}), Target()
        shipping.offer(7, source)
        spoilt = 0

        def spoil(lane: Lane, position: int, data: bytearray) -> None:
            nonlocal spoilt
            if lane is Lane.BULK and len(data) > 5000 and spoilt < 3:
                spoilt += 1
                data[-100] ^= 1

        proxy.spoil = spoil
        await fetching.fetch(0, 7, target)
        assert spoilt == 3 and target.finished == source.content and target.discarded == []
        assert fetching.damaged_chunks >= 1
        await close(a, b)


async def test_a_disk_that_wrote_something_else_is_found_out() -> None:
    a, b = Member(0, SMALL_CHUNKS), Member(1, SMALL_CHUNKS)
    await group(a, b)
    shipping, fetching = Shipping(a.transport), Shipping(b.transport)
    source, target = Files(6, {"data/0": 50_000}), Target()
    shipping.offer(7, source)
    target.damage = 1
    await fetching.fetch(0, 7, target)
    assert target.finished == source.content and target.discarded == ["data/0"]
    worse = Target()
    worse.damage = 100
    with pytest.raises(ShipmentDamagedError, match="data/0 of n0 was received twice"):
        await fetching.fetch(0, 7, worse)
    assert worse.finished == {} and worse.partly == {}
    await close(a, b)


async def test_more_than_the_file_is_dropped_first() -> None:
    a, b = Member(0, SMALL_CHUNKS), Member(1, SMALL_CHUNKS)
    await group(a, b)
    shipping, fetching = Shipping(a.transport), Shipping(b.transport)
    source, target = Files(6, {"metadata": 500}), Target()
    target.partly["metadata"] = bytearray(900)
    shipping.offer(7, source)
    await fetching.fetch(0, 7, target)
    assert target.finished == source.content
    await close(a, b)


async def test_files_that_cannot_be_fetched_are_reported() -> None:
    a, b = Member(0, SMALL_CHUNKS), Member(1, SMALL_CHUNKS)
    await group(a, b)
    shipping, fetching = Shipping(a.transport), Shipping(b.transport)
    with pytest.raises(ShipmentRefusedError, match="n0: shipment 7 is not offered"):
        await fetching.fetch(0, 7, Target())
    with pytest.raises(ValueError, match=r"'\.\./x' cannot be the name"):
        shipping.offer(7, Files(1, {"../x": 5}))
    source = Files(1, SIZES)
    shipping.offer(7, source)
    source.error = OSError(5, "Input/output error")
    with pytest.raises(ShipmentRefusedError, match=r"n0: .*Input/output error"):
        await fetching.fetch(0, 7, Target())
    source.error = None
    source.content["metadata"] = b"shorter"
    with pytest.raises(ShipmentRefusedError, match="metadata is shorter than announced"):
        await fetching.fetch(0, 7, Target())
    full = Target()
    full.error = OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space left"):
        await fetching.fetch(0, 7, full)
    withdrawn = Target()

    def withdraw(done: int, total: int) -> None:
        if done > 50_000:
            shipping.withdraw(7)

    with pytest.raises(ShipmentRefusedError, match="not offered"):
        await fetching.fetch(0, 7, withdrawn, progress=withdraw)
    assert len(withdrawn.partly["data/00000000000000000000"]) > 50_000, "what came stays for the next attempt"
    assert fetching._questions == {}
    await close(a, b)


async def test_a_fetch_can_be_given_up() -> None:
    a, b = Member(0, SMALL_CHUNKS), Member(1, SMALL_CHUNKS)
    await group(a, b)
    fetching = Shipping(b.transport)
    await a.transport.close()
    fetch = asyncio.create_task(fetching.fetch(0, 7, Target()))
    await asyncio.sleep(0)
    fetch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetch
    assert fetching._questions == {}
    await close(b)
    await until(lambda: len(asyncio.all_tasks()) == 1)


async def test_heartbeats_and_appends_pass_while_files_are_shipped() -> None:
    a, b = Member(0, SMALL_CHUNKS), Member(1, SMALL_CHUNKS)
    await group(a, b)
    shipping, fetching = Shipping(a.transport), Shipping(b.transport)
    source, target = Files(8, {"data/0": 3_000_000}), Target()
    shipping.offer(7, source)
    sent = 0

    def progress(done: int, total: int) -> None:
        nonlocal sent
        assert a.transport.send(heartbeat(0, 1, sent)) and a.transport.send(append(0, 1, sent, sent), b"x" * 1000)
        sent += 1

    await fetching.fetch(0, 7, target, progress=progress)
    await until(lambda: len(b.inbox) == 2 * sent)
    assert sent > 300 and target.finished == source.content
    await close(a, b)


async def test_a_member_that_asks_for_everything_at_once_gets_a_bounded_part() -> None:
    from tallystick.replication.transport.shipping_messages import ChunkRequest

    a, b = Member(0, replace(SMALL_CHUNKS, ship_bytes_per_second=1)), Member(1, SMALL_CHUNKS)
    await group(a, b)
    shipping = Shipping(a.transport)
    shipping.offer(7, Files(8, {"data/0": 100_000}))
    for request in range(100):
        assert b.transport.send_shipping(ChunkRequest(1, 0, request, 7, 0, 0, 100_000))
    await until(lambda: a.received(1, Lane.BULK).frames == 100)
    assert len(shipping._served) == 8
    await shipping.close()
    assert shipping._served == {}
    await close(a, b)


@pytest.mark.parametrize("seed", range(5))
def test_the_throttle_keeps_the_rate_over_any_time(seed: int) -> None:
    """The slow twin: units used up to any moment are at most a burst and the rate since the first."""
    dice = random.Random(seed)
    throttle = Throttle(rate=1000, burst=500)
    now, used = 100.0, []
    for _ in range(300):
        now += dice.choice([0, 0, 0.001, 0.1, 2])
        units = dice.randrange(1, 300)
        used.append((now + throttle.take(units, now), units))
    used.sort()
    for begin, (start_s, _) in enumerate(used):
        total = 0
        for when_s, units in used[begin:]:
            total += units
            assert total <= 500 + 1000 * (when_s - start_s) + 300 + 1e-6
    assert Throttle(rate=1000, burst=500).take(500, 5.0) == 0.0
