"""Checks index files against the log: each entry must belong to a key of its record, and each chain must be intact.

The chain of a slot leads from the newest entry, which the slot contains, back to the first. So the previous entry of
the chain is always the newest one of this slot so far. The check does not report missing entries: RocketMQ itself
leaves parts of the log without index entries after a kill. It reports an index that has no file at all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from tallystick.store import _kernel
from tallystick.store.formats.mapped import UNREADABLE, ReadMap, unread_ranges
from tallystick.store.formats.progress import lock_time_ns
from tallystick.store.formats.queue_format import INDEX_HEADER, IndexGeometry, IndexHeader
from tallystick.store.formats.queue_table import QueueTable
from tallystick.store.verify.queues import Derived


def has_index_files(root: Path) -> bool:
    folder = root / "index"
    return folder.is_dir() and any(folder.iterdir())


def check_index(
    derived: Derived,
    geometry: IndexGeometry | None,
    durable_timestamp_ms: int,
    records_with_keys: int = 0,
    only: Collection[Path] | None = None,
) -> None:
    """Checks all index files. After a kill, faults in files that end after `durable_timestamp_ms` are only notes: the
    next start builds them again.

    `geometry`: from the settings; None: determine it from the files. `records_with_keys`: of the log, if there are no
    index files. `only`: the files whose entries are compared; the others were already found to be sound.
    """
    folder = derived.root / "index"
    report = derived.report
    check_missing(derived, records_with_keys, repairable=not report.clean)
    ended_ms = None
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    geometry = geometry or _geometry_of(paths)
    for path in paths:
        report.index_files += 1
        if path.stat().st_size < INDEX_HEADER.size:
            report.add_damage(path, 0, f"an index file of {path.stat().st_size} bytes")
            continue
        with ReadMap(path) as data:
            header = IndexHeader(*INDEX_HEADER.unpack_from(data))
            if only is None or path in only:
                ended_ms = _check_file(derived, path, data, header, geometry, durable_timestamp_ms, ended_ms)
            else:
                ended_ms = header.end_timestamp_ms


def _geometry_of(paths: Sequence[Path]) -> IndexGeometry | None:
    """The geometry of the files, which do not contain it: it is determined from the fullest one. None: no file has
    entries that fit its header."""
    most, geometry = 0, None
    for path in reversed(paths):
        if path.stat().st_size < INDEX_HEADER.size:
            continue
        with ReadMap(path) as data:
            count = IndexHeader(*INDEX_HEADER.unpack_from(data)).next_entry - 1
            if count > most and (found := IndexGeometry.of_file(data)) is not None:
                most, geometry = count, found
    return geometry


def _check_file(
    derived: Derived,
    path: Path,
    data: ReadMap,
    header: IndexHeader,
    geometry: IndexGeometry | None,
    durable_timestamp_ms: int,
    ended_ms: int | None,
) -> int:
    """`ended_ms`: the end of the file before it. Returns the end of this file: the store time of its last record."""
    report = derived.report
    unread = unread_ranges(data)
    for at, size in unread:
        report.add_damage(path, at, f"{UNREADABLE} ({size} bytes)")
    if unread:
        return header.end_timestamp_ms  # entries refer to each other: the others cannot be checked
    repairable = not report.clean and header.end_timestamp_ms > durable_timestamp_ms
    found = geometry or IndexGeometry.of_file(data)
    if found is None:
        if header.next_entry > 1:
            report.add(path, 0, "slots and entries do not fit the header", repairable=repairable)
        return header.end_timestamp_ms
    if len(data) != found.file_bytes:
        report.add(path, 0, f"has {len(data)} bytes instead of {found.file_bytes}", repairable=repairable)
        return header.end_timestamp_ms
    report.index_slots, report.index_entries_max = found
    checked = _kernel.check_index_file(
        path,
        derived.log.for_kernel(),
        slots=found.slots,
        entries=found.entries,
        entry_header_bytes=derived.entry_header_bytes,
        begin=report.min_pos,
        end=report.end_pos,
        first_from_ms=ended_ms,
        repairable=repairable,
        progress=derived.progress and partial(derived.progress, f"index {path.name}"),
    )
    report.index_entries += checked.entries
    report.take(checked.findings)
    return checked.end_ms


def check_missing(derived: Derived, records_with_keys: int, *, repairable: bool) -> None:
    """Reports files that are listed in `tally-queues` and missing, although the log has their records. Without such a
    list, reports an index that has no file although the log has records with keys. `repairable`: the next start builds
    it."""
    folder = derived.root / "index"
    table = QueueTable.load(derived.root)
    if table is not None and table.lock_ns == lock_time_ns(derived.root):
        for name, end in table.index_files:
            if end >= derived.report.min_pos and not (folder / name).exists():
                derived.report.add_damage(folder / name, 0, "the index file is missing")
    elif records_with_keys:
        reason = f"the index has no file, the log has {records_with_keys} records with keys"
        derived.report.add(folder, 0, reason, repairable=repairable)
