"""Tells a wrong setting from damaged files: with which size were the ConsumeQueue files of a store made?

A queue file always has its full length. A file of another length is either damaged, and is built again from the log, or
the store was made with another `mappedFileSizeConsumeQueue`, and a start has to be refused: building all queues again
takes the place of files that are sound.

The progress mark and the table of queues' ends have the size. Where neither is there, the files are asked: one file of
the expected length proves the setting, and one length that most of them share, a whole number of units, contradicts it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tallystick.store.file_sizes import lengths_of, segments_of
from tallystick.store.queue_format import UNIT


def size_of_another_setting(folder: Path, expected: int) -> int:
    """Bytes of the files in `folder` (consumequeue) if the store was made with another size than `expected`; else 0.

    Looks at one file where the setting is right. OSError.
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
