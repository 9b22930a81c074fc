"""Compares the index with the log: the entries that the log requires, in its order, and the entries of the files.

The audit reads log and entries in parallel. It compares a range of the log with the next entries as columns. Only if
they differ, which is rare, does it compare single entries. So memory holds one range, however many entries the files
have. If all entries of a file are correct, it also checks the chains of the file, which follow from the entries.

In a store that no broker uses, the files in which it finds something are judged once more by the code of
`tally store verify` (`audit_judge.py`).
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.spark.index_files import geometry_of, mapped_index
from tallystick.spark.jobs.findings import SETTLED, Difference, Findings
from tallystick.spark.presence import release
from tallystick.spark.scan import SplitScan, has_expired, table_of
from tallystick.spark.splits import plan
from tallystick.spark.volume import Logs, Volume
from tallystick.store import _kernel
from tallystick.store.formats.mapped import UNREADABLE
from tallystick.store.formats.queue_format import INDEX_ENTRY, INDEX_HEADER, IndexEntry, IndexGeometry, IndexHeader

_COLUMNS = ("physical_offset", "store_timestamp_ms", "index_hashes")
_STRETCH_BYTES = 32 << 20
_BATCH_ENTRIES = 1 << 16
_SURE_RUN = 1024
"""After this many entries in a row of later records, no entry of an earlier record follows. A damaged entry may name
any record."""
_SURE_ENTRIES = 16
"""The files do not contain their number of slots. In a file that is being written, fewer entries can suggest another
number."""
_PIECE = 1 << 20
_MAX_SECONDS = 2**31 - 1
_SLOT_COUNT_AT = 32


@dataclass(frozen=True)
class IndexFound:
    """What the comparison found: differences of the log, by position; `files`: in index files, by file.

    `records_with_keys`: of the log, if the index has no files.
    """

    findings: Findings
    files: dict[Path, Findings]
    records_with_keys: int = 0


def check_index(
    volume: Volume, settled_ms: int, known: IndexGeometry | None, *, whole: bool, enabled: bool = True
) -> IndexFound:
    """Compares the index with the log, range by range; then checks what follows from the entries.

    `known`: the geometry of the files, if it is known without them. `whole`: nothing is behind the bound, so that
    entries must not name anything there. `enabled`: whether the store has an index.
    """
    findings = Findings()
    paths = [path for path in sorted((Path(volume.root) / "index").glob("*")) if path.is_file()]
    if not paths:
        return IndexFound(findings, {}, _records_with_keys(volume, settled_ms) if enabled else 0)
    closed = settled_ms == SETTLED
    if not _unreadable(volume, paths, findings):  # else entries name each other, and other files
        geometry = known or geometry_of(paths, 1 if closed else _SURE_ENTRIES)
        if geometry is not None:
            _compare(volume, settled_ms, paths, geometry, findings, whole=whole)
        elif closed:
            _check_empty(volume.source, paths, findings)
    return _by_file(findings, paths)


def _by_file(findings: Findings, paths: Sequence[Path]) -> IndexFound:
    files = {str(path): Findings() for path in paths}
    others = Findings(behind=findings.behind, count=findings.count - len(findings.differences))
    for difference in findings.differences:
        files.get(difference.file, others).add(difference)
    return IndexFound(others, {Path(path): found for path, found in files.items() if found.count})


def _records_with_keys(volume: Volume, settled_ms: int) -> int:
    count = 0
    for split in plan(volume, end=volume.bound, split_bytes=_STRETCH_BYTES):
        for batch in SplitScan(split, _COLUMNS):
            has_keys = pc.greater(pc.list_value_length(batch.column(2)), 0)
            count += pc.sum(pc.and_(has_keys, pc.less(batch.column(1), settled_ms))).as_py() or 0
        release(split.path, split.begin - split.file_start, split.end - split.file_start)
    return count


def _compare(
    volume: Volume,
    settled_ms: int,
    paths: Sequence[Path],
    geometry: IndexGeometry,
    findings: Findings,
    *,
    whole: bool,
) -> None:
    closed = settled_ms == SETTLED
    files = _readable(volume, paths, geometry, findings, closed)
    entries = _Entries(volume, files, geometry)
    first = entries.first_position()
    before_keys = True
    wrong: set[int] = set()
    for split in plan(volume, end=volume.bound, split_bytes=_STRETCH_BYTES):
        records = _Records.of(SplitScan(split, _COLUMNS))
        release(split.path, split.begin - split.file_start, split.end - split.file_start)
        if before_keys and records.keys.num_rows:
            before_keys = False
            if records.keys["position"][0].as_py() != first:
                first += 1  # the index begins later, so other keys of its first record may have been in a file before
        if has_expired(split):
            entries.take_below(split.end)
            first = max(first, split.end)
        elif not entries.pass_if_equal(records.keys_from(first), split.end):
            found = entries.take_below(split.end)
            wrong |= _Stretch(volume.source, settled_ms, first, files, geometry, records).compare(found, findings)
    for entry in (entries.take_beyond() if whole else entries.take_misplaced()).to_pylist():
        wrong.add(entry["file"])
        reason = f"names hash {entry['key_hash']} at {entry['position']}, the log that was read ends at {volume.bound}"
        at = geometry.entry_at(entry["number"])
        findings.add(Difference(volume.source, "index", str(files[entry["file"]].path), at, reason))
    for number, file in enumerate(files):
        if number not in wrong:
            _check_chains(volume.source, file, geometry, findings)


def _unreadable(volume: Volume, paths: Sequence[Path], findings: Findings) -> bool:
    """Reports the bytes of the files that the disk does not return; returns whether there were any."""
    before = findings.count
    for path in paths:
        try:
            with mapped_index(path) as data:
                ranges = [] if data is None else data.unread()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            ranges = [(0, 0)]
        for at, size in ranges:
            findings.add(Difference(volume.source, "index", str(path), at, f"{UNREADABLE} ({size} bytes)"))
    return findings.count > before


# -- the entries that the log requires ---------------------------------------------------------------------------------


_RECORDS = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("time_ms", pa.int64(), nullable=False),
        pa.field("key_hashes", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
    ]
)


@dataclass(frozen=True)
class _Records:
    """The keys of one range of the log. `positions` and `times_ms`: of all its records."""

    positions: pa.ChunkedArray
    times_ms: pa.ChunkedArray
    keys: pa.Table
    """position, time_ms, key_hash: a row for each key, in the index's order."""

    @classmethod
    def of(cls, scan: SplitScan) -> _Records:
        batches = [pa.table(batch.columns, schema=_RECORDS) for batch in scan]
        rows = pa.concat_tables([_RECORDS.empty_table(), *batches]).combine_chunks()
        keys = rows.select(["position", "time_ms"]).take(pc.list_parent_indices(rows["key_hashes"]))
        keys = keys.append_column("key_hash", pc.list_flatten(rows["key_hashes"]))
        return cls(rows["position"], rows["time_ms"], keys)

    def keys_from(self, first: int) -> pa.Table:
        return self.keys.filter(pc.greater_equal(self.keys["position"], first))


