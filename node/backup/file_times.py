"""Gives the ConsumeQueue files of a restored store the times of their last messages.

RocketMQ searches a queue by time in the first file that was changed at or after that time. Files that a restore has
just built would all be of now. tallystick does not use these times. The files of the log keep the time of the restore,
so that retention does not delete an old backup as soon as it is restored.
"""

from __future__ import annotations

import os
from pathlib import Path

from tallystick.node.backup.source import first_store_time
from tallystick.store.formats.queue_format import BLANK_UNIT_SIZE, UNIT, units_written
from tallystick.store.formats.segment_files import SegmentFiles
from tallystick.store.verify.queues import queue_folders

_HEAD_BYTES = 256


def set_queue_file_times(root: Path, log: SegmentFiles) -> None:
    """Sets the times of all ConsumeQueue files in `root`. `log`: the segments of the log. OSError."""
    for _, _, folder in queue_folders(root):
        with SegmentFiles(folder) as files:
            for start in files.starts:
                data = files.buffer(start)
                count = units_written(data)
                if not count:
                    continue
                pos, size, _ = UNIT.unpack_from(data, (count - 1) * UNIT.size)
                if size == BLANK_UNIT_SIZE:
                    continue
                time_ms = first_store_time(log.read(pos, min(size, _HEAD_BYTES)) or b"", 0)
                if time_ms:
                    os.utime(files.path(start), ns=(time_ms * 1_000_000, time_ms * 1_000_000))
