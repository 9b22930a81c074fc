"""The tables of a restored store: they agree with its log, although the log may end before they were read.

A plain store. Offsets behind the end of their queue become that end. If the log was cut (a point in time), what was
delivered behind the cut has to be delivered again: offsets of delayed messages and of transactions are taken from the
newest backup that ends before the cut, or are left out, so that the broker reads these queues from their begin.

A member. A snapshot from before the end of the log is enough: the log has all later changes. If the log was cut before
the snapshot, that of an older backup is used, or none if the log begins with its first entry. Otherwise the snapshot's
offsets are treated as those of a plain store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.node.broker.services.half import GROUP as TRANSACTION_GROUP
from tallystick.node.broker.tables.topics import SCHEDULE_TOPIC
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store import tables

OFFSETS, DELAYS = "consumerOffset.json", "delayOffset.json"
_ROWS = "offsetTable"
Ends = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class Clamped:
    """An offset that was behind the end of its queue."""

    row: str
    queue: int
    offset: int
    end: int

    def __str__(self) -> str:
        return f"{self.row} queue {self.queue}: offset {self.offset} is behind the end, {self.end} now"


def clamped_offsets(picture: Mapping[str, Any], ends: Ends) -> tuple[dict[str, Any], list[Clamped]]:
    """The table of committed offsets for queues that end at `ends`; a queue without a message ends at 0."""
    rows, found = {}, []
    for key, queues in picture.get(_ROWS, {}).items():
        topic = key.split("@", 1)[0]
        row = {}
        for queue, offset in queues.items():
            end = ends.get((topic, int(queue)), 0)
            row[queue] = min(offset, end)
            if offset > end:
                found.append(Clamped(key, int(queue), offset, end))
        rows[key] = row
    return {**picture, _ROWS: rows}, found


def clamped_delays(picture: Mapping[str, Any], ends: Ends) -> tuple[dict[str, Any], list[Clamped]]:
    """The table of delivered delayed messages, by level; level n has the queue n - 1."""
    rows, found = {}, []
    for level, offset in picture.get(_ROWS, {}).items():
        end = ends.get((SCHEDULE_TOPIC, int(level) - 1), 0)
        rows[level] = min(offset, end)
        if offset > end:
            found.append(Clamped(SCHEDULE_TOPIC, int(level) - 1, offset, end))
    return {**picture, _ROWS: rows}, found


def before_cut(pictures: dict[str, Any], older: Mapping[str, Any] | None) -> dict[str, Any]:
    """Pictures for a log that was cut before they were read. `older`: those of a backup that ends before the cut."""
    found = dict(pictures)
    if OFFSETS in found:
        rows = dict(found[OFFSETS].get(_ROWS, {}))
        old_rows = {} if older is None else older.get(OFFSETS, {}).get(_ROWS, {})
        for key in [key for key in rows if key.endswith(f"@{TRANSACTION_GROUP}")]:
            del rows[key]
            if key in old_rows:
                rows[key] = old_rows[key]
        found[OFFSETS] = {**found[OFFSETS], _ROWS: rows}
    if DELAYS in found:
        found[DELAYS] = {_ROWS: {}} if older is None or DELAYS not in older else older[DELAYS]
    return found


def decoded(contents: Mapping[str, bytes]) -> dict[str, Any]:
    """The tables by file name. `contents`: by path in the store."""
    return {
        path.removeprefix("config/"): tables.decode(data) for path, data in contents.items() if path.endswith(".json")
    }


def tables_at(
    snapshots: list[ReplicatedTables],
    index: int,
    base_index: int,
    is_cut: bool,
    older_pictures: Mapping[str, Any] | None,
) -> tuple[ReplicatedTables | None, bool]:
    """The snapshot from which a member's log, up to entry `index`, continues. None: the log has everything.

    `snapshots`: newest first. The flag: whether offsets had to be taken from a snapshot behind the cut.
    """
    usable = [found for found in snapshots if base_index <= found.applied_index <= index]
    if usable:
        return usable[0], False
    if base_index == -1 or not snapshots:
        return None, False
    pictures = before_cut(snapshots[0].pictures(), older_pictures)
    return ReplicatedTables(index, pictures), is_cut