# -- the entries of the files ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    """`header`: with the times of its records, if the file has other times."""

    path: Path
    header: IndexHeader
    growing: bool
    first_from_ms: int | None
    """Time from which its first entry counts its seconds: the end of the previous file. None: unknown."""


def _readable(
    volume: Volume, paths: Sequence[Path], geometry: IndexGeometry, findings: Findings, closed: bool
) -> list[_File]:
    files: list[_File] = []
    with Logs(Path(volume.root)) as logs:
        for path in paths:
            with mapped_index(path) as data:
                if data is None:
                    continue
                header = IndexHeader(*INDEX_HEADER.unpack_from(data))
                if path == paths[-1] and not closed and len(data) != geometry.file_bytes:
                    continue  # it is being created
                if len(data) != geometry.file_bytes or not 0 <= header.next_entry <= geometry.entries:
                    reason = "its size or header differs from those of the other files"
                    findings.add(Difference(volume.source, "index", str(path), 0, reason))
                    continue
                growing = not closed and header.next_entry < geometry.entries
                header, wrong = _checked_header(volume, logs, data, header, geometry, growing)
                for at, reason in wrong:
                    findings.add(Difference(volume.source, "index", str(path), at, reason))
                files.append(_File(path, header, growing, files[-1].header.end_timestamp_ms if files else None))
    return files


