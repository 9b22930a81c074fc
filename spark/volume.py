"""A store's files as a reader beside the broker sees them: which there are, and up to where they may be believed.

A snapshot is a bound, taken before anything is read, never a listing or a file's size: files have their full length
from creation, and the broker goes on writing. Below the bound every byte is settled; behind it nothing is looked at.

    plain layout     the end of the last record that a ConsumeQueue knows, and from there on the records that follow
                     without a gap: what the broker has written and not yet dispatched
    dledger layout   the end of the last record that a ConsumeQueue knows (members dispatch what is committed, no more),
                     or the committed entry that the log's `checkpoint` names, whichever is later

A unit of a queue is believed only if the record that it names is sound, is of that queue and has that size: so a
damaged queue costs freshness, not truth. A store that has lost its queues is read from its beginning for its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tallystick.spark.presence import Segments
from tallystick.store import _kernel
from tallystick.store.dump import committed_end
from tallystick.store.ledger_format import ENTRY_HEADER_BYTES
from tallystick.store.log_walk import resync, step_at
from tallystick.store.queue_format import BLANK_UNIT_SIZE, UNIT, units_written
from tallystick.store.record import Record
from tallystick.store.segment_files import SegmentFiles
from tallystick.store.verify_queues import queue_folders


@dataclass(frozen=True, slots=True)
class Source:
    """A store that is to be read. `source`: the name its rows will carry; `group`: whose log it holds, if known.

    `http`: address of the broker that has it open, which is asked for its bound; None: nobody is asked.
    """

    source: str
    root: str
    group: str | None = None
    http: str | None = None


class VolumeError(Exception):
    """What was named is no store, or cannot be read as one."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the log: positions [start, end) of it, in the layout with so many bytes before each record."""

    path: str
    start: int
    end: int
    entry_header_bytes: int


@dataclass(frozen=True, slots=True)
class Volume:
    """`source`: the name its rows carry; `begin` and `bound`: what is kept, and up to where it is settled (bytes)."""

    source: str
    root: str
    files: tuple[LogFile, ...]
    begin: int
    bound: int

    @property
    def bytes(self) -> int:
        return self.bound - self.begin


def open_volume(root: Path, source: str | None = None, committed: int | None = None) -> Volume:
    """The store in `root`, as it is now. Reads a few pages, unless the store has lost its queues.

    `committed`: a bound that the broker gave; None: found by looking, see the module's head. VolumeError, OSError.
    """
    with Logs(root) as logs:
        files = tuple(_files(logs))
        begin = files[0].start if files else 0
        end = files[-1].end if files else 0
        bound = logs.bound() if committed is None else committed
    return Volume(source or str(root), str(root), files, begin, max(begin, min(bound, end)))


def _files(logs: Logs) -> Iterator[LogFile]:
    expected = None
    for log, header in logs.parts:
        for start in log.starts:
            if expected is not None and start != expected:
                raise VolumeError(f"{log.path(start)}: the file before this one is missing, it would end at {start}")
            expected = start + log.segment_bytes
            yield LogFile(str(log.path(start)), start, expected, header)


class Logs:
    """The segments of a store, one folder or two (a log that dledger went on with). A context manager."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._stack = ExitStack()
        ledgers = sorted(path for path in root.glob("dledger-*/data") if path.is_dir())
        if len(ledgers) > 1:
            raise VolumeError(f"{root} has more than one dledger folder")
        plain = root / "commitlog"
        if not ledgers and not plain.is_dir():
            raise VolumeError(f"{root} is no store: neither commitlog nor dledger-*/data is in it")
        self.parts: list[tuple[SegmentFiles, int]] = []
        for folder, header in [(plain, 0), *((ledger, ENTRY_HEADER_BYTES) for ledger in ledgers)]:
            log = self._stack.enter_context(Segments(folder))
            if log.starts or folder in ledgers or not ledgers:
                self.parts.append((log, header))

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def tail(self) -> tuple[SegmentFiles, int]:
        """The part that is being written."""
        return self.parts[-1]

    def sound_record_end(self, pos: int, size: int, topic: str, queue: int) -> int | None:
        """The end of the record at `pos`; None: it is not sound, or not the one that is meant. Its body is read."""
        record = self.record_at(pos, check_crc=True)
        if record is not None and (record.size, record.topic, record.queue_id) == (size, topic, queue):
            return pos + size
        return None

    def record_at(self, pos: int, *, check_crc: bool = False) -> Record | None:
        """None: there is no sound one, or its segment is gone."""
        for log, header in self.parts:
            if log.start_of(pos - header) is not None:
                record = step_at(log, pos - header, entry_header_bytes=header, check_crc=check_crc).record
                if record is not None:
                    return record
        return None

    def bound(self) -> int:
        known = self._known_to_queues()
        log, header = self.tail
        if header:
            hint = committed_end(log.folder)
            return max(-1 if known is None else known, -1 if hint is None else hint, log.first)
        if known is not None:
            return _walk(log, known)
        return self._end_by_reading()

    def _known_to_queues(self) -> int | None:
        last = []
        for topic, queue, folder in queue_folders(self.root):
            with Segments(folder) as files:
                unit = last_unit(files)
            if unit is not None:
                last.append((unit[0] + unit[1], unit[0], unit[1], topic, queue))
        for _, pos, size, topic, queue in sorted(last, reverse=True):
            end = self.sound_record_end(pos, size, topic, queue)
            if end is not None:
                return end
        return None

    def _end_by_reading(self) -> int:
        """Of a plain log without queues: behind its last sound record. Damage before that is for the reader to tell."""
        log, _ = self.tail
        end = pos = log.first
        while log.starts:
            end = _walk(log, pos)
            behind = resync(log, end)
            if behind is None:
                break
            pos = behind.pos
        return end


def _walk(log: SegmentFiles, pos: int) -> int:
    if log.start_of(pos) is None:
        return pos
    return _kernel.scan(str(log.folder), log.segment_bytes, pos, True).end


def last_unit(files: SegmentFiles) -> tuple[int, int] | None:
    """(pos, size) of the newest unit; None: the queue has none."""
    for start in reversed(files.starts):
        data = files.buffer(start)
        count = units_written(data)
        if count:
            pos, size, _ = UNIT.unpack_from(data, (count - 1) * UNIT.size)
            return None if size == BLANK_UNIT_SIZE and pos == 0 else (pos, size)
    return None
