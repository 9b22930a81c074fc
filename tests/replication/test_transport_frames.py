"""Frames: what a header says, what is refused, and that a payload does not change while a view of it exists."""

import random
import struct
import zlib
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.replication.transport.frames import (
    HEADER_BYTES,
    MESSAGE_MAX_BYTES,
    FrameError,
    FrameHeader,
    check_message,
    decode_header,
    encode_frame,
)
from tallystick.replication.transport.link import CalledLink
from tallystick.replication.transport.receive_buffer import ReceiveBuffer
from tallystick.replication.transport.settings import TransportSettings


def test_a_frame_is_a_header_and_the_message() -> None:
    frame = encode_frame(22, 1, b"abc", payload_bytes=5)
    assert frame.hex() == "0000000300000005" + "1601" + "0000" + "352441c2" + "63fc6abb" + b"abc".hex()
    assert decode_header(memoryview(frame), 0, 5) == FrameHeader(3, 5, 22, 1, 0x352441C2)


@pytest.mark.parametrize("bit", range(8 * HEADER_BYTES))
def test_every_flipped_bit_of_a_header_is_seen(bit: int) -> None:
    frame = bytearray(encode_frame(22, 1, b"abc", payload_bytes=5))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError, match="wrong CRC"):
        decode_header(memoryview(frame), 0, 1 << 30)


@pytest.mark.parametrize("bit", range(8 * 3))
def test_every_flipped_bit_of_a_message_is_seen(bit: int) -> None:
    header = decode_header(memoryview(encode_frame(22, 1, b"abc")), 0, 0)
    message = bytearray(b"abc")
    check_message(header, memoryview(message))
    message[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError, match="kind 22 with a wrong CRC"):
        check_message(header, memoryview(message))


def test_sizes_are_bounded() -> None:
    largest = encode_frame(22, 1, bytes(MESSAGE_MAX_BYTES), payload_bytes=100)
    assert decode_header(memoryview(largest), 0, 100).message_bytes == MESSAGE_MAX_BYTES
    with pytest.raises(FrameError, match="payload of 100 bytes; 99 are allowed"):
        decode_header(memoryview(largest), 0, 99)
    with pytest.raises(AssertionError):
        encode_frame(22, 1, bytes(MESSAGE_MAX_BYTES + 1))


def test_what_is_no_frame_of_ours_is_named() -> None:
    with pytest.raises(FrameError, match="TLS is not enabled"):
        decode_header(memoryview(bytes.fromhex("16030100f8010000f40303") + bytes(20)), 0, 0)
    with pytest.raises(FrameError, match="of another protocol"):
        decode_header(memoryview(b"GET / HTTP/1.1\r\nHost: x\r\n"), 0, 0)
    with pytest.raises(FrameError):
        decode_header(memoryview(bytes(HEADER_BYTES)), 0, 0)


# -- the buffer --------------------------------------------------------------------------------------------------------


class Reader:
    """Takes frames of the form (4 bytes length, body) out of a buffer that is fed in pieces."""

    def __init__(self) -> None:
        self.buffer = ReceiveBuffer()
        self.bodies: list[memoryview] = []

    def feed(self, data: bytes, piece: int) -> None:
        position = 0
        while position < len(data):
            room = self.buffer.room()
            assert len(room) > 0
            count = min(len(room), piece, len(data) - position)
            room[:count] = data[position : position + count]
            del room  # as a loop does before it says what came
            position += count
            self.buffer.received(count)
            self.parse()

    def parse(self) -> None:
        while (head := self.buffer.peek(4)) is not None:
            total = 4 + int.from_bytes(head, "big")
            frame = self.buffer.peek(total)
            if frame is None:
                self.buffer.expect(total)
                return
            self.buffer.take(total, lent=True)
            self.bodies.append(frame[4:])


def framed(bodies: list[bytes]) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


sizes = st.one_of(st.integers(0, 100), st.integers(0, 200_000), st.sampled_from([65_531, 65_532, 65_533, 131_072]))


@given(st.lists(sizes, max_size=12), st.integers(1, 100_000), st.integers(0, 2**32), st.integers(0, 3))
def test_frames_come_out_as_they_went_in_and_kept_ones_do_not_change(
    lengths: list[int], piece: int, seed: int, keep: int
) -> None:
    dice = random.Random(seed)
    bodies = [dice.randbytes(length) for length in lengths]
    reader = Reader()
    kept: list[tuple[memoryview, bytes]] = []
    stream, seen = framed(bodies), 0
    piece = max(piece, len(stream) // 2000)
    for begin in range(0, len(stream), piece):
        reader.feed(stream[begin : begin + piece], piece)
        for body in reader.bodies:
            assert body == bodies[seen]
            if keep and dice.randrange(keep) == 0:
                kept.append((body, bodies[seen]))
            seen += 1
        reader.bodies.clear()
        body = None  # the loop's own name is a look, too
    assert seen == len(bodies)
    assert all(view == was for view, was in kept)


def test_the_buffer_is_reused_without_views() -> None:
    reader = Reader()
    reader.feed(framed([bytes(1 << 20)]), 1 << 20)
    first = reader.buffer._bytes
    for _ in range(10):
        reader.bodies.clear()
        reader.feed(framed([bytes(1 << 20)]), 1 << 20)
    assert reader.buffer._bytes is first
    assert reader.buffer.capacity == (1 << 20) + 4


def test_a_slice_of_a_payload_is_a_look_too() -> None:
    reader = Reader()
    reader.feed(framed([b"kept" * 100]), 1000)
    part = reader.bodies.pop()[4:8]
    reader.feed(framed([b"other" * 100]), 1000)
    assert part == b"kept"


def test_the_rest_of_a_large_frame_is_read_in_its_place() -> None:
    """Nothing behind it is read with it: that would have to be moved."""
    buffer = ReceiveBuffer()
    head = buffer.room()
    assert len(head) == 64 << 10
    del head
    buffer.received(64 << 10)
    buffer.expect(1 << 20)
    assert len(buffer.room()) == (1 << 20) - (64 << 10)


@pytest.mark.parametrize("flags", [1, 0x8000])
def test_an_unknown_flag_is_refused(flags: int) -> None:
    """A later version may mean something by it that changes how the frame is read."""
    fields = struct.pack(">IIBBHI", 3, 0, 22, 1, flags, zlib.crc32(b"abc"))
    header = fields + struct.pack(">I", zlib.crc32(fields))
    with pytest.raises(FrameError, match="unknown flags"):
        decode_header(memoryview(header), 0, 0)


async def test_nothing_is_delivered_behind_the_frame_that_ended_a_link() -> None:
    """The receiver of a frame may end the link: later frames of the same chunk are not delivered then."""
    delivered: list[int] = []

    def deliver(link: CalledLink, header: FrameHeader, message: memoryview, payload: memoryview | None) -> None:
        delivered.append(message[0])
        link.fail("enough")

    link = CalledLink(
        TransportSettings(), judge=Mock(), check=lambda header: None, deliver=deliver, on_lost=lambda link: None
    )
    link._open = True
    chunk = encode_frame(22, 1, b"\1") + encode_frame(22, 1, b"\2")
    link.get_buffer(-1)[: len(chunk)] = chunk
    link.buffer_updated(len(chunk))
    assert (delivered, link.closed) == ([1], True)