def _checked_header(
    volume: Volume, logs: Logs, data: mmap, header: IndexHeader, geometry: IndexGeometry, growing: bool
) -> tuple[IndexHeader, list[tuple[int, str]]]:
    """Compares the times that queries use with the records of the first and, unless it changes, of the last entry.

    Returns the expected header, and the wrong bytes of the file, with reasons.
    """
    last = header.next_entry - 1
    ends = [("first", 1, header.begin_pos, header.begin_timestamp_ms, 0)]
    ends += [] if growing else [("last", last, header.end_pos, header.end_timestamp_ms, 8)]
    times: dict[str, int] = {}
    wrong = []
    for what, number, pos, time_ms, time_at in ends if last >= 1 else ():
        entry = IndexEntry(*INDEX_ENTRY.unpack_from(data, geometry.entry_at(number)))
        record = logs.record_at(entry.pos) if volume.begin <= entry.pos < volume.bound else None
        if pos != entry.pos:
            at = geometry.entry_at(number) if entry.pos >= volume.bound > pos else time_at + 16
            wrong.append((at, f"the header says that its {what} record is at {pos}, but its entry names {entry.pos}"))
        elif record is not None and record.store_timestamp_ms != time_ms:
            reason = f"the header says that its {what} record was stored at {time_ms}"
            wrong.append((time_at, f"{reason}, but it was stored at {record.store_timestamp_ms}"))
            times[what] = record.store_timestamp_ms
    header = header._replace(
        begin_timestamp_ms=times.get("first", header.begin_timestamp_ms),
        end_timestamp_ms=times.get("last", header.end_timestamp_ms),
    )
    return header, wrong


def _check_empty(source: str, paths: Sequence[Path], findings: Findings) -> None:
    """Checks files whose number of slots is unknown: that is correct if they have no entries."""
    for path in paths:
        with mapped_index(path) as data:
            if data is None:
                continue
            count = IndexHeader(*INDEX_HEADER.unpack_from(data)).next_entry
            pieces = range(INDEX_HEADER.size, len(data), _PIECE)
            if count not in (0, 1) or any(data[at : at + _PIECE].strip(b"\0") for at in pieces):
                findings.add(Difference(source, "index", str(path), 0, "slots and entries do not fit the header"))


_ENTRIES = pa.schema(
    [
        pa.field("key_hash", pa.int32()),
        pa.field("position", pa.int64()),
        pa.field("seconds", pa.int32()),
        pa.field("from_ms", pa.int64()),  # the time from which its seconds count; null: unknown
        pa.field("file", pa.int32()),  # the number of the file in the list
        pa.field("number", pa.int32()),
    ]
)


