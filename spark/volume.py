"""The files of a store for a reader beside its broker: which files exist, and up to which position they are settled.

That position, the bound, is determined before anything is read. A listing or the sizes of files cannot replace it:
files have their full length from creation, and the broker continues to write. Every byte below the bound is settled,
and the reader does not use the bytes behind it.

    plain layout     the end of the last record that a ConsumeQueue knows, and from there on the records that follow
                     without a gap: what the broker has written and not yet dispatched
    dledger layout   the end of the last record that a ConsumeQueue knows (members dispatch what is committed, no more),
                     or the committed entry that the log's `checkpoint` names, whichever is later

A unit is used only if its record is sound, belongs to that queue and has that size. So with a damaged queue the bound
is older, but not wrong. If a store has lost its queues, its log is read from the begin to find the end.

What is missing does not stop a reader. Where a file is missing or too short, the volume has a `LogFile` without bytes,
which says why, and the reader reports it as damage. The same holds if the newest files are lost: the queues name
records in them (`lost_end`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.spark.access import NO_ACCESS, Access
from tallystick.spark.presence import Segments, bring_folder, told_queues
from tallystick.store import _kernel
from tallystick.store._kernel import QueueEnds
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES
from tallystick.store.formats.log_walk import resync, step_at
from tallystick.store.formats.record import Record
from tallystick.store.formats.segment_files import SegmentFiles, segment_name, segment_start
from tallystick.store.verify.dump import committed_end


@dataclass(frozen=True, slots=True)
class Source:
    """A store to read. `source`: its name in the rows; `group`: the group whose log it has, if known.

    `root`: its folder, or an address (`places.py`). `http`: address of its broker, which gives the bound; None: the
    files determine the bound. `committed`: the bound, if it is known. `access`: what a store elsewhere requires.
    """

    source: str
    root: str
    group: str | None = None
    http: str | None = None
    committed: int | None = None
    access: Access = NO_ACCESS


MISSING = "the file is missing"
"""The reason for a range of the log that no file has."""
_MOST_LOST_FILES = 8
_MOST_FULLEST = 256
Queue = tuple[str, int]
"""Topic and queue id."""


class VolumeError(Exception):
    """There is no store at this place, or it cannot be read."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the log: its positions [start, end), and the number of bytes before each record in its layout.

    `missing`: why the file does not have these bytes; empty: it has them.
    """

    path: str
    start: int
    end: int
    entry_header_bytes: int
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Volume:
    """`source`: its name in the rows; `begin`: first position that is kept; `bound`: end of the settled part (bytes).

    `named_end`: the greatest end of a record that a queue names, sound or not; -1: none, or it was not determined.
    `lost_end`: the end of the records that were in newer files, which are missing or empty; else the bound.
    `queues_end`: the end of the last sound record that a queue knows; None: none, or it was not determined.
    `fullest`: the queues with the most units, see `fullest_queues`; empty: none, or they were not determined.
    `ends`: where the queues ended; None: this was not determined, or no reader needs it.
    """

    source: str
    root: str
    files: tuple[LogFile, ...]
    begin: int
    bound: int
    named_end: int = -1
    lost_end: int = 0
    queues_end: int | None = None
    fullest: tuple[Queue, ...] = ()
    ends: QueueEnds | None = field(default=None, compare=False, repr=False)

    @property
    def bytes(self) -> int:
        return self.bound - self.begin

    @property
    def end(self) -> int:
        """Where a reader ends: the bound, or the end of what was lost behind it."""
        return max(self.bound, self.lost_end)


def open_volume(root: Path, source: str | None = None, committed: int | None = None) -> Volume:
    """Opens the store in `root` in its present state. It reads a few pages, unless the store has lost its queues.

    `committed`: the bound that the broker gave; None: the files determine it. VolumeError, OSError.
    """
    with Logs(root) as logs:
        files = tuple(files_of(logs))
        begin = files[0].start if files else 0
        end = logs.tail[0].end if files else 0
        bound = max(begin, min(logs.bound() if committed is None else committed, end))
        named_end, queues_end, ends = logs.named_end, logs.queues_end, logs.ends
    lost_end = _lost_end(root, files, bound, named_end)
    files = _with_lost(files, lost_end) if lost_end > bound else files
    fullest = () if ends is None else fullest_queues(ends)
    return Volume(source or str(root), str(root), files, begin, bound, named_end, lost_end, queues_end, fullest, ends)


def files_of(logs: Logs) -> Iterator[LogFile]:
    """Yields the files of the log in their order, and a file without bytes for each range that is missing.

    VolumeError: two files overlap; OSError.
    """
    expected = None
    for log, header in logs.parts:
        for start, size in sorted(_present(log)):
            if expected is not None and start > expected:
                yield LogFile(str(log.path(expected)), expected, start, header, MISSING)
            elif expected is not None and start < expected:
                raise VolumeError(f"{log.path(start)}: the file before this one ends at {expected}")
            path, expected = str(log.path(start)), start + log.segment_bytes
            yield LogFile(path, start, start + size, header)
            if size < log.segment_bytes:
                reason = f"the file has {size} bytes instead of {log.segment_bytes}"
                yield LogFile(path, start + size, expected, header, reason)


def _present(log: SegmentFiles) -> Iterator[tuple[int, int]]:
    """(first position, bytes) of the files of a log that can be read, also of short ones."""
    for start in log.starts:
        yield start, log.segment_bytes
    for path, _ in log.strange:
        begin = segment_start(path.name)
        if begin is not None and path.is_file() and 0 < (size := path.stat().st_size) < log.segment_bytes:
            yield begin, size


def _lost_end(root: Path, files: tuple[LogFile, ...], bound: int, named_end: int) -> int:
    """The end of the records that queues name in newer files, which are missing or empty; the bound if there are none.

    A broker creates a file of the log before a queue names a record in it. So the files are listed again.
    """
    if not files or named_end <= bound:
        return bound
    with Logs(root) as logs:
        log, _ = logs.tail
        if not log.segment_bytes:
            return bound
        newest = log.starts[-1] if log.starts else log.first
        next_file = bound + (newest - bound) % log.segment_bytes
        most = next_file + _MOST_LOST_FILES * log.segment_bytes  # a damaged unit can name any position
        return named_end if next_file < named_end <= most and not _has_records(log, next_file) else bound


def _has_records(log: SegmentFiles, pos: int) -> bool:
    return log.start_of(pos) is not None and any(log.read(pos, 8) or b"")


def _with_lost(files: tuple[LogFile, ...], lost_end: int) -> tuple[LogFile, ...]:
    last = files[-1]
    if last.end >= lost_end:
        return files
    path = str(Path(last.path).parent / segment_name(last.end))
    return (*files, LogFile(path, last.end, lost_end, last.entry_header_bytes, MISSING))


class Logs:
    """The segments of a store, in one folder or two (a plain log that dledger continued). A context manager."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._stack = ExitStack()
        ledgers = sorted(path for path in root.glob("dledger-*/data") if path.is_dir())
        if len(ledgers) > 1:
            raise VolumeError(f"{root} has more than one dledger folder")
        plain = root / "commitlog"
        if not ledgers and not plain.is_dir():
            raise VolumeError(f"{root} is not a store: it has neither commitlog nor dledger-*/data")
        self.parts: list[tuple[SegmentFiles, int]] = []
        for folder, header in [(plain, 0), *((ledger, ENTRY_HEADER_BYTES) for ledger in ledgers)]:
            log = self._stack.enter_context(Segments(folder))
            if log.starts or folder in ledgers or not ledgers:
                self.parts.append((log, header))
        self.queues_end: int | None = None
        """The end of the last sound record that a queue knows; None: no queue knows one. `bound` determines it."""
        self.ends: QueueEnds | None = None
        """Where the queues end. `bound` determines it."""

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def named_end(self) -> int:
        """The greatest end of a record that a queue names, sound or not; -1: none. `bound` determines it."""
        return -1 if self.ends is None else self.ends.named_end

    @property
    def tail(self) -> tuple[SegmentFiles, int]:
        """The segments of the present layout."""
        return self.parts[-1]

    def sound_record_end(self, pos: int, size: int, topic: str, queue: int) -> int | None:
        """Returns the end of the record at `pos`; None: it is not sound, or is another record. It reads the body."""
        record = self.record_at(pos, check_crc=True)
        if record is not None and (record.size, record.topic, record.queue_id) == (size, topic, queue):
            return pos + size
        return None

    def record_at(self, pos: int, *, check_crc: bool = False) -> Record | None:
        """Returns the record at `pos`; None: it is not sound, or its segment no longer exists."""
        for log, header in self.parts:
            if log.start_of(pos - header) is not None:
                record = step_at(log, pos - header, entry_header_bytes=header, check_crc=check_crc).record
                if record is not None:
                    return record
        return None

    def bound(self) -> int:
        known = self.queues_end = self.known_to_queues()
        log, header = self.tail
        if header:
            hint = committed_end(log.folder)
            return max(-1 if known is None else known, -1 if hint is None else hint, log.first)
        if known is not None:
            return _walk(log, known)
        return self._end_by_reading()

    def known_to_queues(self) -> int | None:
        """Returns the end of the last record that a ConsumeQueue knows; None: no queue knows a sound one."""
        self.ends = ends_of_queues(self.root, self.tail[0].end)
        for number in self.ends.newest():
            each = self.ends[number]
            end = self.sound_record_end(each.pos, each.size, each.topic, each.queue)
            if end is not None:
                return end
        return None

    def _end_by_reading(self) -> int:
        """Returns the end of a plain log without queues: the end of its last sound record. The reader reports damage
        before it."""
        log, _ = self.tail
        end = pos = log.first
        while log.starts:
            end = _walk(log, pos)
            behind = resync(log, end)
            if behind is None:
                break
            pos = behind.pos
        return end


def ends_of_queues(root: Path, below: int = (1 << 63) - 1) -> QueueEnds:
    """`_kernel.queue_ends` of a store. Of one elsewhere, its broker tells them, or its queues are fetched. OSError."""
    if (told := told_queues()) is not None:
        return QueueEnds.told(told.ends, told.named_end)
    folder = root / "consumequeue"
    bring_folder(folder)
    return _kernel.queue_ends(folder, below)


def fullest_queues(ends: QueueEnds) -> tuple[Queue, ...]:
    """Returns the queues with the most units, in which boundaries of records are searched: a record in one of these is
    near enough to any position."""
    return tuple(ends.fullest(_MOST_FULLEST))


def _walk(log: SegmentFiles, pos: int) -> int:
    if log.start_of(pos) is None:
        return pos
    return _kernel.scan(str(log.folder), log.segment_bytes, pos, True).end
