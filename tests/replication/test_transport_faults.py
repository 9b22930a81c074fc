"""A network that cuts, holds, loses and damages, and peers that talk rubbish: nothing gets stuck, little is logged."""

import asyncio
import gc
import logging
import os
import random
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop
from transport_lab import QUICK, Member, Proxy, append, group, heartbeat, until

from tallystick.replication.transport import Identity, Lane
from tallystick.replication.transport.backoff import Backoff
from tallystick.replication.transport.frames import encode_frame
from tallystick.replication.transport.handshake import KIND_HELLO, KIND_WELCOME, Hello, Welcome

# Newer versions of the plugin have a hook for this, older ones do not.
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy.:pytest.PytestDeprecationWarning")
HELLO = encode_frame(KIND_HELLO, 1, Hello(Identity("c", "g", 0), 1, Lane.CONTROL).encode())


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


async def close(*members: Member) -> None:
    for member in members:
        await member.transport.close()


async def through(proxy: Proxy, a: Member, b: Member) -> None:
    """Both up; `a` calls `b` through the proxy, `b` calls `a` directly."""
    a.start()
    b.start()
    a.transport.set_peers({b.id: ("127.0.0.1", proxy.port)})
    b.transport.set_peers({a.id: ("127.0.0.1", a.port)})
    await until(lambda: a.connected(b.id) and b.connected(a.id))


# -- lanes and back-pressure -------------------------------------------------------------------------------------------


async def test_heartbeats_pass_while_100_mb_of_entries_are_queued() -> None:
    """L9. The bulk lane stands still for the whole test; nothing of it arrives before all heartbeats did."""
    a, b = Member(0, replace(QUICK, bulk_queue_bytes=128 << 20, silence_timeout_ms=600_000)), Member(1)
    async with Proxy(b.port) as proxy:
        await through(proxy, a, b)
        proxy.paused.add(Lane.BULK)
        body = random.Random(5).randbytes(1 << 20)
        for index in range(100):
            assert a.transport.send(append(0, 1, index, index), body)
        await until(lambda: a.transport.status()[0].lanes[Lane.BULK].queued_bytes > 64 << 20)
        for number in range(50):
            assert a.transport.send(heartbeat(0, 1, number))
            assert b.transport.send(heartbeat(1, 0, number))
        await until(lambda: len(a.inbox) == 50 and sum(payload is None for _, payload in b.inbox) == 50)
        assert len(b.inbox) <= 50 + 2, "what the proxy held of the bulk lane when it stopped"
        proxy.resume()
        await until(lambda: len(b.inbox) == 150)
        appends = [message for message, payload in b.inbox if payload]
        assert [message.last_index for message in appends] == list(range(100))  # type: ignore[union-attr]
        await close(a, b)


@pytest.mark.parametrize("lane", Lane)
async def test_a_stalled_reader_fills_its_lane_up_to_the_limit(lane: Lane) -> None:
    limit = 1 << 20
    settings = replace(QUICK, bulk_queue_bytes=limit, control_queue_bytes=limit, silence_timeout_ms=600_000)
    a, b = Member(0, settings), Member(1)
    async with Proxy(b.port) as proxy:
        await through(proxy, a, b)
        proxy.paused.add(lane)
        body = bytes(100_000)
        bulk, control = append(0, 1), heartbeat(0, 1)

        def send() -> bool:
            return a.transport.send(bulk, body) if lane is Lane.BULK else a.transport.send(control)

        frame = 100_092 if lane is Lane.BULK else 77
        taken = 0
        full_for = 0
        while full_for < 50:  # the kernel's buffers fill too, on both ways through the proxy
            if send():
                taken += 1
                full_for = 0
            else:
                full_for += 1
                await asyncio.sleep(0.001)
            queued = a.transport.status()[0].lanes[lane].queued_bytes
            assert queued <= limit + frame
            if taken % 100 == 0:
                await asyncio.sleep(0)
        counters = a.sent(1, lane)
        assert counters.frames == taken and counters.dropped_full >= 50
        assert a.connected(1, *Lane), "slow is not dead"
        a.rooms.clear()
        proxy.resume()
        await until(send)
        assert a.rooms == [(1, lane)]
        await until(lambda: len(b.inbox) == taken + 1)
        await close(a, b)


