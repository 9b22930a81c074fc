"""The kernel's log in dledger's layout, beside its twin: entries made, taken from another log, and cut."""

from __future__ import annotations

import errno
import itertools
import json
import random
import struct
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from ledger_twin import TwinLedger

from tallystick.store._kernel import Door, Entries, EntryError, Log, check_entries, find_entry, walk_entries
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES, EntryHeader, EntryKind, IndexUnit, chain_crc
from tallystick.store.formats.message import Host
from tallystick.store.formats.record import Record

if TYPE_CHECKING:
    from tallystick.store._kernel import LedgerLog

HOST = Host("127.0.0.1", 10911)
PEER = Host("127.0.0.1", 40001)
NOW_MS = 1_700_000_000_000
SEGMENT_BYTES = 4096
INDEX_BYTES = 32 * 8


def make_log(folder: Path, door: Door | None = None, *, start: bool = True, **options: Any) -> LedgerLog:
    door = door or Door()
    for name in ("data", "index"):
        door.mkdir(folder / name)
    log = Log(
        door,
        str(folder / "data"),
        segment_bytes=options.pop("segment_bytes", SEGMENT_BYTES),
        max_message_bytes=2000,
        store_host=HOST.encode(),
        suffix=b"CLUSTER\x01c1\x02",
        region="r",
        index_folder=str(folder / "index"),
        index_segment_bytes=INDEX_BYTES,
        **options,
    )
    ledger = cast("LedgerLog", log)  # the kernel has one class for both layouts
    if start:
        ledger.start(0, 0)
        ledger.set_term(1)
    return ledger


def record(twin: TwinLedger, body: bytes, topic: str = "T", queue: int = 0, properties: str = "") -> Record:
    """The record that `put` makes, but for its place; takes the queue's next offset."""
    offset = twin.offsets.get((topic, queue), 0)
    twin.offsets[topic, queue] = offset + 1
    return Record(
        topic,
        queue,
        body,
        properties,
        queue_offset=offset,
        born_timestamp_ms=5,
        born_host=PEER,
        store_timestamp_ms=NOW_MS,
        store_host=HOST,
    )


def put(
    log: LedgerLog, body: bytes, queue: int = 0, *, kind: int = 0, topic: bytes = b"T"
) -> tuple[int, int, int, int]:
    return log.append(topic, queue, body, b"", now_ms=NOW_MS, born_timestamp=5, born_host=PEER.encode(), kind=kind)


def batch_of(bodies: list[bytes]) -> bytes:
    inside = b""
    for body in bodies:
        rest = struct.pack(">iiii", 0, 0, 0, len(body)) + body + b"\0\0"
        inside += struct.pack(">i", len(rest) + 4) + rest
    return inside


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def agrees(log: LedgerLog, folder: Path, twin: TwinLedger, *, failed_units: int = 0) -> None:
    """The files are the twin's bytes; what lies behind the end is zeros, but for units of entries that failed."""
    data = files(folder / "data")
    assert data.startswith(twin.data())
    assert not any(data[len(twin.data()) :])
    index = files(folder / "index") if twin.entries or any((folder / "index").iterdir()) else b""
    assert index.startswith(twin.index())
    assert not any(index[len(twin.index()) + 32 * failed_units :])
    assert (log.written_index, log.staged_index) == (twin.last_index, twin.last_index)
    assert log.written_point()[1:] == (twin.last_index, twin.last_term, twin.last_chain)


