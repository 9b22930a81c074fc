"""Restores a backup into an empty folder.

    mark ─▶ log ─▶ cut ─▶ member: membership ─▶ tables ─▶ ConsumeQueues, index ─▶ offsets ─▶ check ─▶ mark removed

Everything is durable before the mark `tally-restoring` is removed, and no process opens a store with the mark. A
restore that was interrupted is run again in an empty folder.

The store of a member becomes the first member of a new group, which has the identity that the caller gives: this member
is its only voter, in a term that no member of the old group believes (`replication/member/sole_voter.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tallystick.node.backup import restored_tables
from tallystick.node.backup.errors import BackupError, DamagedBackupError
from tallystick.node.backup.file_times import set_queue_file_times
from tallystick.node.backup.manifest import GroupFacts, LogPiece, Manifest, ids_of, load
from tallystick.node.backup.objects import Objects
from tallystick.node.backup.places import Place
from tallystick.node.backup.positions import cut_at
from tallystick.node.backup.seals import Seal
from tallystick.node.backup.source import METADATA
from tallystick.replication.ledger.mark import EntryPoint, LedgerMark
from tallystick.replication.ledger.vote import Identity
from tallystick.replication.member.origin import Origin
from tallystick.replication.member.recovered import RESTORED
from tallystick.replication.member.sole_voter import OfflineMember
from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.replication.metadata import snapshot
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store import tables
from tallystick.store._kernel import Door
from tallystick.store.clock import wall_ms
from tallystick.store.engine import restoring
from tallystick.store.engine.zeroing import zero_behind
from tallystick.store.findings import Progress
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES
from tallystick.store.formats.progress import boot_id
from tallystick.store.formats.segment_files import SegmentFiles, segment_name
from tallystick.store.replace_file import replace_file
from tallystick.store.tables import JsonTable
from tallystick.store.verify.repair import StoreRepair

_IGNORED = {"lost+found"}


@dataclass(frozen=True, slots=True)
class Point:
    """Up to where the log is restored: to the last record that ends at or before `offset` and was stored until
    `time_ms`."""

    offset: int | None = None
    time_ms: int | None = None

    @property
    def is_end(self) -> bool:
        """Whether the whole log is restored."""
        return self.offset is None and self.time_ms is None


@dataclass(slots=True)
class Restored:
    """What was restored: the part [begin, end) of the log. `notes`: what users have to know."""

    begin: int
    end: int
    messages: int = 0
    notes: list[str] = field(default_factory=list)
    damaged: int = 0

    def to_json(self, backup: str) -> dict[str, Any]:
        """For programs. `backup`: the id of the backup."""
        found = {"backup": backup, "begin": self.begin, "end": self.end, "messages": self.messages}
        return found | {"sound": not self.damaged, "notes": self.notes}


class Restore:
    """One run. `identity`: of the first member of the new group, for the backup of a member."""

    def __init__(
        self,
        manifest: Manifest,
        place: Place,
        seal: Seal,
        root: Path,
        *,
        point: Point | None = None,
        identity: Identity | None = None,
        progress: Progress | None = None,
        door: Door | None = None,
    ) -> None:
        self.manifest, self.root = manifest, root
        self._place, self._seal = place, seal
        self._objects = Objects(place, manifest, seal)
        self._point = point or Point()
        self._progress = progress
        self._door = door or Door()
        facts = manifest.group
        if facts is not None and identity is None:
            identity = Identity(manifest.cluster, facts.group, facts.member)
        self._identity = None if facts is None else identity
        self._header_bytes = 0 if facts is None else ENTRY_HEADER_BYTES
        self._result = Restored(manifest.begin, manifest.committed)

    @property
    def _log_folder(self) -> Path:
        if self._identity is None:
            return self.root / "commitlog"
        return self.root / f"dledger-n{self._identity.member}" / "data"

    def run(self, ignored: frozenset[str] = frozenset()) -> Restored:
        """Runs to the end. BackupError: it is not possible, or the backup is damaged; OSError: the folder's disk.

        `ignored`: files that the folder may contain.
        """
        self._check_point()
        prepare_folder(self.root, self._door, ignored)
        pieces = self._wanted()
        self._write_log(pieces)
        end = self._cut(pieces)
        self._result.end = end
        contents = {table.file: self._objects.read(table) for table in self.manifest.tables}
        if self._identity is not None:
            self._make_group(self.manifest.group, self._identity, end)
            contents = self._member_tables(contents)
        for file, content in contents.items():
            self._write_file(file, content)
        self._derive()
        restoring.mark_complete(self.root, self._door)
        return self._result

    def _check_point(self) -> None:
        manifest, offset = self.manifest, self._point.offset
        if offset is not None and not manifest.begin < offset <= manifest.committed:
            raise BackupError(
                f"the backup has the log from {manifest.begin} to {manifest.committed}, not byte {offset}"
            )

    # -- the log -------------------------------------------------------------------------------------------------------

    def _wanted(self) -> list[LogPiece]:
        """The pieces up to the point; of a time, up to the end of the last segment that begins before it."""
        offset, time_ms = self._point.offset, self._point.time_ms
        late = [piece.start for piece in self.manifest.log if time_ms is not None and piece.time_ms > time_ms]
        stop = min([*late, self.manifest.committed if offset is None else offset])
        pieces = [piece for piece in self.manifest.log if piece.start < stop]
        if not pieces:
            raise BackupError("the log of the backup has no record up to there")
        return pieces

    def _write_log(self, pieces: list[LogPiece]) -> None:
        folder, size, begin = self._log_folder, self.manifest.segment_bytes, self.manifest.begin
        self._door.mkdir(folder)
        total = pieces[-1].end - begin
        for piece in pieces:
            segment = piece.start - (piece.start - begin) % size
            path = folder / segment_name(segment)
            if piece.start == segment:
                self._door.create(path, size, True)
            content = self._objects.read(piece)
            if len(content) != piece.end - piece.start:
                raise DamagedBackupError(f"{piece.name} has {len(content)} bytes")
            self._door.write(path, piece.start - segment, content)
            if piece.end == segment + size or piece is pieces[-1]:
                self._door.sync(path)
            if self._progress is not None:
                self._progress("restore", piece.end - begin, total)
        self._door.sync_dir(folder)

    def _cut(self, pieces: list[LogPiece]) -> int:
        """Removes what is behind the point. Returns the end of the log."""
        point, end = self._point, pieces[-1].end
        if point.is_end:
            return end
        hints = [each.start for each in pieces if each.time_ms and each.time_ms <= (point.time_ms or each.time_ms)]
        first = max(hints, default=self.manifest.begin)
        if point.offset is not None:
            first = min(first, point.offset - (point.offset - self.manifest.begin) % self.manifest.segment_bytes)
        with SegmentFiles(self._log_folder, self.manifest.segment_bytes) as log:
            pos = cut_at(log, end, self._header_bytes, offset=point.offset, time_ms=point.time_ms, from_segment=first)
            for start in reversed(log.starts):
                if start >= pos and start != log.first:
                    self._door.remove(log.path(start))
                elif start + log.segment_bytes > pos:
                    zero_behind(self._door, log.path(start), max(0, pos - start))
        self._door.sync_dir(self._log_folder)
        return pos

    # -- a member ------------------------------------------------------------------------------------------------------

    def _make_group(self, facts: GroupFacts | None, identity: Identity, end: int) -> None:
        """Makes the log that of the first member of a new group, and checks all of its entries."""
        assert facts is not None, "a member has an identity"
        folder, door = self._log_folder.parent, self._door
        base = EntryPoint(facts.base_index, facts.base_term, facts.base_chain, self.manifest.begin)
        mark = LedgerMark(
            self.manifest.segment_bytes,
            facts.index_segment_bytes,
            secrets.token_bytes(16),
            boot_id(),
            base=base,
            synced=base,
        )
        mark.save(door, folder)
        origin = MembershipEntry(facts.origin_index, Membership.of(facts.origin_voters, facts.origin_learners))
        Origin(origin if origin.membership.voters else None, asynchronous=False).save(door, folder)
        with OfflineMember(folder, door, identity) as member:
            if member.end_pos != end:
                raise DamagedBackupError(f"the entries of the log end at byte {member.end_pos}, not at {end}")
            self._last_index = member.standing().last_index
            member.make_sole_voter(RESTORED, wall_ms(), least_term=facts.term)

    def _member_tables(self, contents: dict[str, bytes]) -> dict[str, bytes]:
        facts = self.manifest.group
        assert facts is not None
        own = contents.pop(METADATA, None)
        snapshots = [] if own is None else [snapshot.decode(own)]
        older: Mapping[str, Any] | None = None
        if not self._point.is_end and snapshots and snapshots[0].applied_index > self._last_index:
            for found in self._older_snapshots():
                snapshots.append(found)
                if found.applied_index <= self._last_index:
                    older = found.pictures()
                    break
        chosen, guessed = restored_tables.tables_at(
            snapshots, self._last_index, facts.base_index, not self._point.is_end, older
        )
        if guessed:
            self._result.notes.append(
                "no backup has the tables from before this point: topics, groups and offsets are those of the backup, "
                "and delayed messages are delivered again"
            )
            self._clamp_later = chosen
        if chosen is not None:
            contents[METADATA] = snapshot.encode(chosen)
        return contents

    _clamp_later: ReplicatedTables | None = None
    _last_index = -1

    def _older(self) -> list[Manifest]:
        """Older backups of the source, newest first."""
        found = []
        for backup_id in reversed(ids_of(self._place, self.manifest.source)):
            if backup_id < self.manifest.id:
                with suppress(BackupError):
                    found.append(load(self._place, self.manifest.source, backup_id, self._seal))
        return found

    def _older_snapshots(self) -> list[ReplicatedTables]:
        found = []
        for manifest in self._older():
            for table in manifest.tables:
                if table.file == METADATA:
                    with suppress(BackupError):
                        found.append(snapshot.decode(Objects(self._place, manifest, self._seal).read(table)))
        return found

    # -- what belongs to the log ---------------------------------------------------------------------------------------

    def _write_file(self, file: str, content: bytes) -> None:
        path = self.root / file
        self._door.mkdir(path.parent)
        replace_file(self._door, path, content)

    def _derive(self) -> None:
        """Builds queues and index, corrects the offsets, and checks the whole store."""
        with StoreRepair.opened(self.root, self.manifest.sizes, restoring=True, door=self._door) as repair:
            plan = repair.look(self._progress)
            repair.run(plan, progress=self._progress)
            after = repair.look(self._progress)
            with SegmentFiles(self._log_folder, self.manifest.segment_bytes) as log:
                set_queue_file_times(self.root, log)
            if self._identity is None:
                self._correct_offsets(after.ends)
            elif self._clamp_later is not None:
                self._correct_pictures(self._clamp_later, after.ends)
        self._result.messages = after.report.records
        self._result.damaged = after.report.damaged
        self._result.notes += [f"damage: {finding}" for finding in after.report.damage[:20]]

    def _correct_offsets(self, ends: Mapping[tuple[str, int], int]) -> None:
        config = self.root / "config"
        kept = {path.name: JsonTable(self._door, path) for path in config.glob("*.json")}
        pictures = {name: table.load() or {} for name, table in kept.items()}
        if not self._point.is_end:
            older = self._tables_before(self._result.end)
            if older is None:
                self._result.notes.append(
                    "no backup ends before this point: delayed messages and half messages in the log are handled again"
                )
            pictures = restored_tables.before_cut(pictures, older)
        for name, picture in self._clamped(pictures, ends).items():
            if picture != kept[name].load():
                self._write_file(f"config/{name}", tables.encode(picture))

    def _correct_pictures(self, found: ReplicatedTables, ends: Mapping[tuple[str, int], int]) -> None:
        pictures = self._clamped(found.pictures(), ends)
        self._write_file(METADATA, snapshot.encode(ReplicatedTables(found.applied_index, pictures)))

    def _clamped(self, pictures: dict[str, Any], ends: Mapping[tuple[str, int], int]) -> dict[str, Any]:
        pictures = dict(pictures)
        for name, clamp in (
            (restored_tables.OFFSETS, restored_tables.clamped_offsets),
            (restored_tables.DELAYS, restored_tables.clamped_delays),
        ):
            if name in pictures:
                pictures[name], clamped = clamp(pictures[name], ends)
                self._result.notes += [str(each) for each in clamped]
        return pictures

    def _tables_before(self, end: int) -> dict[str, Any] | None:
        """The tables of the newest backup whose log ends at or before `end`; None: there is none."""
        for manifest in self._older():
            if manifest.committed <= end:
                objects = Objects(self._place, manifest, self._seal)
                with suppress(BackupError, tables.DamagedTableError):
                    return restored_tables.decoded({table.file: objects.read(table) for table in manifest.tables})
        return None


def prepare_folder(root: Path, door: Door, ignored: frozenset[str] = frozenset()) -> None:
    """Makes the folder, which must be empty, and marks it. BackupError: it is not empty; OSError."""
    check_empty(root, ignored)
    door.mkdir(root)
    restoring.mark_begun(root, door)


def check_empty(root: Path, ignored: frozenset[str] = frozenset()) -> None:
    """Raises BackupError if the folder is not empty. `ignored`: files that it may contain."""
    if root.exists() and not root.is_dir():
        raise BackupError(f"{root} is not a folder")
    kept = _IGNORED | ignored
    found = sorted(path.name for path in root.iterdir() if path.name not in kept) if root.is_dir() else []
    if found == [restoring.FILE_NAME]:
        found = []
    if found:
        raise BackupError(f"{root} is not empty ({', '.join(found[:3])}): a backup is restored into an empty folder")
