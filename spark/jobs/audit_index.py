"""The index against the log: the entries that the log asks for, in its order, and the entries that are there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tallystick.spark.jobs.findings import SETTLED, Difference, Findings
from tallystick.spark.jobs.index_files import geometry_of, mapped_index
from tallystick.spark.presence import release
from tallystick.spark.scan import SplitScan, has_expired
from tallystick.spark.splits import plan
from tallystick.spark.volume import Volume
from tallystick.store.derive import index_hash
from tallystick.store.message import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from tallystick.store.queue_format import INDEX_ENTRY, INDEX_HEADER, IndexEntry, IndexGeometry, IndexHeader

_COLUMNS = ("topic", "physical_offset", "sys_flag", "unique_key", "keys", "store_timestamp_ms")
_GROUP_BYTES = 32 << 20
"""Entries and keys of so much log are held at a time."""
_SURE_ENTRIES = 16
"""The files do not say how many slots they have. In one that is being written, fewer entries can look like another."""


def check_index(volume: Volume, settled_ms: int, findings: Findings) -> None:
    """Both as (hash, position) pairs, stretch by stretch of the log: what is on one side only is a difference."""
    files = [path for path in sorted((Path(volume.root) / "index").glob("*")) if path.is_file()]
    if not files:
        return
    closed = settled_ms == SETTLED
    geometry = geometry_of(files, 1 if closed else _SURE_ENTRIES)
    if geometry is None:
        return
    entries = _entries(volume, files, geometry, findings, closed)
    first = min(entries, default=volume.bound)
    for split in plan(volume, split_bytes=_GROUP_BYTES):
        wanted: Counter[tuple[int, int]] = Counter()
        times: dict[int, int] = {}
        for batch in SplitScan(split, _COLUMNS):
            for topic, pos, sys_flag, unique, keys, time in zip(*(column.to_pylist() for column in batch), strict=True):
                if sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
                    continue
                times[pos] = time
                wanted.update((pos, index_hash(topic, key)) for key in ([unique] if unique else []) + keys)
        release(split.path, split.begin - split.file_start, split.end - split.file_start)
        if has_expired(split):
            entries = {pos: held for pos, held in entries.items() if pos >= split.end}
            first = max(first, split.end)
            continue
        newest_ms = max(times.values(), default=settled_ms)
        there = Counter((pos, key_hash) for pos in times if pos in entries for key_hash, _, _ in entries[pos])
        for pos, key_hash in (wanted - there).elements():
            if times[pos] >= settled_ms:
                findings.add_behind("index entries")
            elif pos >= first:
                reason = f"no entry of a key of the record at {pos} (hash {key_hash})"
                findings.add(Difference(volume.source, "index", "", pos, reason))
        for pos in sorted(pos for pos in entries if split.begin <= pos < split.end):
            for key_hash, file, at in entries.pop(pos):
                if wanted[pos, key_hash] == 0:
                    if times.get(pos, newest_ms) >= settled_ms:
                        findings.add_behind("index entries")
                        continue
                    reason = f"names hash {key_hash} at {pos}, no record there has such a key"
                    findings.add(Difference(volume.source, "index", file, at, reason))


def _entries(
    volume: Volume, files: list[Path], geometry: IndexGeometry, findings: Findings, closed: bool
) -> dict[int, list[tuple[int, str, int]]]:
    """(hash, file, byte in it) of all entries below the bound, by position."""
    found: dict[int, list[tuple[int, str, int]]] = {}
    for path in files:
        with mapped_index(path) as data:
            if data is None:
                continue
            header = IndexHeader(*INDEX_HEADER.unpack_from(data))
            if path == files[-1] and not closed and len(data) != geometry.file_bytes:
                continue  # it is just being made
            if len(data) != geometry.file_bytes or not 0 <= header.next_entry <= geometry.entries:
                findings.add(
                    Difference(volume.source, "index", str(path), 0, "its size or header is not as the others'")
                )
                continue
            for number in range(1, header.next_entry):
                at = geometry.entry_at(number)
                entry = IndexEntry(*INDEX_ENTRY.unpack_from(data, at))
                if volume.begin <= entry.pos < volume.bound:
                    found.setdefault(entry.pos, []).append((entry.key_hash, str(path), at))
    return found