class Pair:
    """A log and its twin that are told the same."""

    def __init__(self, folder: Path, dice: random.Random, door: Door | None = None) -> None:
        self.folder, self.dice = folder, dice
        self.log = make_log(folder, door)
        self.twin = TwinLedger(SEGMENT_BYTES)
        self.term = 1

    def step(self) -> None:
        dice = self.dice
        match dice.randrange(8):
            case 0:
                self.term += dice.randrange(3)
                self.log.set_term(self.term)
            case 1:
                bodies = [dice.randbytes(dice.randrange(200)) for _ in range(dice.randrange(1, 6))]
                self.log.append_batch(
                    b"T", 1, batch_of(bodies), b"", now_ms=NOW_MS, born_timestamp=5, born_host=PEER.encode()
                )
                self.twin.append([record(self.twin, body, queue=1) for body in bodies], self.term)
            case 2:
                kind = dice.choice([EntryKind.NO_OP, EntryKind.MEMBERSHIP, EntryKind.METADATA])
                body = dice.randbytes(dice.randrange(100))
                put(self.log, body, kind=kind, topic=b"TALLY_SYS_GROUP_LOG")
                self.twin.append([record(self.twin, body, "TALLY_SYS_GROUP_LOG")], self.term, kind)
            case 3:
                self.log.write_out()
            case _:
                body = dice.randbytes(dice.choice([0, 1, 30, 300, 1500]))
                pos, size, offset, _ = put(self.log, body)
                self.twin.append([record(self.twin, body)], self.term)
                header, stored = self.twin.entries[-1]
                assert (pos, size) == (header.pos + ENTRY_HEADER_BYTES, len(stored))
                assert offset == self.twin.offsets["T", 0] - 1


# -- the leader's side -------------------------------------------------------------------------------------------------


def test_the_first_entry_by_hand(tmp_path: Path) -> None:
    """Every field of the layout, spelled out; the record inside names the place behind the header."""
    log = make_log(tmp_path)
    log.set_term(3)
    assert put(log, b"hello")[:3] == (48, 97, 0)
    log.write_out()
    data = (tmp_path / "data" / f"{0:020}").read_bytes()
    header = EntryHeader.decode(data)
    body = data[48 : header.size]
    assert header == EntryHeader(1, 145, 0, 3, 0, 0, header.chain_crc, zlib.crc32(body), 97)
    assert header.chain_crc == zlib.crc32(data[:36] + bytes(4) + data[40:48])
    inside = Record.decode(body)
    assert (inside.pos, inside.body, inside.queue_offset) == (48, b"hello", 0)
    unit = (tmp_path / "index" / f"{0:020}").read_bytes()[:32]
    assert IndexUnit.decode(unit) == IndexUnit(1, 0, 145, 0, 3)


@pytest.mark.parametrize("seed", range(40))
def test_random_appends_are_the_twins_bytes(tmp_path: Path, seed: int) -> None:
    pair = Pair(tmp_path, random.Random(seed))
    for _ in range(60):
        pair.step()
    pair.log.write_out()
    agrees(pair.log, tmp_path, pair.twin)


def test_a_filler_of_exactly_eight_bytes(tmp_path: Path) -> None:
    """An entry may leave eight bytes and no fewer."""
    for spare, second in ((8, SEGMENT_BYTES), (9, SEGMENT_BYTES), (7, None)):
        folder = tmp_path / str(spare)
        log = make_log(folder)
        for _ in range(3):
            put(log, bytes(1000 - 92 - 48))
        room = SEGMENT_BYTES - 3000 - 92 - 48 - spare
        pos = put(log, b"x" * room)[0]
        if second is None:
            assert pos == SEGMENT_BYTES + 48, "it does not fit: seven bytes are too few for the filler"
            continue
        assert pos == 3048
        assert put(log, b"next")[0] == SEGMENT_BYTES + 48
        log.write_out()
        data = files(folder / "data")
        assert struct.unpack_from(">ii", data, SEGMENT_BYTES - spare) == (-1, spare)
        walked = walk_entries(folder / "data", SEGMENT_BYTES, 0, 0, -1, 0)
        assert (walked.next_index, walked.end) == (5, log.written)


def test_a_send_that_cannot_be_written_leaves_no_entry(tmp_path: Path) -> None:
    """Index, term, chain and queue offset go on as if it had never been; its unit is written over."""
    door = Door()
    pair = Pair(tmp_path, random.Random(1), door)
    log, twin = pair.log, pair.twin
    put(log, b"first")
    twin.append([record(twin, b"first")], 1)
    log.write_out()
    for part in ("/data/", "/index/"):
        door.fail("write", part, errno.EIO, times=1)
        put(log, b"lost")
        put(log, b"lost too", queue=1)
        with pytest.raises(OSError):
            log.write_out()
        log.abandon(1, "no", NOW_MS)
        assert (log.staged_index, log.next_offset(b"T", 0), log.next_offset(b"T", 1)) == (0, 1, 0)
    assert put(log, b"second")[2] == 1
    twin.append([record(twin, b"second")], 1)
    log.write_out()
    log.sync_index()
    agrees(log, tmp_path, twin, failed_units=1)


