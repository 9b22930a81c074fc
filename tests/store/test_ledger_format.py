"""dledger's layout: bytes that dledger 0.2.2 wrote, and what is no entry."""

import struct
from pathlib import Path

import pytest

from tallystick.store.formats.ledger_format import EntryHeader, IndexUnit, LedgerFormatError
from tallystick.store.formats.log_walk import StepKind, resync, walk
from tallystick.store.formats.record import Record
from tallystick.store.formats.segment_files import SegmentFiles, segment_name, segment_start

# Written by dledger 0.2.2: entry 4, which begins the second data file of 1024 bytes, and its index unit.
ENTRY = bytes.fromhex(
    "000000010000010c000000000000000400000000000000000000000000000400000000000000000000000000000000dc"
)
UNIT = bytes.fromhex("0000000100000000000004000000010c00000000000000040000000000000000")


def test_an_entry_header_and_its_unit() -> None:
    header = EntryHeader.decode(ENTRY)
    assert header == EntryHeader(1, 268, 4, 0, 1024, 0, 0, 0, 220)
    assert header.encode() == ENTRY
    assert IndexUnit.decode(UNIT) == IndexUnit.of(header)
    assert IndexUnit.of(header).encode() == UNIT


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (ENTRY[:40], "torn entry header"),
        (b"\0\0\0\2" + ENTRY[4:], "entry magic 2"),
        (ENTRY[:4] + b"\0\0\1\0" + ENTRY[8:], "entry size 256 with a body of 220 bytes"),
        (ENTRY[:-4] + b"\xff\xff\xff\xff", "with a body of -1 bytes"),
    ],
)
def test_what_is_no_entry(data: bytes, why: str) -> None:
    with pytest.raises(LedgerFormatError, match=why):
        EntryHeader.decode(data)


def test_what_is_no_unit() -> None:
    with pytest.raises(LedgerFormatError, match="torn index unit"):
        IndexUnit.decode(UNIT[:31])
    with pytest.raises(LedgerFormatError, match="magic 0"):
        IndexUnit.decode(bytes(32))


def entry(pos: int, index: int, body: bytes) -> bytes:
    return EntryHeader(1, 48 + len(body), index, 0, pos, 0, 0, 0, len(body)).encode() + body


def test_a_walk_over_records_empty_entries_and_fillers(tmp_path: Path) -> None:
    """An entry without a body has no record; a filler has its magic first."""
    record = Record("T", 0, b"body", pos=48 + 48)
    first = entry(0, 0, b"") + entry(48, 1, record.encode())
    first += struct.pack(">ii", -1, 512 - len(first))
    (tmp_path / segment_name(0)).write_bytes(first.ljust(512, b"\0"))
    second = entry(512, 2, record._replace(pos=560).encode())
    (tmp_path / segment_name(512)).write_bytes(second.ljust(512, b"\0"))
    with SegmentFiles(tmp_path) as log:
        steps = list(walk(log, entry_header_bytes=48))
    assert [step.kind.name for step in steps] == ["EMPTY", "RECORD", "FILLER", "RECORD", "END"]
    assert [step.pos for step in steps] == [0, 48, len(first) - 8, 512, 512 + len(second)]


def test_resync_finds_the_next_record_that_names_its_place(tmp_path: Path) -> None:
    record = Record("T", 0, b"body", pos=200)
    lies = record._replace(pos=77).encode()  # looks like a record, but says that it lies elsewhere
    data = (b"\1" * 20 + lies).ljust(200, b"\1") + record.encode()
    (tmp_path / segment_name(0)).write_bytes(data.ljust(512, b"\0"))
    with SegmentFiles(tmp_path) as log:
        assert next(walk(log)).kind is StepKind.DAMAGE
        found = resync(log, 0)
        assert found is not None and (found.kind, found.pos, found.record) == (StepKind.RECORD, 200, record)
        assert resync(log, 200) is None


def test_segments_are_found_by_looking(tmp_path: Path) -> None:
    for start in (1000, 2000, 4000):
        (tmp_path / segment_name(start)).write_bytes(bytes(1000))
    (tmp_path / segment_name(5000)).write_bytes(bytes(10))
    (tmp_path / "notes.txt").touch()
    with SegmentFiles(tmp_path) as files:
        assert (files.segment_bytes, files.starts, files.gaps) == (1000, [1000, 2000, 4000], [4000])
        assert {path.name: why for path, why in files.strange} == {
            segment_name(5000): "has 10 bytes instead of 1000",
            "notes.txt": "is no segment",
        }
        assert [files.start_of(pos) for pos in (999, 1000, 2999, 3000, 4999, 5000, -1)] == [
            None,
            1000,
            2000,
            None,
            4000,
            None,
            None,
        ]
        assert files.read(1990, 10) == bytes(10)
        assert files.read(1990, 11) is None, "a read never crosses segments"
        assert (files.first, files.end) == (1000, 5000)
    assert SegmentFiles(tmp_path / "nothing").starts == []
    assert segment_start("0000000000000000012x") is None
