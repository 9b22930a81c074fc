"""Finds the end of the record before an offset or a time, in a log that was restored, and walks raw records."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tallystick.node.backup.errors import BackupError, DamagedBackupError
from tallystick.store.formats.ledger_format import ENTRY_MAGIC, FILLER_MAGIC
from tallystick.store.formats.record import BLANK_MAGIC, MESSAGE_MAGIC, MESSAGE_MAGIC_V2
from tallystick.store.formats.segment_files import SegmentFiles

_PAIR = struct.Struct(">ii")
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_FLAGS_AT, _BORN_AT = 36, 48
_BORN_V6, _STORE_V6 = 0x10, 0x20
_SMALLEST = 64


class Raw(NamedTuple):
    """One record or filler. `at`: where it begins in the buffer; `record_at`: its record, behind an entry's header."""

    at: int
    end: int
    record_at: int
    is_filler: bool
    store_ms: int


def raw_at(buffer: bytes | memoryview, at: int, limit: int, segment_left: int, header_bytes: int) -> Raw | None:
    """The record at `at`; `limit`: the end of the buffer, `segment_left`: bytes up to the end of the segment.

    None: the buffer ends before it does, or nothing was written there. DamagedBackupError: no record.
    """
    if limit - at < _PAIR.size:
        return None
    first, second = _PAIR.unpack_from(buffer, at)
    if first == second == 0:
        return None
    if second == BLANK_MAGIC or (header_bytes and first == FILLER_MAGIC):
        return Raw(at, at + segment_left, at, True, 0)
    size, record_at = first, at
    if header_bytes and first == ENTRY_MAGIC:
        size, record_at = second, at + header_bytes
    elif second not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2):
        raise DamagedBackupError("no record begins")
    if not _SMALLEST < size <= segment_left:
        raise DamagedBackupError(f"a record of {size} bytes begins")
    if at + size > limit:
        return None
    if record_at + _SMALLEST > at + size:
        return Raw(at, at + size, record_at, False, 0)
    (flags,) = _INT.unpack_from(buffer, record_at + _FLAGS_AT)
    store_at = record_at + _BORN_AT + (20 if flags & _BORN_V6 else 8)
    return Raw(at, at + size, record_at, False, _LONG.unpack_from(buffer, store_at)[0])


def topic_of(record: bytes | memoryview) -> bytes:
    """The topic in a record. struct.error: it ends early."""
    (flags,) = _INT.unpack_from(record, _FLAGS_AT)
    at = _BORN_AT + (20 if flags & _BORN_V6 else 8) + 8 + (20 if flags & _STORE_V6 else 8) + 4 + 8
    (body_bytes,) = _INT.unpack_from(record, at)
    at += 4 + max(0, body_bytes)
    if _INT.unpack_from(record, 4)[0] == MESSAGE_MAGIC_V2:
        (size,) = struct.unpack_from(">h", record, at)
        return bytes(record[at + 2 : at + 2 + size])
    return bytes(record[at + 1 : at + 1 + record[at]])


def cut_at(
    log: SegmentFiles, committed: int, header_bytes: int, *, offset: int | None, time_ms: int | None, from_segment: int
) -> int:
    """The end of the last record that ends at or before `offset`, and was stored at or before `time_ms`, as all records
    before it were. `from_segment`: nothing before this segment is behind the point. BackupError: there is no record
    before the point; DamagedBackupError: the log is damaged before it."""
    for segment in (start for start in log.starts if start >= from_segment):
        end = segment
        for raw in _walk(log, segment, committed, header_bytes):
            late = time_ms is not None and not raw.is_filler and raw.store_ms > time_ms
            if late or (offset is not None and segment + raw.end > offset):
                if end == log.first:
                    raise BackupError("the log of the backup has no record up to there")
                return end
            end = segment + raw.end
    return min(committed, log.end)


def _walk(log: SegmentFiles, segment: int, committed: int, header_bytes: int) -> Iterator[Raw]:
    limit = min(log.segment_bytes, committed - segment)
    at = 0
    with memoryview(log.buffer(segment)) as buffer:
        while at < limit:
            try:
                raw = raw_at(buffer, at, limit, log.segment_bytes - at, header_bytes)
            except DamagedBackupError as error:
                raise DamagedBackupError(f"the log is damaged at byte {segment + at}: {error}") from error
            if raw is None:
                return
            yield raw
            at = raw.end
