"""Reports unreadable and damaged bytes that reads found, and passes them to the code that can repair them.

    kernel: a mapped page cannot be read ──▶ map_faults() grew ─┐
    kernel: a record that a pull met is damaged ────────────────┴▶ look ──▶ findings, metrics, /node
                                                                     ├──▶ on_damage(pos, end)  a group fetches the range
                                                                     └──▶ index files are made again from the log

`look` is cheap while nothing is wrong: it compares two counters. Otherwise it reads each range once more, separately,
so that the finding contains the error of the operating system. If the range can be read now, the error was temporary,
or the range was truncated and written again: the finding is a note, and the kernel maps the file again within a minute.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from tallystick.store._kernel import map_faults, take_unread
from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import FindingKind
from tallystick.store.formats.mapped import UNREADABLE
from tallystick.store.formats.segment_files import segment_name, segment_start

_BLOCK_BYTES = 4096


class MediaWatch:
    """Watches one store. `on_damage`: called with the first byte and the end of a damaged range of the log."""

    def __init__(self, findings: FindingLog, root: Path, log_folder: Path, segment_bytes: int) -> None:
        self.on_damage: list[Callable[[int, int], None]] = []
        self.is_being_repaired: Callable[[int], bool] = lambda pos: False
        """Whether the segment of the log that holds this byte is being repaired now."""
        self.unreadable_bytes = 0
        """Number of bytes that reads through maps could not get so far."""
        self._findings = findings
        self._root = root
        self._log_folder = log_folder
        self._segment_bytes = segment_bytes
        self._seen = 0

    @property
    def is_due(self) -> bool:
        """Whether reads found something since the last look."""
        return map_faults() != self._seen

    def look(self) -> tuple[list[tuple[int, int]], bool]:
        """Reports what reads found. Returns ranges of the log, and whether index files are affected. Blocks for the
        disk."""
        self._seen = map_faults()
        ranges, index = [], False
        apart = not self._log_folder.is_relative_to(self._root)
        met = [*take_unread(self._root), *(take_unread(self._log_folder) if apart else ())]
        for name, offset, size, _ in met:
            path = Path(name)
            self.unreadable_bytes += size
            pos = self._pos(path, offset)
            kind, reason = _read_again(path, offset, size)
            self._findings.add(kind, path, reason, offset=offset, size=size, pos=pos)
            if pos >= 0 and kind is FindingKind.DAMAGE:
                ranges.append((pos, pos + size))
            index = index or path.parent == self._root / "index"
        return ranges, index

    def met(self, pos: int, size: int) -> None:
        """A read found a damaged record of the log, which was not served. Call this on the event loop."""
        start = pos - pos % self._segment_bytes
        path = self._log_folder / segment_name(start)
        reason = "a read met a damaged record; it is not served"
        self._findings.add(FindingKind.DAMAGE, path, reason, offset=pos - start, size=size, pos=pos)
        self.tell(pos, pos + size)

    def tell(self, pos: int, end: int) -> None:
        """The range of the log is damaged: a group repairs it. Call this on the event loop."""
        for call in self.on_damage:
            call(pos, end)

    def _pos(self, path: Path, offset: int) -> int:
        start = segment_start(path.name) if path.parent == self._log_folder else None
        return -1 if start is None else start + offset


def _read_again(path: Path, offset: int, size: int) -> tuple[FindingKind, str]:
    """Reads the range again and returns what the operating system reports."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return FindingKind.NOTE, f"{UNREADABLE}; the file was removed since"
    except OSError as error:
        return FindingKind.DAMAGE, f"{UNREADABLE}: {error.strerror}"
    try:
        for at in range(offset, offset + size, _BLOCK_BYTES):
            if not os.pread(descriptor, min(_BLOCK_BYTES, offset + size - at), at):
                return FindingKind.DAMAGE, f"{UNREADABLE}: the file has only {os.fstat(descriptor).st_size} bytes"
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error.errno))
        return FindingKind.DAMAGE, f"{UNREADABLE}: {error.strerror} ({name})"
    finally:
        os.close(descriptor)
    return FindingKind.NOTE, "could not be read before and can be read now: a passing error, or it was written again"
