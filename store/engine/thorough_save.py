"""Makes derived files durable and records it: the steps that upkeep and `tally store repair` have in common.

    log synced ─▶ `sync_derived`: queues, index, checkpoint ─▶ progress mark ─▶ `save_table`: ends of the queues

The point is taken before the syncs, so the mark never claims more than is durable. The table is saved after the mark,
so it never describes more of the log than the mark does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.store.engine.recovery import geometry_of
from tallystick.store.formats.checkpoint import StoreCheckpoint
from tallystick.store.formats.progress import Point, ProgressKeeper, lock_time_ns
from tallystick.store.formats.queue_table import QueueTable

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, Door
    from tallystick.store.settings import StoreSettings

_NO_INDEX_MS = 2**63 - 1


def sync_derived(door: Door, path: Path, dispatch: Dispatch, checkpoint: StoreCheckpoint, point: Point) -> None:
    """Syncs queues and index, then saves the checkpoint to `path`. Sync the log before. Blocks. Raises OSError."""
    dispatch.sync()
    indexed_ms = _index_begin_ms(dispatch)
    checkpoint.index_timestamp_ms = dispatch.sync_index()
    checkpoint.physic_timestamp_ms = point.store_timestamp_ms
    checkpoint.logics_timestamp_ms = min(point.store_timestamp_ms, indexed_ms)
    checkpoint.save(door, path)


def save_table(door: Door, root: Path, dispatch: Dispatch, point: Point, rows: bytes, sizes: tuple[int, int]) -> None:
    """Saves the table of ends. `rows`: of `ProgressKeeper.take_with_table`. `sizes`: first byte of the log, bytes of a
    ConsumeQueue file. Blocks. OSError."""
    files = dispatch.index_files()
    index = tuple((file.name, file.end_pos) for file in files if 0 < file.end_pos < point.pos)
    QueueTable(point.pos, lock_time_ns(root), *sizes, index, rows).save(door, root)


def save_derived(
    door: Door, root: Path, settings: StoreSettings, dispatch: Dispatch, log_first: int, store_timestamp_ms: int
) -> None:
    """All of these steps for a store that no broker has open, whose log, queues and index are on the disk.

    `log_first`: first byte of the log; `store_timestamp_ms`: of its last record, if dispatch has read none. Blocks.
    OSError."""
    keeper = ProgressKeeper(door, root, geometry_of(settings), store_timestamp_ms)
    point, rows = keeper.take_with_table(dispatch)
    path = root / "checkpoint"
    sync_derived(door, path, dispatch, StoreCheckpoint.load(path), point)
    keeper.save(point, point)
    save_table(door, root, dispatch, point, rows, (log_first, settings.queue_segment_bytes))


def _index_begin_ms(dispatch: Dispatch) -> int:
    """Store time of the first entry in the newest index file: how far back RocketMQ has to go for its keys.

    After a kill RocketMQ throws away each index file that ends behind the checkpoint's index time, and builds it
    again only from the segment that the other times lead to: keys from before are lost (in its own stores, too;
    messageIndexSafe=false). With a time that old it begins early enough. Our recovery looks into the files.
    """
    begins = [file.begin_ms for file in dispatch.index_files() if file.begin_ms > 0]
    return begins[-1] if begins else _NO_INDEX_MS