def test_what_was_written_before_the_fault_stays(tmp_path: Path) -> None:
    """The first of two segments takes its entries: they count, the others do not."""
    door = Door()
    pair = Pair(tmp_path, random.Random(2), door)
    log, twin = pair.log, pair.twin
    for number in range(6):
        put(log, bytes([number]) * 1000)
        if number < 3:
            twin.append([record(twin, bytes([number]) * 1000)], 1)
    door.fail("write", f"data/{SEGMENT_BYTES:020}", errno.ENOSPC, times=1)
    with pytest.raises(OSError):
        log.write_out()
    log.abandon(1, "no", NOW_MS)
    assert log.written_point() == (SEGMENT_BYTES, 2, 1, twin.last_chain)
    assert log.next_offset(b"T", 0) == 3
    put(log, b"after")
    log.write_out()
    assert log.header(3)[0] == SEGMENT_BYTES


def test_terms_only_rise(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.set_term(5)
    put(log, b"x")
    with pytest.raises(ValueError, match="term 4 after term 5"):
        log.set_term(4)


def test_answers_wait_for_the_position_of_their_entry(tmp_path: Path) -> None:
    """The driver releases by committed position; the message id names the record, not the entry."""
    log = make_log(tmp_path)
    log.set_hot(True)
    log.set_topic(b"T", 4)
    connection = log.connect(PEER.encode())
    fields = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "5", "h": "0", "i": "", "j": "0"}
    header = {"code": 310, "extFields": fields | {"k": "false", "m": "false"}, "opaque": 7, "flag": 0}
    raw = json.dumps(header).encode()
    frame = struct.pack(">ii", 4 + len(raw) + 4, len(raw)) + raw + b"body"
    assert log.feed(connection, frame + frame, NOW_MS) == (2, None, None)
    log.write_out()
    pos, size, _ = log.unit(0)
    assert log.release(pos + size - 1, NOW_MS) == []
    ((_, answer),) = log.release(pos + size, NOW_MS)
    told = json.loads(answer[8:])["extFields"]
    assert told["msgId"].endswith(f"{48:016X}") and told["queueOffset"] == "0"
    assert log.waiting == 1
    assert len(log.release(log.written, NOW_MS)) == 1


def test_the_plain_layout_has_no_entries(tmp_path: Path) -> None:
    log: Any = Log(
        Door(), str(tmp_path), segment_bytes=4096, max_message_bytes=99, store_host=HOST.encode(), suffix=b"", region=""
    )
    with pytest.raises(ValueError, match="plain layout"):
        log.set_term(1)
    with pytest.raises(ValueError, match="plain layout"):
        _ = log.written_index
    with pytest.raises(ValueError, match="kind 2: this log has no entries"):
        put(log, b"", kind=2)


# -- reads -------------------------------------------------------------------------------------------------------------


def test_reads_by_index_and_by_position(tmp_path: Path) -> None:
    pair = Pair(tmp_path, random.Random(7))
    for _ in range(80):
        pair.step()
    pair.log.write_out()
    log, twin = pair.log, pair.twin
    for index, (header, _) in enumerate(twin.entries):
        assert log.unit(index) == (header.pos, header.size, header.term)
        assert log.header(index) == (
            header.pos,
            header.size,
            header.term,
            header.channel,
            header.chain_crc,
            header.body_crc,
        )
        end = header.pos + header.size
        assert [log.index_of(pos, 0) for pos in (end - 1, end, end + 1)] == [index - 1, index, index]
    assert log.unit(twin.last_index + 1) is None
    dice = random.Random(3)
    for _ in range(200):
        first = dice.randrange(len(twin.entries))
        limit = dice.randrange(9000)
        expected = first
        while expected < twin.last_index and len(twin.span(first, expected + 1)) <= limit:
            expected += 1
        assert log.extent(first, limit) == expected
        assert log.read_range(first, expected) == twin.span(first, expected)


