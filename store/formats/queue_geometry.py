"""Distinguishes a wrong setting from damaged files: with which size were the ConsumeQueue files created?

A queue file always has its full length. If a file has another length, either it is damaged and is rebuilt from the
log, or the store was created with another `mappedFileSizeConsumeQueue`. In the second case the start must be refused:
building all queues again would replace sound files.

The progress mark and the table of queues' ends contain the size. Without both, the files decide: one file of the
expected length confirms the setting. If most files share another length, a whole number of units, it is wrong.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tallystick.store.formats.file_sizes import lengths_of, segments_of
from tallystick.store.formats.queue_format import UNIT


def size_of_another_setting(folder: Path, expected: int) -> int:
    """The size of the files in `folder` (consumequeue) if the store was created with another one than `expected`; else
    0.

    Reads the length of only one file if the setting is right. Raises OSError.
    """
    lengths: Counter[int] = Counter()
    for length in lengths_of(segments_of(folder.glob("*/*/*"))):
        if length == expected:
            return 0
        lengths[length] += 1
    if not lengths:
        return 0
    length, count = lengths.most_common(1)[0]
    return length if length % UNIT.size == 0 and 2 * count > lengths.total() else 0
