"""Creates a backup of a store: an object for each new piece of the log, the tables, and the manifest last.

    announce ─▶ offsets ─▶ end of the log ─▶ topics ─▶ pieces that no backup has ─▶ check ─▶ manifest

A backup shares the pieces of the previous one, if the store still is the one of that backup: its last shared piece is
read and compared as a whole, and the begin of each segment. In a group the chain of CRCs makes the comparison of the
last piece one of the whole log, so the backups of all members share pieces.

Each object is read back after it was stored, and compared. Until the manifest is stored there is no backup: a killed
run leaves objects, which the next run uses, and its announcement in `running/`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from tallystick.node.backup.errors import BackupError, DamagedBackupError, KeyFileError, PlaceError
from tallystick.node.backup.manifest import (
    GroupFacts,
    LogPiece,
    Manifest,
    StoredObject,
    Table,
    ids_of,
    load,
    log_name,
    new_id,
    table_name,
)
from tallystick.node.backup.pieces import HEAD_BYTES, SegmentReader, Throttle, pieces_of
from tallystick.node.backup.places import Place
from tallystick.node.backup.seals import Seal
from tallystick.node.backup.source import METADATA, SourceStore, first_store_time
from tallystick.replication.metadata import snapshot
from tallystick.store import _kernel
from tallystick.store.clock import wall_ms
from tallystick.store.findings import Progress

_logger = logging.getLogger("tallystick.broker.backup")
_ATTEMPTS = 3
DELETING = "deleting"


@dataclass(slots=True)
class Outcome:
    """What a run did. `notes`: what is unusual and loses nothing, for people."""

    manifest: Manifest
    new_bytes: int
    shared_bytes: int
    notes: list[str] = field(default_factory=list)


class BackupRun:
    """One run. `committed()`: asks the broker for its settled end; None: the files determine it."""

    def __init__(
        self,
        source: SourceStore,
        place: Place,
        seal: Seal,
        *,
        throttle: Throttle,
        committed: Callable[[], int] | None = None,
        progress: Progress | None = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._source, self._place, self._seal = source, place, seal
        self._throttle, self._committed, self._progress = throttle, committed, progress
        self._folder = source.name.folder
        self._created_ms = now_ms()
        self.id = new_id(self._created_ms)
        self._notes: list[str] = []
        self._present: dict[str, int] = {}
        self._new_bytes = self._shared_bytes = 0
        self._damage: list[tuple[int, int, str]] = []
        self._pieces: list[LogPiece] = []

    def run(self) -> Outcome:
        """Runs to the end. Raises BackupError (also if a place fails), OSError (the source cannot be read)."""
        announcement = f"{self._folder}/running/{self.id}.json"
        self._store(announcement, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())
        try:
            if any(self._place.names(f"{self._folder}/{DELETING}")):
                raise BackupError(
                    f"{self._place.text}: a deletion of backups of {self._source.name} is running, or was killed: "
                    "wait for it, or run it again with --force"
                )
            return self._run()
        finally:
            with suppress(PlaceError):  # the next deletion reports it
                self._place.remove(announcement)

    def _run(self) -> Outcome:
        source = self._source
        previous = self._previous()
        prefix = f"{self._folder}/"
        self._present = {
            name.removeprefix(prefix): size
            for part in ("log", "tables")
            for name, size in self._place.names(f"{prefix}{part}").items()
        }
        contents = dict(source.tables_before())
        begin, group = self._begin()
        end = source.end(None if self._committed is None else self._committed())
        contents |= dict(source.tables_after())
        if end <= begin:
            raise BackupError(f"{source.root} has no messages: there is nothing to back up")
        kept = self._shared(previous, begin, end)
        begin, group = self._copy(kept, begin, end, group)
        self._check_snapshot(contents, group)
        tables = [self._table(file, content) for file, content in sorted(contents.items())]
        manifest = Manifest(
            id=self.id,
            cluster=source.name.cluster,
            broker=source.name.broker,
            created_ms=self._created_ms,
            segment_bytes=source.segment_bytes,
            begin=begin,
            committed=end,
            last_store_ms=self._last_store_ms(begin, end),
            sizes=source.sizes,
            log=self._pieces,
            tables=tables,
            group=group,
            damage=self._damage,
            previous=previous.id if previous is not None and kept else None,
            new_bytes=self._new_bytes,
            key_id=self._seal.key_id,
        )
        self._check_present(manifest)
        self._store(f"{self._folder}/{manifest.name}", manifest.encode(self._seal))
        return Outcome(manifest, self._new_bytes, self._shared_bytes, self._notes)

    def _check_snapshot(self, contents: Mapping[str, bytes], group: GroupFacts | None) -> None:
        """A member starts only if its tables reach the begin of its log."""
        if group is not None and group.base_index >= 0:
            applied = snapshot.decode(contents[METADATA]).applied_index if METADATA in contents else -1
            if applied < group.base_index:
                raise BackupError(
                    f"{self._source.root}: the log begins behind entry {group.base_index} now, and the tables were "
                    f"saved at entry {applied}: run the backup again"
                )

    def _begin(self) -> tuple[int, GroupFacts | None]:
        """The begin of the log, and what belongs to it, although retention may move it meanwhile."""
        for attempt in range(_ATTEMPTS):
            begin = self._source.begin()
            try:
                return begin, self._source.group_facts(begin)
            except BackupError:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    # -- what the previous backup has ----------------------------------------------------------------------------------

    def _previous(self) -> Manifest | None:
        for backup_id in reversed(ids_of(self._place, self._source.name)):
            try:
                return load(self._place, self._source.name, backup_id, self._seal)
            except KeyFileError:
                self._notes.append(f"shares nothing with {backup_id}, which was made with another key or without one")
                return None
            except DamagedBackupError as error:
                self._notes.append(f"shares nothing with a damaged backup: {error}")
        return None

    def _shared(self, previous: Manifest | None, begin: int, end: int) -> list[LogPiece]:
        """The pieces of the previous backup that this one shares."""
        if previous is None:
            return []
        pieces = [piece for piece in previous.log if piece.start >= begin and piece.end <= end]
        if not pieces or pieces[0].start != begin or previous.segment_bytes != self._source.segment_bytes:
            self._notes.append(f"shares nothing with {previous.id}, which has another part of the log")
            return []
        differs = self._difference(pieces, begin)
        if differs is not None:
            self._notes.append(
                f"shares nothing with {previous.id}: the store is another one, byte {differs} of the log differs"
            )
            return []
        return [piece for piece in pieces if self._present.get(piece.name) == piece.bytes]

    def _difference(self, pieces: list[LogPiece], begin: int) -> int | None:
        """Where the store differs from these pieces; None: it is the store of the backup."""
        for piece in [*pieces[-1:], *pieces[:-1]]:
            last = piece is pieces[-1]
            in_segment = (piece.start - begin) % self._source.segment_bytes
            if not last and in_segment:
                continue
            size = piece.end - piece.start if last else min(HEAD_BYTES, piece.end - piece.start)
            try:
                with SegmentReader(self._source.path(piece.start - in_segment), direct=True) as reader:
                    content = reader.read(in_segment, size, self._throttle)
            except FileNotFoundError:
                continue  # retention: `_copy` begins later
            if self._seal.digest(content) != (piece.digest if last else piece.head):
                return piece.start
        return None

    # -- copying -------------------------------------------------------------------------------------------------------

    def _copy(
        self, kept: list[LogPiece], begin: int, end: int, group: GroupFacts | None
    ) -> tuple[int, GroupFacts | None]:
        """Fills `_pieces` with [begin, end). Returns where the log begins now, and what belongs to it."""
        shared = {piece.start: piece for piece in kept}
        pos = begin
        while pos < end:
            if (piece := shared.get(pos)) is not None:
                self._pieces.append(piece)
                self._shared_bytes += piece.end - piece.start
                pos = piece.end
                continue
            segment = pos - (pos - begin) % self._source.segment_bytes
            stop = min([end, segment + self._source.segment_bytes, *(at for at in shared if at > pos)])
            try:
                self._copy_part(segment, pos, stop, begin, end)
                pos = stop
            except FileNotFoundError as error:
                later, group = self._begin()
                if later <= segment or later >= end:
                    raise BackupError(
                        f"{error.filename}: the file disappeared, and the log does not begin later"
                    ) from None
                self._notes.append(
                    f"retention deleted the log before byte {later} during the backup, which begins there"
                )
                self._pieces = [piece for piece in self._pieces if piece.start >= later]
                begin = pos = later
        return begin, group

    def _copy_part(self, segment: int, pos: int, stop: int, begin: int, end: int) -> None:
        """Copies a part of one segment."""
        source = self._source
        sealed = segment + source.segment_bytes <= end
        with SegmentReader(source.path(segment), direct=sealed) as reader:
            self._look_for_damage(segment, pos, stop, sealed)
            for start, behind in pieces_of(pos, stop, segment, source.segment_bytes):
                content = reader.read(start - segment, behind - start, self._throttle)
                digest = self._seal.digest(content)
                stored = self._stored(log_name(start, behind, digest), content, digest)
                self._pieces.append(
                    LogPiece(
                        stored.name,
                        stored.bytes,
                        stored.sha256,
                        stored.digest,
                        start,
                        behind,
                        self._seal.digest(content[:HEAD_BYTES]),
                        first_store_time(content, source.header_bytes) if start == segment else 0,
                    )
                )
                if self._progress is not None:
                    self._progress("backup", behind - begin, end - begin)

    def _look_for_damage(self, segment: int, pos: int, stop: int, sealed: bool) -> None:
        """A backup of damaged records would replace sound ones when the older backups are deleted."""
        source = self._source
        if sealed:
            found = source.damage_in(segment, pos, stop, self._throttle)
        else:
            scan = _kernel.scan(str(source.log_folder), source.segment_bytes, pos, True, source.header_bytes, stop)
            found = [] if scan.end >= stop else [(scan.end, 0, scan.stopped or "the files end")]
        if found and source.is_member:
            at, _, reason = found[0]
            raise DamagedBackupError(
                f"{source.path(segment)} is damaged at byte {at} of the log ({reason}): the member fetches these "
                "entries from another member when it runs; back up another member meanwhile"
            )
        self._damage += found

    # -- objects -------------------------------------------------------------------------------------------------------

    def _table(self, file: str, content: bytes) -> Table:
        digest = self._seal.digest(content)
        stored = self._stored(table_name(digest), content, digest)
        return Table(stored.name, stored.bytes, stored.sha256, stored.digest, file)

    def _stored(self, name: str, content: bytes, digest: str) -> StoredObject:
        """Stores an object, unless a backup or an interrupted run has stored it."""
        if name in self._present:
            with suppress(PlaceError, DamagedBackupError):  # store it again
                data = self._place.read(f"{self._folder}/{name}")
                if self._seal.opened(name, data) == content:
                    return StoredObject(name, len(data), hashlib.sha256(data).hexdigest(), digest)
        data = self._seal.sealed(name, content)
        self._store(f"{self._folder}/{name}", data)
        self._present[name] = len(data)
        self._new_bytes += len(data)
        return StoredObject(name, len(data), hashlib.sha256(data).hexdigest(), digest)

    def _store(self, name: str, data: bytes) -> None:
        """Stores an object and reads it back."""
        for _ in range(_ATTEMPTS):
            self._place.write(name, data)
            found = self._place.read(name)
            if found == data:
                return
            _logger.warning("%s: %s is not what was stored, storing it again", self._place.text, name)
        raise DamagedBackupError(
            f"{self._place.text}: {name} has other bytes than were stored, {_ATTEMPTS} times: nothing is kept there"
        )

    def _check_present(self, manifest: Manifest) -> None:
        """All objects are there, also those that only other runs have seen."""
        prefix = f"{self._folder}/"
        present: dict[str, int] = {}
        for part in ("log", "tables"):
            present |= self._place.names(f"{prefix}{part}")
        missing = missing_objects(manifest.objects, {name.removeprefix(prefix): size for name, size in present.items()})
        if missing:
            raise DamagedBackupError(f"{self._place.text}: {prefix}{missing[0]} disappeared during the backup")

    def _last_store_ms(self, begin: int, end: int) -> int:
        """The store time of the last record in the newest segment; 0: not known."""
        source = self._source
        segment = end - 1 - (end - 1 - begin) % source.segment_bytes
        found = _kernel.scan(str(source.log_folder), source.segment_bytes, segment, False, source.header_bytes, end)
        return found.last_store_timestamp_ms


def missing_objects(objects: Iterable[StoredObject], present: dict[str, int]) -> list[str]:
    """Returns the names of objects that are not there with their size."""
    return [each.name for each in objects if present.get(each.name) != each.bytes]