def test_staged_entries_have_a_place_and_cannot_be_read(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    put(log, b"one")
    assert log.unit(0) == (0, 143, 1) and (log.staged_index, log.written_index) == (0, -1)
    assert log.header(0) is None
    with pytest.raises(EntryError):
        log.read_range(0, 0)


# -- the follower's side -----------------------------------------------------------------------------------------------


def leader(folder: Path, seed: int, steps: int = 60) -> Pair:
    pair = Pair(folder / "leader", random.Random(seed))
    for _ in range(steps):
        pair.step()
    pair.log.write_out()
    return pair


def checked(twin: TwinLedger, first: int, last: int, *, chain: bool = True) -> Entries:
    before = twin.entries[first - 1][0] if first else None
    return check_entries(
        twin.span(first, last),
        SEGMENT_BYTES,
        first - 1,
        before.term if before else -1,
        (before.chain_crc if before else 0) if chain else None,
    )


@pytest.mark.parametrize("seed", range(25))
def test_a_follower_gets_the_same_bytes(tmp_path: Path, seed: int) -> None:
    """Whatever the ranges' borders, also with entries that the follower has already."""
    pair = leader(tmp_path, seed)
    twin, dice = pair.twin, random.Random(seed)
    follower = make_log(tmp_path / "follower")
    while follower.staged_index < twin.last_index:
        have = follower.staged_index
        first = max(0, have + 1 - dice.randrange(3))
        last = min(twin.last_index, have + 1 + dice.randrange(12))
        entries = checked(twin, first, last, chain=dice.random() < 0.5)
        assert (entries.first_index, entries.last_index) == (first, last)
        assert (entries.first_pos, entries.data) == (twin.entries[first][0].pos, twin.span(first, last))
        assert [term for term, count in entries.runs for _ in range(count)] == [
            header.term for header, _ in twin.entries[first : last + 1]
        ]
        assert entries.special == [
            (header.log_index, header.channel, header.pos + 48, header.body_bytes)
            for header, _ in twin.entries[first : last + 1]
            if header.channel
        ]
        assert entries.record(last) == twin.entries[last][1]
        assert follower.append_entries(entries, have + 1) == last
        if dice.random() < 0.5:
            follower.write_out()
    follower.write_out()
    agrees(follower, tmp_path / "follower", twin)
    assert follower.last_store_ms == NOW_MS


def rejection(data: bytes, prev: EntryHeader | None, segment_bytes: int = SEGMENT_BYTES) -> EntryError:
    with pytest.raises(EntryError) as caught:
        if prev is None:
            check_entries(data, segment_bytes, -1, -1, 0)
        else:
            check_entries(data, segment_bytes, prev.log_index, prev.term, prev.chain_crc)
    return caught.value


def test_no_flipped_byte_passes(tmp_path: Path) -> None:
    """Every byte of a range that is log; those behind a filler's first eight are not."""
    pair = leader(tmp_path, 5, steps=20)
    twin = pair.twin
    data = twin.span(0, twin.last_index)
    dead = set()
    for (header, _), (after, _) in zip(twin.entries, twin.entries[1:], strict=False):
        dead |= set(range(header.pos + header.size + 8, after.pos))
    assert dead, "the range has a filler"
    for at in range(len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 1 << at % 8
        if at in dead:
            check_entries(wrong, SEGMENT_BYTES, -1, -1, 0)
            continue
        error = rejection(bytes(wrong), None)
        hit = max(index for index, (header, _) in enumerate(twin.entries) if header.pos <= at)
        assert error.index in (hit, hit + 1), at
        if at >= ENTRY_HEADER_BYTES:  # the first header itself says where the range lies
            assert error.pos in (twin.entries[hit][0].pos, twin.entries[hit][0].pos + twin.entries[hit][0].size)


def test_no_cut_range_passes(tmp_path: Path) -> None:
    pair = leader(tmp_path, 5, steps=20)
    twin = pair.twin
    ends = {header.pos + header.size for header, _ in twin.entries}
    data = twin.span(0, twin.last_index)
    for size in range(len(data)):
        if size in ends:
            assert check_entries(data[:size], SEGMENT_BYTES, -1, -1, 0).end_pos == size
        else:
            rejection(data[:size], None)


def test_what_a_range_is_refused_for(tmp_path: Path) -> None:
    def entry(index: int, term: int, pos: int, previous: int, record_pos: int | None = None, **change: int) -> bytes:
        body = Record("T", 0, b"body", pos=pos + 48 if record_pos is None else record_pos).encode()
        fields = {"magic": 1, "size": 48 + len(body), "log_index": index, "term": term, "pos": pos, "channel": 0}
        fields |= {"chain_crc": 0, "body_crc": zlib.crc32(body), "body_bytes": len(body)}
        header = EntryHeader(**(fields | change))
        chain = chain_crc(header.encode(), previous)
        return header._replace(chain_crc=change.get("chain_crc", chain)).encode() + body

    first = entry(0, 1, 0, 0)
    chain = EntryHeader.decode(first).chain_crc
    at = len(first)
    assert check_entries(first + entry(1, 1, at, chain), SEGMENT_BYTES, -1, -1, 0).last_index == 1
    for second, why in [
        (entry(2, 1, at, chain), "index does not follow"),
        (entry(1, 0, at, chain), "term below the one before"),
        (entry(1, 1, at + 1, chain), "entry lies elsewhere"),
        (entry(1, 1, at, chain + 1), "chain CRC differs"),
        (entry(1, 1, at, chain, record_pos=at), "bad physical offset"),
        (entry(1, 1, at, chain, magic=2), "bad entry magic"),
        (entry(1, 1, at, chain, size=4096), "bad entry size"),
        (entry(1, 1, at, chain, body_crc=1), "body CRC differs"),
        (entry(1, 1, at, chain, chain_crc=0), "no CRC behind an entry that has one"),
        (entry(1, 1, at, chain, chain_crc=0, body_crc=0), "no CRC behind an entry that has one"),
        (struct.pack(">ii", -1, 7), "bad filler"),
        (b"", None),
    ]:
        if why is not None:
            error = rejection(first + second, None)
            assert (error.index, error.pos, error.reason) == (1, at, why)
    with pytest.raises(EntryError, match="entry 5 at byte 0 of the log: index does not follow"):
        check_entries(first, SEGMENT_BYTES, 4, 1)
    with pytest.raises(EntryError, match="term below"):
        check_entries(first, SEGMENT_BYTES, -1, 2)


def test_entries_without_crcs_are_taken_until_one_has_them(tmp_path: Path) -> None:
    """RocketMQ's log continues as ours: its entries have no CRC, and the chain begins behind them."""
    twin = TwinLedger(SEGMENT_BYTES)
    for number in range(4):
        twin.append([record(twin, bytes([number]))], 0, crc=False)
    follower = make_log(tmp_path)
    assert follower.append_entries(checked(twin, 0, 3), 0) == 3
    put(follower, b"ours")
    twin.append([record(twin, b"ours")], 1)
    last = twin.entries[-1]
    put_offset = Record.decode(last[1])._replace(queue_offset=0, pos=last[0].pos + 48).encode()
    follower.write_out()
    assert files(tmp_path / "data")[last[0].pos + 48 :].startswith(put_offset)
    assert follower.header(4)[4] != 0
    wrong = bytearray(twin.span(0, 3))
    wrong[48 + 88] ^= 1  # the first body's only byte
    assert rejection(bytes(wrong), None).reason == "body CRC differs"


def test_entries_that_do_not_follow_are_not_staged(tmp_path: Path) -> None:
    """S13: another log with the same indexes and terms has another chain."""
    mine, other = TwinLedger(SEGMENT_BYTES), TwinLedger(SEGMENT_BYTES)
    for number in range(4):
        mine.append([record(mine, b"m%d" % number)], 1)
        other.append([record(other, b"o%d" % number)], 1)
    log = make_log(tmp_path)
    log.append_entries(checked(mine, 0, 1), 0)
    with pytest.raises(EntryError, match=r"entry 2 .*chain CRC differs"):
        log.append_entries(checked(other, 2, 3), 2)
    with pytest.raises(EntryError, match=r"entry 2 .*chain CRC differs"):
        log.append_entries(checked(other, 0, 3), 2)
    for first_index in (1, 3):
        with pytest.raises(ValueError, match="does not follow 1"):
            log.append_entries(checked(mine, 1, 3), first_index)
    with pytest.raises(ValueError, match="does not follow 1"):
        log.append_entries(checked(mine, 3, 3), 2)
    assert log.append_entries(checked(mine, 2, 3), 2) == 3


def test_an_entry_that_would_leave_a_hole_is_refused(tmp_path: Path) -> None:
    twin = TwinLedger(SEGMENT_BYTES)
    twin.append([record(twin, b"x" * 1500)], 1)
    gap = TwinLedger(SEGMENT_BYTES)
    gap.append([record(gap, b"x" * 1500)], 1)
    header, body = gap.entries[0]
    gap.entries[0] = header._replace(size=header.size + 64), body + bytes(64)  # only to place the next one further on
    gap.append([record(gap, b"y")], 1)
    second = EntryHeader.decode(gap.entries[1][0].encode())
    data = second._replace(chain_crc=chain_crc(second.encode(), twin.last_chain)).encode() + gap.entries[1][1]
    log = make_log(tmp_path)
    log.append_entries(checked(twin, 0, 0), 0)
    entries = check_entries(data, SEGMENT_BYTES, 0, 1, twin.last_chain)
    with pytest.raises(EntryError, match="does not lie where this log ends"):
        log.append_entries(entries, 1)


# -- cutting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_a_cut_log_is_as_if_the_rest_had_never_been(tmp_path: Path, seed: int) -> None:
    """Also over segment ends; and what is appended then is the twin's again."""
    pair = leader(tmp_path, seed)
    dice, log, twin = random.Random(seed), pair.log, pair.twin
    log.sync()
    for _ in range(4):
        keep = dice.randrange(-1, twin.last_index + 1)
        twin.cut(keep)
        log.cut(twin.end, keep, twin.last_term, twin.last_chain)
        assert log.flushed <= log.written == twin.end
        agrees(log, tmp_path / "leader", twin)
        assert log.flushed_point() == (twin.end, keep, twin.last_term, twin.last_chain)
        for topic, queue in list(twin.offsets):
            twin.offsets[topic, queue] = 0
        log.reset_offsets()
        for _ in range(dice.randrange(30)):
            pair.step()
        log.write_out()
        agrees(log, tmp_path / "leader", twin)
        log.sync()


def test_a_cut_asks_that_all_is_written(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    put(log, b"one")
    with pytest.raises(ValueError, match="cannot be cut"):
        log.cut(0, -1, -1, 0)


def test_a_cut_waits_for_the_sync_that_runs(tmp_path: Path) -> None:
    """Otherwise the sync, when the first segment is done, reports bytes as flushed that the second no longer has."""
    door = Door()
    log = make_log(tmp_path, door, segment_bytes=1 << 24)
    bodies = batch_of([bytes(1500)])
    for _ in range(6):
        while log.staged < (1 << 24) + 100_000:
            log.append_batch(b"T", 0, bodies, b"", now_ms=NOW_MS, born_timestamp=5, born_host=PEER.encode())
        log.write_out()
        keep = log.index_of((1 << 24) + 5000, 0)
        pos, size, term, _, chain, _ = log.header(keep)
        before = door.counts()["sync"]
        syncing = threading.Thread(target=log.sync)
        syncing.start()
        while door.counts()["sync"] == before:
            pass  # until it is in the first segment's sync, which takes the disk a while
        log.cut(pos + size, keep, term, chain)
        syncing.join()
        assert log.flushed <= log.written == pos + size
        assert log.flushed_index <= log.written_index == keep
        pos, size, term, _, chain, _ = log.header(0)
        log.cut(pos + size, 0, term, chain)


def test_a_filler_without_an_entry_is_cut_away(tmp_path: Path) -> None:
    """A leader's write failed behind the filler; the next leader's entry fits in front of it."""
    door = Door()
    pair = Pair(tmp_path, random.Random(2), door)
    for number in range(4):
        put(pair.log, bytes([number]) * 1000)
        if number < 3:
            pair.twin.append([record(pair.twin, bytes([number]) * 1000)], 1)
    door.fail("write", f"data/{SEGMENT_BYTES:020}", errno.ENOSPC, times=1)
    with pytest.raises(OSError):
        pair.log.write_out()
    pair.log.abandon(1, "no", NOW_MS)
    pair.twin.append([record(pair.twin, b"short")], 2)
    entries = checked(pair.twin, 3, 3)
    with pytest.raises(EntryError, match="does not lie where this log ends"):
        pair.log.append_entries(entries, 3)
    before = pair.twin.entries[2][0]
    pair.log.cut(before.pos + before.size, 2, before.term, before.chain_crc)
    pair.log.append_entries(entries, 3)
    pair.log.write_out()
    agrees(pair.log, tmp_path, pair.twin)


def test_offsets_come_from_the_log(tmp_path: Path) -> None:
    """B3: a new leader's counters are what all of its log says, also what is not committed."""
    pair = leader(tmp_path, 11)
    log, twin = pair.log, pair.twin
    expected = {key: log.next_offset(key[0].encode(), key[1]) for key in twin.offsets}
    log.reset_offsets()
    assert log.next_offset(b"T", 0) == 0
    log.take_offsets(0)
    assert {key: log.next_offset(key[0].encode(), key[1]) for key in twin.offsets} == expected == twin.offsets


# -- what a start reads ------------------------------------------------------------------------------------------------


def test_a_walk_gives_units_runs_and_the_end(tmp_path: Path) -> None:
    pair = leader(tmp_path, 3)
    twin, data = pair.twin, tmp_path / "leader" / "data"
    units, runs, pos, index, term, chain = b"", [], 0, 0, -1, 0
    while True:
        walked = walk_entries(data, SEGMENT_BYTES, pos, index, term, chain, max_entries=7)
        units += walked.units
        runs += walked.runs
        pos, index, term, chain = walked.pos, walked.next_index, walked.last_term, walked.last_chain
        if walked.done:
            break
    assert (units, index, term, chain) == (twin.index(), len(twin.entries), twin.last_term, twin.last_chain)
    assert (walked.end, walked.stopped) == (twin.end, "unwritten")
    expected = [(header.log_index, header.term) for header, _ in twin.entries]
    firsts = [expected[0]] + [b for a, b in itertools.pairwise(expected) if a[1] != b[1]]
    assert [run for i, run in enumerate(runs) if i == 0 or runs[i - 1][1] != run[1]] == firsts


def test_a_walk_stops_at_damage_and_what_is_behind_is_found(tmp_path: Path) -> None:
    pair = leader(tmp_path, 3)
    twin, folder = pair.twin, tmp_path / "leader" / "data"
    for hit in range(0, twin.last_index, 5):
        header, _ = twin.entries[hit]
        at = header.pos + 70
        path = folder / f"{at - at % SEGMENT_BYTES:020}"
        data = bytearray(path.read_bytes())
        data[at % SEGMENT_BYTES] ^= 4
        path.write_bytes(data)
        walked = walk_entries(folder, SEGMENT_BYTES, 0, 0, -1, 0)
        assert (walked.next_index, walked.pos, walked.stopped) == (hit, header.pos, "body CRC differs")
        assert find_entry(folder, SEGMENT_BYTES, header.pos, hit, 1 << 20) == (
            twin.entries[hit + 1][0].pos,
            hit + 1,
        )
        data[at % SEGMENT_BYTES] ^= 4
        path.write_bytes(data)
    assert find_entry(folder, SEGMENT_BYTES, twin.end, 0, 1 << 20) is None
    assert find_entry(folder, SEGMENT_BYTES, 0, twin.last_index + 1, 1 << 20) is None


# -- what is durable, and what continues after a refusal ---------------------------------------------------------------


def test_a_refused_term_changes_nothing(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.set_term(5)
    with pytest.raises(ValueError, match="term 4 after term 5"):
        log.set_term(4)
    put(log, b"x")
    log.write_out()
    assert log.written_point()[2] == 5


def test_a_cut_is_durable_when_it_returns(tmp_path: Path) -> None:
    door = Door(record=True)
    log = make_log(tmp_path, door)
    for number in range(9):
        put(log, bytes([number]) * 1000)
    log.write_out()
    log.sync()
    log.sync_index()
    pos, size, term, _, chain, _ = log.header(1)
    log.cut(pos + size, 1, term, chain)
    door.crash(1, 0.0)
    assert not any(files(tmp_path / "data")[pos + size :])


@pytest.mark.parametrize("seed", range(10))
def test_a_cut_that_power_ended_leaves_no_hole(tmp_path: Path, seed: int) -> None:
    """Segments behind the cut are made new from the last one on: what is left of them follows on sound entries."""
    door = Door(record=True)
    log = make_log(tmp_path, door)
    for number in range(12):
        put(log, bytes([number]) * 1000)
    log.write_out()
    log.sync()
    pos, size, term, _, chain, _ = log.header(1)
    door.fail("create", "data/", errno.EIO, after=seed % 3)
    with pytest.raises(OSError):
        log.cut(pos + size, 1, term, chain)
    door.heal()
    door.crash(seed, 0.0)
    left = sorted((tmp_path / "data").iterdir())
    behind = [path for number, path in enumerate(left) if int(path.name) != SEGMENT_BYTES * number]
    assert not any(any(path.read_bytes()) for path in behind), "entries behind a segment that is missing"
    assert walk_entries(tmp_path / "data", SEGMENT_BYTES, 0, 0, -1, 0).next_index >= 2


def test_a_cut_leaves_earlier_bytes_to_the_next_sync(tmp_path: Path) -> None:
    door = Door(record=True)
    log = make_log(tmp_path, door)
    for number in range(9):
        put(log, bytes([number]) * 1000)
    log.write_out()
    pos, size, term, _, chain, _ = log.header(4)
    log.cut(pos + size, 4, term, chain)
    log.sync()
    door.crash(1, 0.0)
    assert walk_entries(tmp_path / "data", SEGMENT_BYTES, 0, 0, -1, 0).next_index == 5


def test_bytes_of_a_peer_are_durable_when_they_are_in_their_place(tmp_path: Path) -> None:
    door = Door(record=True)
    log = make_log(tmp_path, door)
    put(log, b"x" * 1000)
    log.write_out()
    log.sync()
    sound = files(tmp_path / "data")[:1000]
    door.write(tmp_path / "data" / f"{0:020}", 500, b"damage")
    door.sync(tmp_path / "data" / f"{0:020}")
    log.rewrite(0, sound)
    door.crash(1, 0.0)
    assert files(tmp_path / "data")[:1000] == sound


def test_an_index_whose_sync_failed_is_synced_again(tmp_path: Path) -> None:
    door = Door()
    log = make_log(tmp_path, door)
    for _ in range(10):  # units in two files
        put(log, b"x")
    log.write_out()
    for op in ("sync", "sync_dir"):
        door.fail(op, "index", errno.EIO, times=1)
        with pytest.raises(OSError):
            log.sync_index()
    before = door.counts()
    log.sync_index()
    after = door.counts()
    assert (after["sync"] - before["sync"], after["sync_dir"] - before["sync_dir"]) == (2, 1)


def test_a_torn_end_without_a_chain_is_the_logs_end(tmp_path: Path) -> None:
    """Of dledger's entries no CRC covers topic and properties: zeros there, and nothing behind, are a torn write."""
    twin = TwinLedger(SEGMENT_BYTES)
    for number in range(4):
        twin.append([record(twin, bytes([number]) * 20, properties="A\x01b\x02")], 0, crc=False)
    (tmp_path / "data").mkdir()
    data = bytearray(twin.data())
    data[twin.end - 2 : twin.end] = b"\0\0"
    (tmp_path / "data" / f"{0:020}").write_bytes(data)
    walked = walk_entries(tmp_path / "data", SEGMENT_BYTES, 0, 0, -1, None)
    assert (walked.next_index, walked.stopped) == (3, "goes beyond the end")
    data[twin.end : twin.end + 1] = b"\1"  # something stands behind: it was written, and reads so
    (tmp_path / "data" / f"{0:020}").write_bytes(data)
    assert walk_entries(tmp_path / "data", SEGMENT_BYTES, 0, 0, -1, None).next_index == 4


def test_a_unit_of_another_entry_is_not_believed(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for _ in range(4):
        put(log, b"x")
    log.write_out()
    file = tmp_path / "index" / f"{0:020}"
    units = file.read_bytes()
    file.write_bytes(units[:32] + units[64:96] + units[64:])
    log.forget_files()
    assert log.unit(1) is None and log.header(1) is None
    assert log.unit(2) is not None
    with pytest.raises(EntryError, match="the index does not have it"):
        log.read_range(1, 2)