async def test_a_full_lane_that_refused_nothing_is_not_reported() -> None:
    settings = replace(QUICK, bulk_queue_bytes=1 << 20, payload_max_bytes=64 << 20, silence_timeout_ms=600_000)
    a, b = Member(0, settings), Member(1, settings)
    async with Proxy(b.port) as proxy:
        await through(proxy, a, b)
        proxy.paused.add(Lane.BULK)
        assert a.transport.send(append(0, 1), bytes(50 << 20)), "one frame may go beyond the limit"
        assert a.transport.status()[0].lanes[Lane.BULK].queued_bytes > 1 << 20
        proxy.resume()
        await until(lambda: b.inbox)
        assert a.transport.send(append(0, 1), b"more")
        await until(lambda: len(b.inbox) == 2)
        assert a.rooms == []
        await close(a, b)


@pytest.mark.parametrize("lane", Lane)
async def test_every_new_connection_is_reported_once(lane: Lane) -> None:
    a, b = Member(0), Member(1)
    async with Proxy(b.port) as proxy:
        await through(proxy, a, b)
        for number in range(1, 4):
            await until(lambda n=number: a.connects.count((1, lane)) == n)  # type: ignore[misc]
            assert a.connected(1, lane), "it takes messages when that is told"
            proxy.cut()
        assert a.rooms == []
        await close(a, b)


async def test_room_is_reported_after_every_refusal() -> None:
    body = bytes(20_000)
    a, b = Member(0, replace(QUICK, bulk_queue_bytes=30_000)), Member(1)
    await group(a, b)
    sent = 0
    for _ in range(50):
        while a.transport.send(append(0, 1), body):
            sent += 1
        await a.room(1)
    await until(lambda: len(b.inbox) == sent)
    await close(a, b)


async def test_a_lost_peer_does_not_delay_the_others() -> None:
    a, b, c = Member(0), Member(1), Member(2)
    await group(a, b, c)
    await close(b)
    await until(lambda: not a.connected(1, Lane.CONTROL))
    for number in range(100):
        a.transport.send(heartbeat(0, 1, number))
        assert a.transport.send(heartbeat(0, 2, number))
    await until(lambda: len(c.inbox) == 100)
    await close(a, c)


# -- the network -------------------------------------------------------------------------------------------------------


async def test_a_cut_is_repaired_and_order_holds_across_it() -> None:
    a, b = Member(0), Member(1)
    async with Proxy(b.port) as proxy:
        await through(proxy, a, b)
        sent: list[int] = []
        for number in range(300):
            if a.transport.send(heartbeat(0, 1, number)):
                sent.append(number)
            if number % 50 == 25:
                proxy.cut()
                await until(lambda: not a.connected(1, Lane.CONTROL))
                await until(lambda: a.connected(1))
            await asyncio.sleep(0)
        last = sent[-1]
        await until(lambda: b.inbox and b.messages[-1].round == last)  # type: ignore[union-attr]
        arrived = [message.round for message in b.messages]  # type: ignore[union-attr]
        assert arrived == sorted(set(arrived)) and set(arrived) <= set(sent), "lost is allowed; twice or late is not"
        assert a.sent(1, Lane.CONTROL).connects == 7 and a.sent(1, Lane.CONTROL).failures == 6
        await close(a, b)


async def test_one_direction_may_be_lost_alone() -> None:
    """What we hear does not depend on being heard: each direction has its own connections."""
    a, b = Member(0), Member(1)
    async with Proxy(b.port) as proxy:
        await through(proxy, a, b)
        proxy.refuse = True
        proxy.cut()
        await until(lambda: not a.connected(1, Lane.CONTROL) and not a.connected(1, Lane.BULK))
        for number in range(10):
            assert b.transport.send(heartbeat(1, 0, number))
        await until(lambda: len(a.inbox) == 10)
        assert b.inbox == []
        proxy.refuse = False
        await until(lambda: a.connected(1))
        await close(a, b)


async def test_lost_bytes_are_noticed_and_the_lane_is_opened_again() -> None:
    """The welcome gets lost: the attempt ends by its own time limit, and the next one succeeds."""
    a, b = Member(0, replace(QUICK, handshake_timeout_ms=50)), Member(1)
    async with Proxy(b.port) as proxy:
        proxy.mute = True
        a.start()
        b.start()
        a.transport.set_peers({1: ("127.0.0.1", proxy.port)})
        await until(lambda: a.sent(1, Lane.BULK).failures >= 2)
        assert a.sent(1, Lane.BULK).last_error == "no answer to Hello within 50 ms"
        proxy.mute = False
        await until(lambda: a.connected(1))
        await close(a, b)