class _Entries:
    """The entries of all files in their order, once; without the first ones whose records have expired."""

    def __init__(self, volume: Volume, files: Sequence[_File], geometry: IndexGeometry) -> None:
        self._volume = volume
        self._files = files
        self._slots = geometry.slots
        self._rest = self._read()
        self._ahead = _ENTRIES.empty_table()
        self._beyond = [self._ahead]
        self._last = (0, 0)
        """The place (file, number) of the last entry that belongs to this log."""

    def first_position(self) -> int:
        """The first record that the index has; older ones expired with its older files."""
        self._fill(_SURE_RUN)
        positions = self._ahead["position"]
        first: int | None = pc.min(positions.filter(pc.greater_equal(positions, self._volume.begin))).as_py()
        return self._volume.bound if first is None else first

    def pass_if_equal(self, keys: pa.Table, end: int) -> bool:
        """Skips the next entries if they are those of `keys`, and the entry after them names nothing below `end`."""
        self._fill(keys.num_rows + 1)
        next_ones, behind = self._ahead.slice(0, keys.num_rows), self._ahead.slice(keys.num_rows, 1)
        if behind.num_rows and behind["position"][0].as_py() < end:
            return False
        if not all(next_ones[name].equals(keys[name]) for name in ("position", "key_hash")):
            return False
        if not next_ones["seconds"].equals(_seconds(keys["time_ms"], next_ones)):
            return False
        self._pass(next_ones)
        self._ahead = self._ahead.slice(keys.num_rows)
        return True

    def take_below(self, end: int) -> pa.Table:
        """Removes the entries that name a position below `end` from the next ones, up to a certain run of later
        ones."""
        taken, kept, found = [self._ahead.slice(0, 0)], [], True
        while found:
            self._fill(_SURE_RUN)
            piece, self._ahead = self._ahead.slice(0, _SURE_RUN), self._ahead.slice(_SURE_RUN)
            is_below = pc.less(piece["position"], end)
            is_beyond = pc.greater_equal(piece["position"], self._volume.bound)
            taken.append(piece.filter(is_below))
            kept.append(piece.filter(pc.invert(pc.or_(is_below, is_beyond))))
            self._beyond.append(piece.filter(is_beyond))
            found = taken[-1].num_rows > 0
        self._ahead = pa.concat_tables([*kept, self._ahead]).combine_chunks()
        below = pa.concat_tables(taken)
        self._pass(below)
        return below

    def take_beyond(self) -> pa.Table:
        """The entries that name a position at or after the bound, and all that follow the last one of this log."""
        return pa.concat_tables([*self._beyond, self._ahead, *self._rest])

    def take_misplaced(self) -> pa.Table:
        """Those that also stand before an entry of this log: the others may belong to records that follow."""
        beyond = pa.concat_tables(self._beyond)
        file, number = self._last
        is_before = pc.or_(
            pc.less(beyond["file"], file),
            pc.and_(pc.equal(beyond["file"], file), pc.less(beyond["number"], number)),
        )
        return beyond.filter(is_before)

    def _pass(self, entries: pa.Table) -> None:
        if entries.num_rows:
            self._last = (entries["file"][-1].as_py(), entries["number"][-1].as_py())

    def _fill(self, rows: int) -> None:
        pieces = [self._ahead]
        missing = rows - self._ahead.num_rows
        while missing > 0 and (more := next(self._rest, None)) is not None:
            pieces.append(more)
            missing -= more.num_rows
        self._ahead = pa.concat_tables(pieces)

    def _read(self) -> Iterator[pa.Table]:
        begun = False
        for index, file in enumerate(self._files):
            for first in range(1, file.header.next_entry, _BATCH_ENTRIES):
                count = min(_BATCH_ENTRIES, file.header.next_entry - first)
                try:
                    rows = table_of(_kernel.index_entries(file.path, self._slots, first, count))
                except FileNotFoundError:
                    break  # expired, with the records that it names
                from_ms = pa.repeat(pa.scalar(file.header.begin_timestamp_ms, pa.int64()), count)
                if first == 1:
                    from_ms = pa.concat_arrays([pa.array([file.first_from_ms], pa.int64()), from_ms[1:]])
                numbers = pa.array(range(first, first + count), pa.int32())
                files = pa.repeat(pa.scalar(index, pa.int32()), count)
                rows = pa.table([*rows.columns, from_ms, files, numbers], schema=_ENTRIES)
                if not begun:
                    rows, begun = self._without_expired(rows)
                yield rows

    def _without_expired(self, rows: pa.Table) -> tuple[pa.Table, bool]:
        """Returns the entries whose records exist, and whether no more expired ones may follow: two in a row exist."""
        is_there = pc.greater_equal(rows["position"], self._volume.begin).combine_chunks()
        at = pc.index(pc.and_(is_there[:-1], is_there[1:]), True).as_py()
        if at < 0:
            return rows.filter(is_there), False
        return pa.concat_tables([rows.slice(0, at).filter(is_there[:at]), rows.slice(at)]), True


