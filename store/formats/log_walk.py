"""Walks over the records of a log in Python, for tools and tests. A slow twin of the kernel's code.

    for step in walk(log, pos):
        match step.kind: ...

A walk yields a step for each record (or empty entry) and each filler. It ends with exactly one step of another kind:
END, where nothing was written yet (zeros) or the files end; or DAMAGE, where bytes are not a record. The end of a
damaged range can only be found by searching for a record that states its own position (`resync`).

Source: CommitLog.recoverNormally and checkMessageAndReturnSize of RocketMQ 4.8.0; DLedger's layout: `ledger_format`.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tallystick.store import _kernel
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES, FILLER_MAGIC, EntryHeader, LedgerFormatError
from tallystick.store.formats.mapped import UNREADABLE
from tallystick.store.formats.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    SMALLEST_RECORD_BYTES,
    Record,
    RecordError,
)
from tallystick.store.formats.segment_files import SegmentFiles

_PAIR = struct.Struct(">ii")


class StepKind(enum.Enum):
    RECORD = enum.auto()
    EMPTY = enum.auto()
    """An entry of dledger's layout without a record."""
    FILLER = enum.auto()
    END = enum.auto()
    DAMAGE = enum.auto()


class Step(NamedTuple):
    """`pos`: of the entry, which in dledger's layout begins 48 bytes before its record. `size`: to the next entry; for
    damage the value of its size field if that stays in the segment, else 0."""

    kind: StepKind
    pos: int
    size: int = 0
    record: Record | None = None
    entry: EntryHeader | None = None
    reason: str = ""


def walk(
    log: SegmentFiles, pos: int | None = None, *, entry_header_bytes: int = 0, check_crc: bool = True
) -> Iterator[Step]:
    """Yields steps from `pos` on, where a record or segment begins (None: the first segment)."""
    pos = log.first if pos is None else pos
    while True:
        step = step_at(log, pos, entry_header_bytes=entry_header_bytes, check_crc=check_crc)
        yield step
        if step.kind in (StepKind.END, StepKind.DAMAGE):
            return
        pos += step.size


def step_at(log: SegmentFiles, pos: int, *, entry_header_bytes: int = 0, check_crc: bool = True) -> Step:
    """The step at `pos`. Unreadable bytes are DAMAGE."""
    step = _step_at(log, pos, entry_header_bytes, check_crc)
    head_bytes = entry_header_bytes + BLANK_BYTES
    if log.unreadable(pos, max(step.size if step.kind is not StepKind.FILLER else 0, head_bytes)):
        return Step(StepKind.DAMAGE, pos, 0 if log.unreadable(pos, head_bytes) else step.size, reason=UNREADABLE)
    return step


def _step_at(log: SegmentFiles, pos: int, entry_header_bytes: int, check_crc: bool) -> Step:
    start = log.start_of(pos)
    if start is None:
        return Step(StepKind.END, pos, reason="the files end")
    left = start + log.segment_bytes - pos
    head = log.read(pos, BLANK_BYTES)
    if head is None:
        return Step(StepKind.DAMAGE, pos, reason=f"{left} bytes are left where a filler needs {BLANK_BYTES}")
    first, second = _PAIR.unpack(head)
    if first == second == 0:
        return Step(StepKind.END, pos, reason="unwritten")
    if second == BLANK_MAGIC:
        return _filler(pos, first, left)
    if not entry_header_bytes or second in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2):
        return _record(log, pos, 0, first, left, check_crc)
    if first == FILLER_MAGIC:
        return _filler(pos, second, left)
    header = log.read(pos, ENTRY_HEADER_BYTES)
    if header is None:
        return Step(StepKind.DAMAGE, pos, reason=f"an entry where {left} bytes are left")
    try:
        entry = EntryHeader.decode(header)
    except LedgerFormatError as error:
        return Step(StepKind.DAMAGE, pos, reason=error.reason)
    if entry.pos != pos:
        return Step(StepKind.DAMAGE, pos, reason=f"the entry says that it lies at {entry.pos}")
    if not entry.chain_crc and entry.body_crc:
        return Step(StepKind.DAMAGE, pos, entry.size, entry=entry, reason="an entry without a chain CRC has a body CRC")
    if check_crc and entry.chain_crc and entry.size <= left:
        body = log.read(pos + ENTRY_HEADER_BYTES, entry.body_bytes)
        if body is None or zlib.crc32(body) != entry.body_crc:
            return Step(StepKind.DAMAGE, pos, entry.size, entry=entry, reason="the entry's body CRC differs")
    if entry.body_bytes == 0:
        return Step(StepKind.EMPTY, pos, entry.size, entry=entry)
    is_covered = entry.chain_crc != 0
    step = _record(log, pos, ENTRY_HEADER_BYTES, entry.size, left, check_crc, is_covered=is_covered)
    return step._replace(entry=entry)