@pytest.mark.parametrize("lane", Lane)
async def test_a_hole_in_the_stream_is_noticed(lane: Lane) -> None:
    """Bytes that the network took and lost; nothing that was sent after them is read as if they had been there."""
    a, b = Member(0), Member(1)
    async with Proxy(b.port) as proxy:
        await through(proxy, a, b)
        dice = random.Random(9)
        sent = [heartbeat(0, 1, n) if lane is Lane.CONTROL else append(0, 1, n, n) for n in range(200)]
        for number, message in enumerate(sent):
            a.transport.send(message, dice.randbytes(3000) if lane is Lane.BULK else None)
            if number == 50:
                await until(lambda: len(b.inbox) == 51)
                proxy.spoil = lambda which, position, data: data.__delitem__(slice(0, 7)) if which is lane else None
            if number == 51:
                await until(lambda: b.received(0, lane).failures == 1 or not a.connected(1, lane))
                proxy.spoil = None
        await until(lambda: a.sent(1, lane).connects == 2 and a.connected(1))
        assert b.messages == sent[: len(b.messages)]
        a.transport.send(sent[0])
        await until(lambda: b.messages[-1] == sent[0])
        await close(a, b)


@pytest.mark.parametrize("lane", Lane)
@pytest.mark.parametrize("seed", range(6))
async def test_damage_on_the_way_ends_the_connection_and_is_never_delivered(lane: Lane, seed: int) -> None:
    dice = random.Random(seed)
    a, b = Member(0), Member(1)
    async with Proxy(b.port) as proxy:
        await through(proxy, a, b)

        def spoil(which: Lane, position: int, data: bytearray) -> None:
            if which is lane:
                data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
                proxy.spoil = None

        proxy.spoil = spoil
        good = [
            heartbeat(0, 1, number) if lane is Lane.CONTROL else append(0, 1, number, number) for number in range(5)
        ]
        for message in good:
            a.transport.send(message)
        await until(lambda: b.received(0, lane).failures == 1)
        assert "wrong CRC" in b.received(0, lane).last_error
        assert all(message in good for message in b.messages)
        await until(lambda: a.sent(1, lane).connects == 2 and a.connected(1))
        await close(a, b)


# -- rubbish -----------------------------------------------------------------------------------------------------------


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # a count, twice


