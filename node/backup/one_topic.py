"""Restores the messages of one topic as the store of a broker without a group.

The new store has all messages of the topic that the backup has, up to the point, in the order of the log: the same
queue, queue offset, body, properties, keys, tags and times. Their positions in the log are new, so message ids that
contain a position (`offsetMsgId`) are new as well. It has the topic's settings, the offsets that consumer groups have
committed for it, and the settings of these groups.

It has nothing of other topics: no messages that wait for delivery (delays, timers), no open transactions, no retries or
dead letters (they are topics of their own: restore `%RETRY%group` or `%DLQ%group`).

The log is read once, a piece at a time, and nothing but the new store is written to the disk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tallystick.node.backup import restored_tables
from tallystick.node.backup.errors import BackupError, DamagedBackupError
from tallystick.node.backup.file_times import set_queue_file_times
from tallystick.node.backup.manifest import LogPiece, Manifest
from tallystick.node.backup.objects import Objects
from tallystick.node.backup.places import Place
from tallystick.node.backup.positions import Raw, raw_at, topic_of
from tallystick.node.backup.restore import Point, Restored, prepare_folder
from tallystick.node.backup.seals import Seal
from tallystick.node.backup.source import METADATA
from tallystick.replication.metadata import snapshot
from tallystick.replication.metadata.entry import MetadataError
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store import tables
from tallystick.store._kernel import Door
from tallystick.store.engine import restoring
from tallystick.store.findings import Progress
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES, EntryHeader, EntryKind
from tallystick.store.formats.record import BLANK_BYTES, BLANK_MAGIC, Record, RecordError
from tallystick.store.formats.segment_files import SegmentFiles, segment_name
from tallystick.store.replace_file import replace_file
from tallystick.store.verify.repair import StoreRepair

_POSITION_AT = 28
_WRITE_BYTES = 4 << 20
_MOST_NOTES = 20


class NewLog:
    """Writes records one after the other into a plain log. OSError."""

    def __init__(self, folder: Path, segment_bytes: int, door: Door) -> None:
        self._folder, self._size, self._door = folder, segment_bytes, door
        self._waiting: list[bytes] = []
        self._written = 0
        self.end = 0
        door.mkdir(folder)

    def append(self, record: bytes) -> None:
        """Adds a record, with its new position in it."""
        left = self._size - self.end % self._size
        if len(record) + BLANK_BYTES > left:
            if len(record) + BLANK_BYTES > self._size:
                raise BackupError(f"a record of {len(record)} bytes does not fit into a segment of {self._size}")
            self._put(struct.pack(">ii", left, BLANK_MAGIC).ljust(left, b"\0"))
        self._put(record[:_POSITION_AT] + struct.pack(">q", self.end) + record[_POSITION_AT + 8 :])

    def _put(self, data: bytes) -> None:
        if self.end % self._size == 0:
            self.flush()
            self._door.create(self._folder / segment_name(self.end), self._size, True)
        self._waiting.append(data)
        self.end += len(data)
        if self.end - self._written >= _WRITE_BYTES or self.end % self._size == 0:
            self.flush()

    def flush(self) -> None:
        """Makes everything durable."""
        if self._waiting:
            segment = self._written - self._written % self._size
            path = self._folder / segment_name(segment)
            self._door.write(path, self._written - segment, b"".join(self._waiting))
            self._door.sync(path)
            self._waiting.clear()
            self._written = self.end
        self._door.sync_dir(self._folder)


class TopicRestore:
    """One run. See the module's docstring."""

    def __init__(
        self,
        manifest: Manifest,
        place: Place,
        seal: Seal,
        root: Path,
        topic: str,
        *,
        point: Point | None = None,
        progress: Progress | None = None,
        door: Door | None = None,
    ) -> None:
        self._manifest, self._root, self._topic = manifest, root, topic
        self._objects = Objects(place, manifest, seal)
        self._point, self._progress = point or Point(), progress
        self._door = door or Door()
        self._header_bytes = 0 if manifest.group is None else ENTRY_HEADER_BYTES
        self._result = Restored(manifest.begin, manifest.begin)
        self._metadata: ReplicatedTables | None = None

    def run(self) -> Restored:
        """Runs to the end. BackupError: it is not possible, or the backup is damaged; OSError: the folder's disk."""
        contents = {table.file: self._objects.read(table) for table in self._manifest.tables}
        if self._manifest.group is not None:
            self._metadata = snapshot.decode(contents[METADATA]) if METADATA in contents else ReplicatedTables()
        prepare_folder(self._root, self._door)
        log = NewLog(self._root / "commitlog", self._manifest.segment_bytes, self._door)
        for record in self._records():
            log.append(record)
            self._result.messages += 1
        log.flush()
        if not self._result.messages:
            raise BackupError(f"the backup has no messages of the topic {self._topic} up to there")
        pictures = self._metadata.pictures() if self._metadata is not None else restored_tables.decoded(contents)
        self._derive(pictures)
        restoring.mark_complete(self._root, self._door)
        return self._result

    # -- reading -------------------------------------------------------------------------------------------------------

    def _records(self) -> Iterator[bytes]:
        """The records of the topic up to the point. Applies the changes of a group's tables on the way."""
        wanted = self._topic.encode()
        for pos, raw, data in self._raw():
            end = pos + raw.end - raw.at
            late = self._point.time_ms is not None and not raw.is_filler and raw.store_ms > self._point.time_ms
            if late or (self._point.offset is not None and end > self._point.offset):
                return
            self._result.end = end
            if raw.is_filler:
                continue
            record = data[raw.record_at : raw.end]
            if self._metadata is not None:
                self._apply(data[raw.at : raw.record_at], record)
            if topic_of(record) == wanted and self._is_sound(pos, record):
                yield record

    def _raw(self) -> Iterator[tuple[int, Raw, bytes]]:
        """(position, record, buffer) of all records and fillers."""
        size, begin = self._manifest.segment_bytes, self._manifest.begin
        data, pos = b"", begin
        for piece in self._manifest.log:
            data += self._objects.read(piece)
            at = 0
            while True:
                left = size - (pos - begin) % size
                try:
                    raw = raw_at(data, at, len(data), left, self._header_bytes)
                except DamagedBackupError as error:
                    self._note(pos, f"{error}; the rest of the segment is skipped")
                    raw = Raw(at, at + left, at, True, 0)
                if raw is None:
                    break
                if raw.end > len(data):
                    break  # a filler: its rest is in the next piece
                yield pos, raw, data
                at, pos = raw.end, pos + raw.end - raw.at
            data = data[at:]
            self._report(piece)

    def _report(self, piece: LogPiece) -> None:
        if self._progress is not None:
            begin = self._manifest.begin
            self._progress("restore", piece.end - begin, self._manifest.committed - begin)

    def _is_sound(self, pos: int, record: bytes) -> bool:
        try:
            Record.decode(record, check_crc=True)
        except RecordError as error:
            self._note(pos, error.reason)
            return False
        return True

    def _note(self, pos: int, reason: str) -> None:
        self._result.damaged += 1
        if self._result.damaged <= _MOST_NOTES:
            self._result.notes.append(f"damage at byte {pos} of the log: {reason}")

    def _apply(self, header: bytes, record: bytes) -> None:
        entry = EntryHeader.decode(header)
        if entry.channel == EntryKind.METADATA and self._metadata is not None:
            try:
                self._metadata.apply(entry.log_index, Record.decode(record).body)
            except MetadataError as error:
                raise DamagedBackupError(f"entry {entry.log_index} of the log: {error}") from error

    # -- writing -------------------------------------------------------------------------------------------------------

    def _derive(self, pictures: dict[str, Any]) -> None:
        self._door.mkdir(self._root / "config")
        for name, picture in self._tables(pictures).items():
            replace_file(self._door, self._root / "config" / name, tables.encode(picture))
        with StoreRepair.opened(self._root, self._manifest.sizes, restoring=True, door=self._door) as repair:
            repair.run(repair.look(self._progress), progress=self._progress)
            after = repair.look(self._progress)
            with SegmentFiles(self._root / "commitlog", self._manifest.segment_bytes) as log:
                set_queue_file_times(self._root, log)
            offsets = self._tables(pictures)[restored_tables.OFFSETS]
            offsets, clamped = restored_tables.clamped_offsets(offsets, after.ends)
            self._result.notes += [str(each) for each in clamped]
            path = self._root / "config" / restored_tables.OFFSETS
            replace_file(self._door, path, tables.encode(offsets))
        self._result.damaged += after.report.damaged
        self._result.notes += [f"damage: {finding}" for finding in after.report.damage[:_MOST_NOTES]]

    def _tables(self, pictures: dict[str, Any]) -> dict[str, Any]:
        """The rows of the topic, and of the groups that have consumed it."""
        topics = pictures.get("topics.json", {})
        rows = {name: row for name, row in topics.get("topicConfigTable", {}).items() if name == self._topic}
        if not rows:
            self._result.notes = [*self._result.notes, f"the backup has no settings of the topic {self._topic}"][-1:]
        offsets = pictures.get(restored_tables.OFFSETS, {}).get("offsetTable", {})
        kept = {
            key: {int(queue): offset for queue, offset in queues.items()}
            for key, queues in offsets.items()
            if key.split("@", 1)[0] == self._topic
        }
        groups = {key.split("@", 1)[1] for key in kept if "@" in key}
        every = pictures.get("subscriptionGroup.json", {}).get("subscriptionGroupTable", {})
        return {
            "topics.json": {**topics, "topicConfigTable": rows},
            "subscriptionGroup.json": {
                **pictures.get("subscriptionGroup.json", {}),
                "subscriptionGroupTable": {name: row for name, row in every.items() if name in groups},
            },
            restored_tables.OFFSETS: {"offsetTable": kept},
        }