def _seconds(times_ms: pa.ChunkedArray, entries: pa.Table) -> pa.ChunkedArray:
    """The seconds that these entries should have for records stored at these times."""
    from_ms = entries["from_ms"]
    counted = pc.divide(pc.subtract(pc.max_element_wise(times_ms, from_ms), from_ms), 1000)
    seconds = pc.if_else(pc.greater(from_ms, 0), pc.min_element_wise(counted, _MAX_SECONDS), 0)
    return pc.if_else(pc.is_null(from_ms), entries["seconds"], seconds.cast(pa.int32()))


# -- one by one --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stretch:
    """A range of the log in which something differs."""

    source: str
    settled_ms: int
    first: int
    files: Sequence[_File]
    geometry: IndexGeometry
    records: _Records

    def compare(self, entries: pa.Table, findings: Findings) -> set[int]:
        """Returns the numbers of the files that have a wrong entry."""
        times = dict(zip(self.records.positions.to_pylist(), self.records.times_ms.to_pylist(), strict=True))
        begin = min(times, default=0)
        youngest_ms = max(times.values(), default=self.settled_ms)
        oldest_ms = min(times.values(), default=self.settled_ms)
        closed = self.settled_ms == SETTLED
        keys = self.records.keys
        wanted = Counter(zip(keys["position"].to_pylist(), keys["key_hash"].to_pylist(), strict=True))
        there = Counter(zip(entries["position"].to_pylist(), entries["key_hash"].to_pylist(), strict=True))
        for (pos, key_hash), count in (wanted - there).items():
            if times[pos] >= self.settled_ms:
                findings.add_behind("index entries", count)
            elif pos >= self.first:
                reason = f"no entry of a key of the record at {pos} (hash {key_hash})"
                findings.add(Difference(self.source, "index", "", pos, reason))
        stored = [times.get(pos) for pos in entries["position"].to_pylist()]
        expected = _seconds(pa.chunked_array([stored], pa.int64()), entries).to_pylist()
        wrong = set()
        for entry, time_ms, seconds in zip(entries.to_pylist(), stored, expected, strict=True):
            pos, key_hash = entry["position"], entry["key_hash"]
            if not wanted[pos, key_hash]:
                if not closed and (time_ms or (oldest_ms if pos < begin else youngest_ms)) >= self.settled_ms:
                    findings.add_behind("index entries")
                    continue
                where = "follows entries of later records" if pos < begin else "no record there has such a key"
                reason = f"names hash {key_hash} at {pos}, {where}"
            elif entry["seconds"] != seconds:
                reason = f"says {entry['seconds']} s after the file's begin, the record at {pos} {seconds} s"
            else:
                continue
            wrong.add(entry["file"])
            path = self.files[entry["file"]].path
            at = self.geometry.entry_at(entry["number"])
            findings.add(Difference(self.source, "index", str(path), at, reason))
        return wrong


# -- chains and slots, which follow from the entries -------------------------------------------------------------------


def _check_chains(source: str, file: _File, geometry: IndexGeometry, findings: Findings) -> None:
    count = file.header.next_entry
    try:
        listed, found = _kernel.index_chain_faults(file.path, geometry.slots, count, file.growing)
    except FileNotFoundError:
        return  # expired
    for at, reason in listed:
        findings.add(Difference(source, "index", str(file.path), at, reason))
    findings.count += found - len(listed)
    if not file.growing and (used := _used_slots(file, geometry)) != file.header.slot_count:
        reason = f"the header counts {file.header.slot_count} slots in use, there are {used}"
        findings.add(Difference(source, "index", str(file.path), _SLOT_COUNT_AT, reason))


def _used_slots(file: _File, geometry: IndexGeometry) -> int:
    with mapped_index(file.path) as data:
        if data is None:
            return file.header.slot_count  # expired
        slots = data[geometry.slot_at(0) : geometry.slot_at(geometry.slots)]
    used = pc.not_equal(pa.Int32Array.from_buffers(pa.int32(), geometry.slots, [None, pa.py_buffer(slots)]), 0)
    return pc.sum(used).as_py() or 0
