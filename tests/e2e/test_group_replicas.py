"""A byte that differs between two members is found, wherever it is; so is one that was turned over on purpose."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from lab.damage import flip_a_byte
from lab.ledger import Problems
from lab.replicas import check_replicas, difference, entries_of, sealed_segments, unit_of

SEGMENT_BYTES, BODY_BYTES = 1024, 100
ENTRY_BYTES = 48 + BODY_BYTES


def write_ledger(folder: Path, entries: int, first_segment: int = 0) -> Path:
    """Entries of one size in segments with fillers, and their index in files of 8 units."""
    (folder / "data").mkdir(parents=True)
    (folder / "index").mkdir()
    segments: dict[int, bytearray] = {}
    units, pos = bytearray(), 0
    for number in range(entries):
        start = pos // SEGMENT_BYTES * SEGMENT_BYTES
        if start + SEGMENT_BYTES - pos < ENTRY_BYTES + 8:
            segments[start][pos - start : pos - start + 8] = struct.pack(">ii", -1, start + SEGMENT_BYTES - pos)
            pos = start = start + SEGMENT_BYTES
        data = segments.setdefault(start, bytearray(SEGMENT_BYTES))
        header = struct.pack(">iiqqqiIIi", 1, ENTRY_BYTES, number, 1, pos, 0, 7, 7, BODY_BYTES)
        data[pos - start : pos - start + ENTRY_BYTES] = header + bytes([number % 256]) * BODY_BYTES
        units += struct.pack(">iqiqq", 1, pos, ENTRY_BYTES, number, 1)
        pos += ENTRY_BYTES
    segments[max(segments) + SEGMENT_BYTES] = bytearray(SEGMENT_BYTES)  # made in advance
    for start, data in segments.items():
        if start >= first_segment:
            (folder / "data" / f"{start:020}").write_bytes(data)
    (folder / "data" / "checkpoint").write_text("no segment")
    for start in range(0, len(units), 256):
        (folder / "index" / f"{start:020}").write_bytes(units[start : start + 256].ljust(256, b"\0"))
    return folder


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return write_ledger(tmp_path / "a", 20), write_ledger(tmp_path / "b", 20)


def problems_of(one: Path, other: Path, commit_index: int = 19) -> str:
    problems = Problems()
    check_replicas({"n0": one, "n1": other}, commit_index, problems)
    return "\n".join(problems.lines())


def spoil(folder: Path, pos: int) -> None:
    path = folder / "data" / f"{pos // SEGMENT_BYTES * SEGMENT_BYTES:020}"
    data = bytearray(path.read_bytes())
    data[pos % SEGMENT_BYTES] ^= 1
    path.write_bytes(data)


def test_equal_members_are_equal(pair: tuple[Path, Path]) -> None:
    problems = Problems()
    last = unit_of(pair[0], 19)
    assert last is not None and last.index == 19
    assert check_replicas({"n0": pair[0], "n1": pair[1]}, 19, problems) == last.pos + last.size
    assert not problems.count


@pytest.mark.parametrize("pos", [0, 1, 47, 48, 147, 148, 888, 890, 1023, 1024, 2000])
def test_every_byte_counts(pair: tuple[Path, Path], pos: int) -> None:
    spoil(pair[1], pos)
    assert f"n1: data differ from n0's at byte {pos}, committed up to " in problems_of(*pair)


def test_what_is_behind_the_commit_does_not_count(pair: tuple[Path, Path]) -> None:
    unit = unit_of(pair[0], 10)
    assert unit is not None
    spoil(pair[1], unit.pos)
    assert problems_of(*pair, commit_index=9) == ""
    assert "data differ" in problems_of(*pair, commit_index=10)


def test_a_shorter_log_differs(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    short = write_ledger(tmp_path / "c", 12)
    found = problems_of(pair[0], short)
    assert "n1: entry 19 is None" in found
    assert "n1: data differ from n0's at byte " in found
    assert "n1: the index differs from n0's at entry 12" in found


def test_a_missing_segment_differs(pair: tuple[Path, Path]) -> None:
    (pair[1] / "data" / f"{SEGMENT_BYTES:020}").unlink()
    assert difference(pair[0] / "data", pair[1] / "data", 3 * SEGMENT_BYTES)[0] == SEGMENT_BYTES


def test_logs_that_begin_later_are_compared_from_there(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    later = write_ledger(tmp_path / "c", 20, first_segment=SEGMENT_BYTES)
    spoil(pair[0], 10)
    assert difference(pair[0] / "data", later / "data", 2 * SEGMENT_BYTES) == (-1, SEGMENT_BYTES)


def test_an_index_that_differs_is_found(pair: tuple[Path, Path]) -> None:
    path = pair[1] / "index" / f"{256:020}"
    data = bytearray(path.read_bytes())
    data[3 * 32 + 31] ^= 1  # the term of entry 11
    path.write_bytes(data)
    assert problems_of(*pair) == "n1: the index differs from n0's at entry 11"


def test_a_flip_hits_a_body_in_a_sealed_segment_and_is_found(pair: tuple[Path, Path]) -> None:
    sealed = [start for start, _ in sealed_segments(pair[0])]
    assert sealed == [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES], "the one that is written and the one made ahead are not"
    for draw in range(50):
        path, at = flip_a_byte(pair[1], draw)
        assert int(path.name) in sealed
        assert any(offset + 48 <= at < offset + size for offset, size in entries_of(path))
        assert difference(pair[0] / "data", pair[1] / "data", 4 * SEGMENT_BYTES)[0] == int(path.name) + at
        flip_a_byte(pair[1], draw)  # the same one, back
        assert problems_of(*pair) == ""


def test_without_a_sealed_segment_there_is_nothing_to_flip(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no sealed segment"):
        flip_a_byte(write_ledger(tmp_path / "small", 3), 1)
