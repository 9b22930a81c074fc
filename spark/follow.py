"""Follows the bound of a growing store without a look at all of its queues each time.

`open_volume` reads a page of each queue, which takes a second with ten thousand queues. A stream asks for the bound at
each trigger. All that is before the last bound is settled, so only the log behind it must be looked at:

    plain layout     the records that follow the last bound without a gap
    dledger layout   of the entries that follow it, those up to the last one that its queue names, or that the log's
                     `checkpoint` says is committed

All queues are looked at again where this does not suffice: if much was written, if the log does not continue with a
sound record although it has data, if the last bound has expired, and once a minute. So a stream continues behind a
damaged part of the log.
"""

from __future__ import annotations

import bisect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.spark.presence import Segments
from tallystick.spark.scan import SplitScan
from tallystick.spark.splits import plan
from tallystick.spark.volume import Logs, Source, Volume, files_of, open_volume
from tallystick.store import _kernel, clock
from tallystick.store.formats.message import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from tallystick.store.formats.queue_format import UNIT
from tallystick.store.formats.segment_files import has_data
from tallystick.store.verify.dump import committed_end

_MOST_BYTES = 64 << 20
"""If more was written, a look at the queues costs less than the log."""
_LOOK_AGAIN_MS = 60_000
_PLACE = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "sys_flag")


class FollowedVolume:
    """One store in a folder in its present state, again and again."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.looks = 0
        """How often all queues were looked at."""
        self._committed = source.committed
        self._looked_ms = 0
        self._volume: Volume | None = None

    def now(self) -> Volume:
        """VolumeError, OSError."""
        found = None
        if self._volume is not None and clock.steady_ms() - self._looked_ms < _LOOK_AGAIN_MS:
            found = _followed(self._volume)
        if found is None:
            self.looks += 1
            self._looked_ms = clock.steady_ms()
            found = open_volume(Path(self.source.root), self.source.source, self._committed)
        self._volume = found if self._committed is None else None
        return found

    def until(self, end: int) -> Volume:
        """The store below a bound that was returned before. It does not look at queues. VolumeError, OSError."""
        volume = open_volume(Path(self.source.root), self.source.source, committed=end)
        return volume if self._volume is None else replace(volume, fullest=self._volume.fullest)


def _followed(volume: Volume) -> Volume | None:
    """Returns the volume in its present state; None: all queues must be looked at."""
    with Logs(Path(volume.root)) as logs:
        log, header = logs.tail
        last = volume.bound
        if volume.lost_end > last or log.start_of(last) is None or log.first % log.segment_bytes:
            return None
        upto = min(log.end, last + _MOST_BYTES)
        walked = _kernel.scan(str(log.folder), log.segment_bytes, last, not header, header, upto)
        if walked.end - last > _MOST_BYTES // 2 or walked.stopped not in (None, "unwritten"):
            return None
        if any(has_data(log.path(start), 0, 8) for start in log.starts if start > walked.end):
            return None
        files = tuple(files_of(logs))
        present = replace(volume, files=files, begin=files[0].start, bound=walked.end, lost_end=walked.end)
        if header:
            end = _dispatched(present, last, log.folder)
            present = replace(present, bound=end, lost_end=end)
        return present


def _dispatched(volume: Volume, begin: int, log: Path) -> int:
    """Returns the end of the last entry in [begin, bound) that its queue names, or that is known to be committed; else
    `begin`. Entries are dispatched in their order, after they are committed."""
    hint = committed_end(log)
    known = begin if hint is None else max(begin, min(hint, volume.bound))
    batches = [batch for split in plan(volume, known, volume.bound) for batch in SplitScan(split, _PLACE)]
    if not batches:
        return known
    table = pa.Table.from_batches(batches)
    kind = pc.bit_wise_and(table["sys_flag"], TRANSACTION_MASK)
    table = table.filter(pc.or_(pc.equal(kind, TRANSACTION_NONE), pc.equal(kind, TRANSACTION_COMMIT)))
    rows = range(table.num_rows)
    count = bisect.bisect_left(rows, True, key=lambda row: not _is_named(Path(volume.root), _row(table, row)))
    if not count:
        return known
    last = _row(table, count - 1)
    return int(last["physical_offset"]) + int(last["size"])


def _row(table: pa.Table, number: int) -> dict[str, Any]:
    return dict(table.slice(number, 1).to_pylist()[0])


def _is_named(root: Path, row: dict[str, Any]) -> bool:
    """Whether the record's queue has its unit."""
    with Segments(root / "consumequeue" / row["topic"] / str(row["queue_id"])) as files:
        at = row["queue_offset"] * UNIT.size
        start = files.start_of(at)
        if start is None:
            return False
        with files.units(start) as units:
            return units.unit((at - start) // UNIT.size)[:2] == (row["physical_offset"], row["size"])
