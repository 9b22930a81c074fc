"""Whether the members of a group have the same log, byte for byte, up to where it is committed.

Read from the files alone, with nothing of the product: an index unit of 32 bytes says where an entry begins and how
long it is (magic int, pos long, size int, index long, term long; dledger 0.2.2), a segment's name where it begins.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from lab.ledger import Problems

_UNIT = struct.Struct(">iqiqq")
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Unit:
    """Where an entry lies. Positions in bytes."""

    pos: int
    size: int
    index: int
    term: int


class Files:
    """One queue of files, as one run of bytes; each is named by its first position."""

    def __init__(self, folder: Path) -> None:
        found = [path for path in folder.iterdir() if path.name.isdecimal() and len(path.name) == 20]
        self._files = {int(path.name): path for path in sorted(found)}

    @property
    def first(self) -> int:
        return min(self._files, default=0)

    def segments(self) -> list[tuple[int, Path]]:
        """(first position, file), in order."""
        return sorted(self._files.items())

    def read(self, begin: int, count: int) -> bytes:
        """Bytes from `begin` on, of one file, at most `count`; none where no file has it."""
        start = max((start for start in self._files if start <= begin), default=None)
        if start is None:
            return b""
        with self._files[start].open("rb") as file:
            file.seek(begin - start)
            return file.read(count)


def unit_of(ledger: Path, index: int) -> Unit | None:
    """Of this entry; None: the index has none."""
    data = Files(ledger / "index").read(index * _UNIT.size, _UNIT.size)
    if len(data) < _UNIT.size:
        return None
    magic, pos, size, found, term = _UNIT.unpack(data)
    return Unit(pos, size, found, term) if magic == 1 and found == index else None


def difference(left: Path, right: Path, end_pos: int) -> tuple[int, int]:
    """(first byte of the logs in these folders that differs before `end_pos`, bytes compared); (-1, ...): none does.

    A byte that one of them lacks differs. What only one of them still has from the log's begin is not compared.
    """
    ours, theirs = Files(left), Files(right)
    begin = at = max(ours.first, theirs.first)
    while at < end_pos:
        count = min(_PIECE_BYTES, end_pos - at)
        a, b = ours.read(at, count), theirs.read(at, count)
        same = min(len(a), len(b))
        if a[:same] != b[:same] or not same:
            return at + next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), same), at - begin
        at += same
    return -1, at - begin


def check_replicas(ledgers: dict[str, Path], commit_index: int, problems: Problems) -> int:
    """Data and index of all members (`ledgers`: by name) up to this entry; how many bytes of data were compared."""
    names = list(ledgers)
    first = ledgers[names[0]]
    last = unit_of(first, commit_index)
    if last is None:
        problems.add(f"{names[0]}: the index has no entry {commit_index}, which is committed")
        return 0
    compared = 0
    for name in names[1:]:
        if (unit := unit_of(ledgers[name], commit_index)) != last:
            problems.add(f"{name}: entry {commit_index} is {unit}, at {names[0]} {last}")
        at, count = difference(first / "data", ledgers[name] / "data", last.pos + last.size)
        compared += count
        if at >= 0:
            problems.add(f"{name}: data differ from {names[0]}'s at byte {at}, committed up to {last.pos + last.size}")
        at, _ = difference(first / "index", ledgers[name] / "index", (commit_index + 1) * _UNIT.size)
        if at >= 0:
            problems.add(f"{name}: the index differs from {names[0]}'s at entry {at // _UNIT.size}")
    return compared


def sealed_segments(ledger: Path) -> list[tuple[int, Path]]:
    """(first position, file) of data segments that are full: behind each lies one with an entry in it."""
    segments = Files(ledger / "data").segments()
    begun = [number for number, (_, path) in enumerate(segments) if _begins(path)]
    return segments[: max(begun, default=0)]


def _begins(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\0\0\0\1"


def entries_of(path: Path) -> list[tuple[int, int]]:
    """(offset in the file, size) of the entries in a data segment, walked from its begin."""
    data = path.read_bytes()
    found, at = [], 0
    while at + 48 <= len(data):
        magic, size = struct.unpack_from(">ii", data, at)
        if magic != 1 or size < 48 or at + size > len(data):
            break
        found.append((at, size))
        at += size
    return found
