"""What a slave makes of the bytes of its master: any chunks, any lie, and a model of the log that results."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocketmq_master import LogMaker

from tallystick.node.broker.copying.protocol import (
    MOST_PART_BYTES,
    Comparison,
    CopyError,
    CopyProblem,
    Parts,
    Records,
)
from tallystick.store._kernel import Door, Log
from tallystick.store.formats.message import Host

SEGMENT = 1 << 14


def framed(log: bytes, sizes: list[int], begin: int) -> bytes:
    """The log from `begin` on in parts of these sizes, with heartbeats for 0."""
    out, pos, n = b"", begin, 0
    while pos < len(log):
        size = min(sizes[n % len(sizes)], len(log) - pos, SEGMENT - pos % SEGMENT)
        out += struct.pack(">qi", pos, size) + log[pos : pos + size]
        pos, n = pos + size, n + 1
        if n > len(sizes) and not any(sizes):
            break
    return out


def own_log(folder: Path) -> Log:
    host = Host("127.0.0.1", 1).encode()
    log = Log(
        Door(), str(folder), segment_bytes=SEGMENT, max_message_bytes=1 << 20, store_host=host, suffix=b"",
        region="R", trace_on=False,
    )  # fmt: skip
    log.start(0, 0)
    return log


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A log of several segments."""
    return LogMaker(tmp_path_factory.mktemp("made"), SEGMENT).add(150)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=6).filter(any),
    chunks=st.lists(st.integers(1, 3000), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 30_000), max_size=6),
)
def test_the_log_is_the_masters_up_to_a_whole_record_whatever_arrives_together(
    tmp_path_factory: pytest.TempPathFactory, made: bytes, sizes: list[int], chunks: list[int], cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("own")
    log, starts = own_log(folder), record_starts(made)
    for cut in [*cuts, 1 << 62]:
        end = log.staged
        parts = Parts(end or 1, SEGMENT)
        records = Records(log.append_copied, lambda: log.staged)
        if end == 0:
            records.take(b"\0")
        stream = framed(made, sizes, end or 1)[:cut]
        at, n = 0, 0
        while at < len(stream):
            chunk = stream[at : at + chunks[n % len(chunks)]]
            records.take(parts.receive(chunk))
            at, n = at + len(chunk), n + 1
        log.write_out()
        assert log.staged in starts
        assert max(start for start in starts if start <= parts.pos) == log.staged
    assert log.written == len(made)
    copied = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    assert copied[: len(made)] == made


def record_starts(log: bytes) -> set[int]:
    """The positions between two records, by their sizes alone."""
    found, pos = {0}, 0
    while pos < len(log):
        pos += int.from_bytes(log[pos : pos + 4])
        found.add(pos)
    return found


@pytest.mark.parametrize(
    ("header", "word"),
    [
        ((101, 10), "101"),
        ((99, 10), "99"),
        ((-1, 10), "-1"),
        ((100, -1), "-1 bytes"),
        ((100, MOST_PART_BYTES + 1), "part of"),
        ((100, SEGMENT - 99), "beyond the end of its segment"),
        ((101, 0), "101"),
    ],
)
def test_a_part_that_does_not_continue_the_log_is_refused(header: tuple[int, int], word: str) -> None:
    parts = Parts(100, SEGMENT)
    with pytest.raises(CopyError, match=word) as caught:
        parts.receive(struct.pack(">qi", *header))
    assert caught.value.problem is CopyProblem.WRONG_PART
    assert parts.pos == 100


def test_a_part_may_end_where_its_segment_ends() -> None:
    parts = Parts(100, SEGMENT)
    assert len(parts.receive(struct.pack(">qi", 100, SEGMENT - 100) + bytes(SEGMENT - 100))) == SEGMENT - 100
    assert parts.receive(struct.pack(">qi", SEGMENT, 0)) == b""


@settings(deadline=None)
@given(st.integers(0, 199), st.integers(0, 200), st.integers(0, 199), st.integers(1, 50), st.integers(1, 300))
def test_every_differing_byte_of_the_compared_range_is_found(
    begin: int, end: int, at: int, step: int, size: int
) -> None:
    own = bytes(n % 256 for n in range(200))
    theirs = bytearray(own + b"behind")
    theirs[at] ^= 1
    comparison = Comparison(min(begin, end), end, lambda pos, count: own[pos : pos + min(count, size)])
    pos, rest = comparison.pos, b""
    try:
        while pos < len(theirs):
            rest += comparison.take(bytes(theirs[pos : pos + step]))
            pos += step
    except CopyError as error:
        assert error.problem is CopyProblem.DIVERGED and f"differs from the master's at {at}:" in str(error)
        assert begin <= at < end
    else:
        assert not min(begin, end) <= at < end
        assert rest == bytes(theirs[end if begin < end else min(begin, end) :]) and comparison.is_done


def test_a_log_that_cannot_be_read_is_not_compared() -> None:
    comparison = Comparison(0, 10, lambda pos, size: b"")
    with pytest.raises(OSError, match="no byte at 0"):
        comparison.take(b"abc")


def flawed(log: bytes, place: str) -> tuple[bytes, str]:
    """The first records of a log with one fault, and the word for it."""
    data = bytearray(log[:2000])
    second = int.from_bytes(data[:4])
    if place == "crc":
        data[second + 8] ^= 1
        return bytes(data), "body CRC differs"
    if place == "magic":
        data[second + 4] ^= 1
        return bytes(data), "bad magic"
    if place == "position":
        data[second + 35] ^= 1
        return bytes(data), "bad physical offset"
    if place == "small":
        data[second : second + 4] = (90).to_bytes(4)
        return bytes(data), "bad size"
    if place == "large":
        data[second : second + 4] = SEGMENT.to_bytes(4)
        return bytes(data), "bad size"
    if place == "negative":
        data[second : second + 4] = (-5).to_bytes(4, signed=True)
        return bytes(data), "bad size"
    if place == "topic":
        at = data.index(b"\x01T", second)
        data[at + 1] = ord("/")
        return bytes(data), "bad topic name"
    if place == "filler":
        data[second + 4 : second + 8] = bytes.fromhex("CBD43194")
        return bytes(data), "bad size"
    data[second : second + 8] = bytes(8)
    return bytes(data), "unwritten"


@pytest.mark.parametrize(
    "place", ["crc", "magic", "position", "small", "large", "negative", "topic", "filler", "unwritten"]
)
def test_no_byte_of_a_record_that_is_not_sound_is_staged(tmp_path: Path, made: bytes, place: str) -> None:
    log = own_log(tmp_path)
    data, word = flawed(made, place)
    records = Records(log.append_copied, lambda: log.staged)
    with pytest.raises(CopyError, match=word) as caught:
        records.take(data)
    assert caught.value.problem is CopyProblem.BAD_RECORD
    assert log.staged == int.from_bytes(made[:4])
    assert f"sent for {log.staged} " in str(caught.value)


def test_a_record_that_is_too_large_for_a_frame_is_refused_before_it_is_gathered(tmp_path: Path) -> None:
    host = Host("127.0.0.1", 1).encode()
    log = Log(
        Door(), str(tmp_path), segment_bytes=1 << 30, max_message_bytes=1 << 20, store_host=host, suffix=b"",
        region="R", trace_on=False,
    )  # fmt: skip
    log.start(0, 0)
    head = (18 << 20).to_bytes(4) + bytes.fromhex("DAA320A7")
    assert log.append_copied(head) == (0, 8, "bad size")
    assert log.append_copied((16 << 20).to_bytes(4) + bytes.fromhex("DAA320A7")) == (0, 16 << 20, None)