async def rubbish(port: int, data: bytes) -> bytes:
    """Sends it and returns what came back until the other side closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_strangers_cannot_crash_leak_or_write_lines(caplog: pytest.LogCaptureFixture) -> None:
    """A fixed budget of 400 connections: rubbish at once, after Hello, in pieces of real frames, or nothing at all."""
    a, b = Member(0), Member(1)
    await group(a, b)
    dice = random.Random(11)
    real = [HELLO, encode_frame(22, 1, bytes(57)), encode_frame(20, 1, bytes(40), 1 << 20), encode_frame(99, 1, b"")]
    gc.collect()
    tasks, files = len(asyncio.all_tasks()), open_files()
    with caplog.at_level(logging.WARNING):
        for turn in range(400):
            sent = b"".join(dice.choices(real, k=dice.randrange(4))) + dice.randbytes(dice.choice([0, 1, 19, 20, 500]))
            data = bytearray(sent if turn % 3 else HELLO + sent)
            for _ in range(dice.randrange(3)):
                if data:
                    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
            await rubbish(b.port, bytes(data))
    await until(lambda: a.connected(1))
    b.inbox.clear()
    # A stranger in its name may just have taken its place, which it does not know yet.
    await until(lambda: b.inbox or (a.transport.send(heartbeat(0, 1, 5)) and False))
    await until(lambda: len(asyncio.all_tasks()) <= tasks and open_files() <= files)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) <= 6, lines
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert b.transport.refused_connections > 100
    await close(a, b)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n", "it sent a header with a wrong CRC, or of another protocol"),
        (bytes.fromhex("16030100f8010000f4030300") + bytes(40), "it sent a TLS handshake, but TLS is not enabled here"),
        (encode_frame(22, 1, bytes(57)), "it sent a frame of kind 22 before Hello"),
        (encode_frame(KIND_HELLO, 1, b"NOPE" + bytes(40)), "it sent a first frame of another protocol"),
        (encode_frame(KIND_HELLO, 1, bytes(5000)), "it sent a first frame of 5000 bytes"),
        (encode_frame(KIND_HELLO, 1, b"", 7), "it sent a first frame with a payload"),
        (b"", "the peer closed the connection"),
    ],
)
async def test_a_stranger_is_named_with_what_it_sent(data: bytes, words: str, caplog: pytest.LogCaptureFixture) -> None:
    b = Member(1)
    b.start()
    await rubbish(b.port, data)
    await until(lambda: b.transport.refused_connections == 1)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("127.0.0.1:") and words in line
    await close(b)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (encode_frame(99, 1, b""), "it sent a frame of unknown kind 99"),
        (encode_frame(22, 7, b""), "it sent a frame of kind 22 in the unknown version 7"),
        (encode_frame(22, 1, b"", 5), "it sent a frame of kind 22 with a payload, which it cannot have"),
        (encode_frame(20, 1, b"", (16 << 20) + 1), "it sent a payload of 16777217 bytes; 16777216 are allowed"),
        (encode_frame(22, 1, b"short"), "it sent an invalid Heartbeat: "),
        (HELLO, "it sent a frame of unknown kind 1"),
    ],
)
async def test_a_member_that_sends_what_is_unknown_is_named(
    frame: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    b = Member(1)
    b.start()
    answer = await rubbish(b.port, HELLO + frame)
    assert answer == b"" or answer[20:24] == b"TARP", "it was taken in first"
    await until(lambda: b.received(0, Lane.CONTROL).failures == 1)
    assert b.received(0, Lane.CONTROL).last_error.startswith(words)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("connection of n0 at 127.0.0.1:") and words in line
    await close(b)


async def test_who_says_nothing_has_a_time_limit() -> None:
    b = Member(1, replace(QUICK, handshake_timeout_ms=20))
    b.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
    async with asyncio.timeout(30):
        try:
            assert await reader.read() == b""
        except ConnectionError:
            pass  # a reset is an end, too
    await until(lambda: b.transport.refused_connections == 1)
    writer.close()
    await close(b)


async def test_strangers_that_say_nothing_keep_no_member_out() -> None:
    """They have half of the connections, and the oldest of them makes room."""
    a, b = Member(0), Member(1, replace(QUICK, connections_max=8, handshake_timeout_ms=600_000))
    strangers = []
    b.start()
    for _ in range(12):
        strangers.append(await asyncio.open_connection("127.0.0.1", b.port))
    await until(lambda: b.transport.refused_connections == 8)
    await group(a)
    a.transport.set_peers({1: ("127.0.0.1", b.port)})
    await until(lambda: a.connected(1))
    assert len(b.transport._listener._links) <= 8
    for _, writer in strangers:
        writer.close()
    await close(a, b)


async def test_a_caller_is_safe_from_the_called() -> None:
    """The other side of the handshake talks rubbish: the lane says so and tries again, no more often than it may."""
    dice = random.Random(3)
    turns = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turns
        turns += 1
        await reader.read(100)
        writer.write(dice.choice([b"HTTP/1.1 400 Bad Request\r\n\r\n", dice.randbytes(60), HELLO, b""]))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    a = Member(0)
    a.start()
    a.transport.set_peers({1: server.sockets[0].getsockname()[:2]})
    await until(lambda: a.sent(1, Lane.CONTROL).failures >= 30)
    assert not a.connected(1, Lane.CONTROL)
    assert a.sent(1, Lane.CONTROL).last_error
    await close(a)
    server.close()


async def test_a_peer_that_takes_us_in_and_throws_us_out_is_called_less_and_less_often() -> None:
    welcome = encode_frame(KIND_WELCOME, 1, Welcome(Identity("c", "g", 1), 1).encode())

    async def welcome_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(welcome)
        writer.close()

    server = await asyncio.start_server(welcome_and_close, "127.0.0.1", 0)
    a = Member(0, replace(QUICK, reconnect_max_ms=60_000))
    a.start()
    a.transport.set_peers({1: server.sockets[0].getsockname()[:2]})
    await until(lambda: a.sent(1, Lane.CONTROL).connects >= 6)
    assert a.transport._lanes[1, Lane.CONTROL]._backoff._next_s >= 0.032, "it began with 1 ms"
    await close(a)
    server.close()


async def test_connections_notice_a_cut_cable() -> None:
    """Nothing on this machine can cut one; what the system was told to do then can be looked at."""
    a, b = Member(0), Member(1)
    await group(a, b)
    called = next(iter(b.transport._listener._named.values())).transport
    calling = a.transport._lanes[1, Lane.BULK]._link
    assert called is not None and calling is not None and calling.transport is not None
    for transport in (called, calling.transport):
        raw = transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3000
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
    await close(a, b)


# -- small parts -------------------------------------------------------------------------------------------------------


def test_waits_double_to_a_bound_with_half_of_it_at_random() -> None:
    backoff = Backoff(0.05, 1.0, random.Random(1))
    bounds = [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    waits = [backoff.next_s() for _ in bounds]
    assert all(bound / 2 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
    assert len({wait / bound for wait, bound in zip(waits, bounds, strict=True)}) == len(bounds)
    backoff.reset()
    assert backoff.next_s() <= 0.05


def test_the_files_of_the_transport_import_no_other_part() -> None:
    root = Path(__file__).resolve().parents[2] / "replication" / "transport"
    assert not [path for path in root.glob("*.py") if "tallystick.node" in path.read_text()]
