"""Reads the ConsumeQueues of a store from several threads, before a start reads them one after the other.

A start looks at each queue: two folders, an inode, its first and last units. After a restart of the machine, or when
other programs needed the memory, none of that is in the system's cache. 50 000 queues are then some 190 000 reads of a
page each, one at a time: 107 to 171 s on disks with other load. A disk that is asked for several pages at once gives
them several times as fast.

The threads stop early where nothing has to be read: what the system has in its cache costs only a sample.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from tallystick.store._kernel import read_ahead_queues

_LEAST_TOPICS = 1024
_THREADS = 16
_PIECE = 16
_MOST_CACHED = 4
"""A thread stops after so many pieces in a row of which the cache had everything."""


def read_ahead(folder: Path, least_topics: int = _LEAST_TOPICS) -> int:
    """Brings what a start needs of the queues in `folder` (consumequeue) into the cache; blocks.

    Returns how many topics were looked at: 0 if there are fewer than `least_topics`. What cannot be read is left for
    the start to tell.
    """
    try:
        with os.scandir(os.fsencode(folder)) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return 0
    if len(names) < least_topics:
        return 0
    # In the order of the folder, which most file systems make from hashes: each piece is a sample of all.
    pieces = _Pieces(names)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="read-ahead") as executor:
        done = [executor.submit(_read, folder, pieces) for _ in range(_THREADS)]
    return sum(each.result() for each in done)


class _Pieces:
    """Hands out the names, to one thread at a time."""

    def __init__(self, names: list[bytes]) -> None:
        self._pieces: Iterator[list[bytes]] = (names[at : at + _PIECE] for at in range(0, len(names), _PIECE))
        self._lock = Lock()

    def next(self) -> list[bytes]:
        """Empty: there are no more."""
        with self._lock:
            return next(self._pieces, [])


def _read(folder: Path, pieces: _Pieces) -> int:
    looked_at = cached = 0
    while cached < _MOST_CACHED and (piece := pieces.next()):
        cached = 0 if read_ahead_queues(folder, piece) else cached + 1
        looked_at += len(piece)
    return looked_at
