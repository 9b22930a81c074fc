"""Builds what belongs to a converted log: ConsumeQueues, index, checkpoint, progress mark.

They are built from the new log, as a start builds them. The log alone does not show where a queue ends if its last
messages were deleted or left out, and no offset may be given out twice:

- The messages of an idle queue were deleted with the first segments of the log. It gets the units that it had in its
  last file. They name position 0, before the new log, as the old ones named positions before the old log. (Placeholders
  would mislead RocketMQ: it dispatches from the greatest end of a unit on, and theirs is at 2 GiB.)
- A queue whose last messages were left out because they are damaged gets placeholders up to its old end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.store.convert.source import ConvertError, Queue, QueueEnd
from tallystick.store.engine.inherited import sync_files
from tallystick.store.engine.recovery import KeptLog, log_layout, open_dispatch, recover
from tallystick.store.engine.thorough_save import save_derived
from tallystick.store.finding_log import FindingLog
from tallystick.store.formats.progress import FILE_NAME as PROGRESS_NAME
from tallystick.store.formats.queue_format import MAX_EXT_ADDRESS, UNIT
from tallystick.store.formats.queue_table import FILE_NAME as TABLE_NAME
from tallystick.store.settings import StoreSettings

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

_FOLDERS = ("consumequeue", "consumequeue_ext", "index")
_FILES = (PROGRESS_NAME, TABLE_NAME, "checkpoint")
_MOST_PLACEHOLDERS = 1 << 24


def remove_derived(door: Door, root: Path) -> None:
    """Removes everything that `build` makes. OSError."""
    for name in _FOLDERS:
        for folder, _, files in os.walk(root / name, topdown=False):
            for file in files:
                door.remove(Path(folder, file))
            Path(folder).rmdir()
    for name in _FILES:
        if (root / name).exists():
            door.remove(root / name)
    door.sync_dir(root)


def build(
    door: Door,
    settings: StoreSettings,
    end_pos: int,
    ends: Mapping[Queue, QueueEnd],
    progress: Callable[[int, int], None],
) -> dict[Queue, int]:
    """Builds and syncs everything in `settings.root` for the log of `settings`, which ends at `end_pos`.

    `ends`: where each queue ended. Returns the ends of the queues that needed placeholders to get there. Raises
    ConvertError, RecoveryError, DamageError or OSError.
    """
    root = settings.root
    _carry_idle(door, root, ends)
    folder, header_bytes = log_layout(root, settings)
    dispatch = open_dispatch(door, root, folder, settings, header_bytes)
    findings = FindingLog(root)
    kept = KeptLog(end_pos, end_pos)
    found = recover(root, settings, dispatch, door, clean=True, kept=kept, on_progress=progress, findings=findings)
    damage = found.damaged_ranges()
    if damage:
        raise ConvertError(f"the new log is damaged at byte {damage[0][0]}: {findings.listed()[-1]}")
    raised: dict[Queue, int] = {}
    have = {(row.topic, row.queue): row.max_offset for row in dispatch.queues()}
    for (topic, queue), known in sorted(ends.items()):
        name, end = topic.encode(errors="surrogateescape"), known.offset
        if have.get((name, queue), 0) >= end:
            continue
        if not dispatch.reserve(name, queue, end, _MOST_PLACEHOLDERS):
            raise ConvertError(
                f"{topic} queue {queue} ended at offset {end}, and the log ends {end - have.get((name, queue), 0)} "
                "offsets before: too many are missing"
            )
        raised[topic, queue] = end
    dispatch.correct_min_offsets(found.min_pos)
    dispatch.write_out()
    for part in _FOLDERS:
        sync_files(door, root / part)
    save_derived(door, root, settings, dispatch, found.min_pos, found.store_timestamp_ms)
    return raised


def _carry_idle(door: Door, root: Path, ends: Mapping[Queue, QueueEnd]) -> None:
    for (topic, queue), end in ends.items():
        if not end.is_idle:
            continue
        units = bytearray(end.file.read_bytes()[: end.units * UNIT.size])
        for at in range(0, len(units), UNIT.size):
            _, size, code = UNIT.unpack_from(units, at)
            UNIT.pack_into(units, at, 0, size, 0 if code <= MAX_EXT_ADDRESS else code)
        folder = root / "consumequeue" / topic / str(queue)
        door.mkdir(folder)
        door.create(folder / end.file.name, end.file.stat().st_size, False)
        door.write(folder / end.file.name, 0, bytes(units))


def settings_for(
    settings: StoreSettings, root: Path, layout: str, member: str, segment_bytes: int, suffix: str
) -> StoreSettings:
    """The settings of the old store for the new one in `root`. `suffix`: behind the name of the log's folder."""
    return replace(
        settings,
        storePathRootDir=str(root),
        storePathCommitLog=str(root / f"commitlog{suffix}"),
        mappedFileSizeCommitLog=segment_bytes,
        enableDLegerCommitLog=layout == "dledger",
        dLegerSelfId=f"{member}{suffix}" if layout == "dledger" else "",
    )
