"""The protocol with a slave, without a connection: positions, parts and reports in any pieces."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.node.broker.slaves.transfer import MOST_PART_BYTES, Part, Refusal, SlaveRefusedError, Transfer
from tallystick.store.engine.copies import Copies

SEGMENT = 1000


def copies(end: int, *, begin: int | None = None, sent: int = 0) -> Copies:
    """Of a log that ends at `end`, and ended at `begin` when it was opened."""
    made = Copies(begin=end if begin is None else begin, max_behind=1)
    made.moved(end)
    made.sent = max(made.sent, sent)
    return made


def transfer(log: Copies, *, min_pos: int = 0, part: int = 300) -> Transfer:
    return Transfer(log, lambda: min_pos, SEGMENT, part)


def report(pos: int) -> bytes:
    return struct.pack(">q", pos)


@pytest.mark.parametrize(
    ("end", "min_pos", "asked", "begins"),
    [
        (0, 0, 0, 0),
        (999, 0, 0, 0),
        (1000, 0, 0, 1000),
        (2709, 0, 0, 2000),
        (2709, 0, 1, 1),
        (2709, 0, 1234, 1234),
        (2709, 0, 2709, 2709),
        (2709, 1000, 1000, 1000),
        (2709, 2000, 0, 2000),
    ],
)
def test_the_first_position_decides_where_the_transfer_begins(end: int, min_pos: int, asked: int, begins: int) -> None:
    """As recorded from a master of RocketMQ 4.8.0: 0 gives the newest segment, any other position is continued."""
    one = transfer(copies(end), min_pos=min_pos)
    assert one.next_part() is None, "nothing is sent before the slave names its position"
    assert one.receive(report(asked))
    assert one.next_pos == begins and one.asked == asked


@pytest.mark.parametrize(
    ("log", "min_pos", "asked", "refusal"),
    [
        (copies(500), 0, 501, Refusal.AHEAD),
        (copies(500), 0, 2**63 - 1, Refusal.AHEAD),
        (copies(5000, begin=500), 0, 501, Refusal.AHEAD),
        (copies(500), 0, -1, Refusal.INVALID),
        (copies(500), 0, -(2**63), Refusal.INVALID),
        (copies(2500), 1000, 999, Refusal.DELETED),
        (copies(2500), 1000, 1, Refusal.DELETED),
    ],
)
def test_a_position_that_cannot_be_continued_is_refused(
    log: Copies, min_pos: int, asked: int, refusal: Refusal
) -> None:
    with pytest.raises(SlaveRefusedError) as raised:
        transfer(log, min_pos=min_pos).receive(report(asked))
    assert raised.value.refusal is refusal


@pytest.mark.parametrize(("min_pos", "asked"), [(0, 1), (1000, 1000)])
def test_a_copy_of_the_whole_log_begins_at_any_time(min_pos: int, asked: int) -> None:
    one = transfer(copies(5000, begin=0), min_pos=min_pos)
    one.receive(report(asked))
    assert one.next_pos == asked


def test_a_slave_that_was_sent_more_since_the_start_comes_back() -> None:
    log = copies(5000, begin=500)
    one = transfer(log)
    one.receive(report(400))
    while (part := one.next_part()) is not None:
        one.sent(part)
    again = transfer(log)
    again.receive(report(4321))
    assert again.next_pos == 4321


@pytest.mark.parametrize("lie", [-1, 301, 2**62])
def test_a_report_of_what_was_not_sent_is_refused(lie: int) -> None:
    one = transfer(copies(2000))
    one.receive(report(1))
    one.sent(Part(1, 299))
    one.receive(report(300))
    assert one.stored == 300
    with pytest.raises(SlaveRefusedError) as raised:
        one.receive(report(lie))
    assert raised.value.refusal is Refusal.INVALID and one.stored == 300


def test_what_retention_deletes_meanwhile_is_not_sent() -> None:
    begin = [0]
    one = Transfer(copies(3000), lambda: begin[0], SEGMENT, 300)
    one.receive(report(1))
    part = one.next_part()
    assert part == Part(1, 300)
    one.sent(part)
    begin[0] = 1000
    with pytest.raises(SlaveRefusedError) as raised:
        one.next_part()
    assert raised.value.refusal is Refusal.DELETED


def test_a_part_fits_into_the_buffer_of_rocketmqs_slave() -> None:
    one = Transfer(copies(64 << 20), lambda: 0, 64 << 20, 2**31 - 1)
    one.receive(report(1))
    part = one.next_part()
    assert part is not None and part.size == MOST_PART_BYTES == (4 << 20) - 12


@given(
    steps=st.lists(st.integers(0, 700), max_size=20),
    asked=st.integers(0, 3000),
    start=st.integers(0, 3000),
    part=st.integers(1, 1500),
    pieces=st.lists(st.integers(1, 20), min_size=1, max_size=50),
)
def test_parts_are_the_log_in_order_and_within_segments(
    steps: list[int], asked: int, start: int, part: int, pieces: list[int]
) -> None:
    """However the log grows and however the reports are cut, the slave gets each byte once and in order."""
    log = copies(start)
    one = transfer(log, part=part)
    stream = report(min(asked, start))
    reported = at = 0
    begun: int | None = None
    for step, piece in zip([*steps, 0, 0, 0], [*pieces, *([20] * 30)], strict=False):
        log.moved(log.sendable + step)
        chunk = stream[reported : reported + piece]
        one.receive(chunk)
        reported += len(chunk)
        if one.asked is None:
            continue
        if begun is None:
            begun = at = one.next_pos
        while (found := one.next_part()) is not None:
            assert found.pos == at and 0 < found.size <= part
            assert found.pos // SEGMENT == (found.pos + found.size - 1) // SEGMENT
            assert struct.unpack(">qi", found.header) == (found.pos, found.size)
            one.sent(found)
            at += found.size
            stream += report(at)
        assert at == log.sendable
        assert struct.unpack(">qi", one.heartbeat()) == (at, 0)
        assert one.stored <= at


@given(data=st.binary(max_size=64), pieces=st.lists(st.integers(1, 9), min_size=64, max_size=64))
def test_bytes_of_a_stranger_are_a_position_or_refused(data: bytes, pieces: list[int]) -> None:
    one = transfer(copies(500))
    for piece in pieces:
        chunk, data = data[:piece], data[piece:]
        try:
            one.receive(chunk)
        except SlaveRefusedError:
            return
        assert len(one._partial) < 8 and 0 <= one.stored <= one.next_pos <= 500