def _filler(pos: int, size: int, left: int) -> Step:
    if size != left:
        return Step(StepKind.DAMAGE, pos, reason=f"a filler of {size} bytes where {left} are left")
    return Step(StepKind.FILLER, pos, size)


def _record(
    log: SegmentFiles, pos: int, header_bytes: int, size: int, left: int, check_crc: bool, *, is_covered: bool = False
) -> Step:
    """`is_covered`: the CRC of an entry covers all of the record."""
    if not header_bytes < size <= left:
        return Step(StepKind.DAMAGE, pos, reason=f"a size of {size} bytes where {left} are left")
    data = log.read(pos + header_bytes, size - header_bytes)
    assert data is not None, "the size was checked against the segment"
    try:
        record = Record.decode(data, check_crc=check_crc)
    except RecordError as error:
        return Step(StepKind.DAMAGE, pos, size, reason=error.reason)
    if record.pos != pos + header_bytes:
        return Step(StepKind.DAMAGE, pos, size, record, reason=f"the record says that it lies at {record.pos}")
    if not is_covered and (record.topic.endswith("\0") or record.properties.endswith("\0")):
        # No CRC covers them, but no writer produces such an end: the last record is torn.
        behind = log.read(pos + size, BLANK_BYTES)
        if behind is None or not any(behind):
            return Step(StepKind.DAMAGE, pos, size, record, reason="topic or properties end in zeros")
    return Step(StepKind.RECORD, pos, size, record)


def resync(
    log: SegmentFiles,
    pos: int,
    belongs: Callable[[Step], bool] = lambda step: True,
    *,
    entry_header_bytes: int = 0,
) -> Step | None:
    """The first sound record behind `pos` that `belongs` to the log, in its segment or a later one, if any.

    Reads all written data up to there, in the kernel. Skips blocks that are only allocated.
    """
    while (found := _kernel.next_sound_record(log.for_kernel(), pos, entry_header_bytes)) is not None:
        step = step_at(log, found, entry_header_bytes=entry_header_bytes)
        if step.kind is StepKind.RECORD and belongs(step):
            return step
        pos = found
    return None


def damaged_record(log: SegmentFiles, pos: int, behind: int, entry_header_bytes: int) -> Record | None:
    """The fields of the first record in the damaged range [pos, behind), if only its magic, size, position or body are
    wrong; otherwise None. No CRC proves topic and queue."""
    start = log.start_of(pos)
    if start is None:
        return None
    place = pos + entry_header_bytes
    data = log.read(place, min(behind, start + log.segment_bytes) - place)
    if data is None or len(data) < SMALLEST_RECORD_BYTES:
        return None
    # Either its size is right, and a filler may follow, or it reaches to the next record.
    for size in dict.fromkeys((_PAIR.unpack_from(data)[0], len(data))):
        if SMALLEST_RECORD_BYTES <= size <= len(data):
            repaired = _PAIR.pack(size, MESSAGE_MAGIC) + data[_PAIR.size : size]
            try:
                record = Record.decode(repaired, check_crc=False)
                if record.pos != place:
                    Record.decode(repaired, check_crc=True)  # a sound body is as good a proof as its position
            except RecordError:
                continue
            return record
    return None


def durable_segment(log: SegmentFiles, limit_ms: int, entry_header_bytes: int) -> int:
    """The newest segment whose first record was stored until `limit_ms` (of a checkpoint); otherwise the first one."""
    for start in reversed(log.starts):
        # RocketMQ checks only magic and time here. The walk finds a first record with a damaged body.
        record = step_at(log, start, entry_header_bytes=entry_header_bytes, check_crc=False).record
        if record is not None and 0 < record.store_timestamp_ms <= limit_ms:
            return start
    return log.first
