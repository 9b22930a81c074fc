"""Where the log of a new slave begins, if its master has deleted the first segments.

A store that is open begins at 0. So the slave writes the position into a file, and starts again: before the store is
opened, `begin` makes the first segment. A kill at any point leaves the file, or an empty log that begins there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tallystick.store.engine.segments import Segment, list_segments, prepare
from tallystick.store.tables import JsonTable

if TYPE_CHECKING:
    from tallystick.store._kernel import Door
    from tallystick.store.settings import StoreSettings

_logger = logging.getLogger("tallystick.broker")

_FILE = "tally-copy.json"
_UNWRITTEN = bytes(8)


def plan(door: Door, settings: StoreSettings, pos: int) -> None:
    """The next start begins an empty log at `pos`. Blocks. OSError."""
    _file(door, settings).save({"begin": pos})


def begin(door: Door, settings: StoreSettings) -> None:
    """Makes an empty log begin where it was planned; does nothing without a plan, or if the log has a record. Blocks.
    OSError; SegmentError: files of the log are wrong; TableError: the plan cannot be read."""
    planned = (_file(door, settings).load() or {}).get("begin")
    folder, segment_bytes = settings.log_folder, settings.mappedFileSizeCommitLog
    if not isinstance(planned, int) or planned % segment_bytes or not folder.is_dir():
        return
    segments = list_segments(folder, segment_bytes)
    if not all(_is_unwritten(each) for each in segments) or [each.start for each in segments[:1]] == [planned]:
        return
    _logger.info("the log begins at %d, where the master's does", planned)
    for each in reversed(segments):
        door.remove(str(each.path))
    door.sync_dir(str(folder))
    prepare(door, folder, planned, segment_bytes)


def _is_unwritten(segment: Segment) -> bool:
    with segment.path.open("rb") as opened:
        return opened.read(len(_UNWRITTEN)) == _UNWRITTEN


def _file(door: Door, settings: StoreSettings) -> JsonTable:
    return JsonTable(door, settings.root / "config" / _FILE)
