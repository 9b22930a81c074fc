"""The store that is backed up, read in place; its broker may run, and delete segments meanwhile.

    settled end of a plain store    the end of the last sound record; the backup syncs the files up to there itself, so
                                    it contains nothing that the source can lose in a power loss
    settled end of a member         what the member knows to be committed: from the broker, or from the files: the last
                                    record in a ConsumeQueue, or dledger's `checkpoint`, whichever is later

Order of the reads. Offsets say what was consumed or delivered, so they are read before the end of the log is
determined: a delayed message that the backup calls delivered has been delivered in it. Topics and groups are read
afterwards: a broker writes the row of a topic before its first message. The snapshot of a member's tables is read
before the end, and the log has the changes behind it.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from tallystick.node.backup.errors import BackupError
from tallystick.node.backup.manifest import GroupFacts, SourceName
from tallystick.node.backup.pieces import Throttle
from tallystick.node.broker.group import queue_ends
from tallystick.replication.ledger.mark import LedgerMark
from tallystick.replication.ledger.vote import VoteRecord
from tallystick.replication.member.origin import Origin
from tallystick.replication.member.special import body_of
from tallystick.replication.membership import Membership, MembershipError
from tallystick.replication.metadata import snapshot
from tallystick.store import _kernel, tables
from tallystick.store.engine.recovery import log_layout
from tallystick.store.engine.restoring import check_complete
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES, UNIT_BYTES, IndexUnit, LedgerFormatError
from tallystick.store.formats.log_walk import step_at
from tallystick.store.formats.queue_format import BLANK_UNIT_SIZE, UNIT, units_written
from tallystick.store.formats.record import RecordError
from tallystick.store.formats.segment_files import SegmentFiles, segment_name
from tallystick.store.verify.dump import committed_end, settings_of
from tallystick.store.verify.queues import queue_folders
from tallystick.store.verify.repair_plan import SIZES

QUEUE_ENDS = f"config/{queue_ends.FILE_NAME}"
METADATA = f"config/{snapshot.FILE_NAME}"
_BEFORE = ("consumerOffset.json", "delayOffset.json", "consumerFilter.json", "timercheck")
_AFTER = ("topics.json", "subscriptionGroup.json", "tally-settings.json")
_OWN_OF_MEMBER = ("consumerFilter.json", "tally-settings.json")
_TRIES, _PAUSE_S = 5, 0.05
_CHECKED_BYTES = 1 << 20
_SYS_FLAG_AT, _BORN_HOST_AT, _BORN_V6 = 36, 48, 1 << 4
_SMALLEST_HEAD = _BORN_HOST_AT + 20 + 8


class SourceStore:
    """One store. It only reads, and syncs the files of a plain log. Raises BackupError, IncompleteStoreError, OSError.

    `name`: of the source, if the user gave one; a member knows its own.
    """

    def __init__(self, root: Path, name: SourceName | None = None) -> None:
        check_complete(root)
        settings = settings_of(root)
        self.root = root
        self.sizes = {name: str(getattr(settings, name)) for name in SIZES}
        """Settings with which the files were created, as text."""
        self.log_folder, self.header_bytes = log_layout(root, settings)
        if not root.is_dir() or not self.log_folder.is_dir():
            raise BackupError(f"{root} is not a store: it has neither commitlog nor dledger-*/data")
        if len(list(root.glob("dledger-*/data"))) > 1:
            raise BackupError(f"{root} has more than one dledger folder")
        with SegmentFiles(self.log_folder) as log:
            self.segment_bytes = log.segment_bytes
        self._vote = VoteRecord.load(self.log_folder.parent) if self.is_member else None
        self.name = self._named(name)

    @property
    def is_member(self) -> bool:
        """Whether the log is that of a member of a group (dledger's layout)."""
        return self.header_bytes > 0

    @property
    def member(self) -> int | None:
        """The number of the member; None: a store without a group."""
        return None if self._vote is None else self._vote.identity.member

    def _named(self, name: SourceName | None) -> SourceName:
        own = None if self._vote is None else self._vote.identity
        if own is not None:
            found = SourceName(own.cluster_id, own.group)
            if name is not None and name != found:
                raise BackupError(f"{self.root} belongs to {found}, not to {name}")
            return found
        if name is None:
            raise BackupError(f"{self.root} does not contain the name of its broker: add --name CLUSTER/BROKER")
        return name

    def path(self, start: int) -> Path:
        """The segment that begins at a position."""
        return self.log_folder / segment_name(start)

    # -- the log -------------------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """The position at which the log begins now."""
        with SegmentFiles(self.log_folder, self.segment_bytes) as log:
            first = self._first(log)
        mark = LedgerMark.load(self.log_folder.parent) if self.is_member else None
        return first if mark is None else max(first, mark.base.pos)

    def _first(self, log: SegmentFiles) -> int:
        if log.gaps:
            raise BackupError(f"{log.path(log.gaps[0])}: the segment before this one is missing")
        return log.first

    def end(self, committed: int | None = None) -> int:
        """The settled end of the log; of a plain log everything before it is durable afterwards. Reads a few pages.

        `committed`: the position that the broker gave.
        """
        with SegmentFiles(self.log_folder, self.segment_bytes) as log:
            begin = self._first(log)
            if not log.starts:
                return 0
            found = committed
            if found is None:
                known = self._known_to_queues(log)
                found = self._of_member(known, begin) if self.is_member else self._of_plain(log, known)
            if not begin <= found <= log.end:
                raise BackupError(f"the broker's position {found} is not in the log of {self.root}, {begin}..{log.end}")
        if not self.is_member:
            self._sync(begin, found)
        return found

    def _of_member(self, known: int | None, begin: int) -> int:
        hint = committed_end(self.log_folder)
        return max(begin, -1 if known is None else known, -1 if hint is None else hint)

    def _of_plain(self, log: SegmentFiles, known: int | None) -> int:
        pos = log.first if known is None else known
        if log.start_of(pos) is None:
            return pos
        return _kernel.scan(str(log.folder), log.segment_bytes, pos, True).end

    def _known_to_queues(self, log: SegmentFiles) -> int | None:
        """The end of the last record that a ConsumeQueue names and that is sound; None: no queue names one."""
        last = []
        for _, _, folder in queue_folders(self.root):
            unit = _last_unit(folder)
            if unit is not None and unit[1] != BLANK_UNIT_SIZE:
                last.append((unit[0], unit[1]))
        for pos, size in sorted(last, reverse=True):
            if log.start_of(pos - self.header_bytes) is not None:
                step = step_at(log, pos - self.header_bytes, entry_header_bytes=self.header_bytes)
                if step.record is not None and step.size == size + self.header_bytes:
                    return pos + size
        return None

    def _sync(self, begin: int, end: int) -> None:
        for start in range(begin, end, self.segment_bytes):
            try:
                descriptor = os.open(self.path(start), os.O_RDONLY)
            except FileNotFoundError:
                continue  # retention deleted it, so it was durable
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path(start))) from error
            finally:
                os.close(descriptor)

    def damage_in(self, segment: int, start: int, end: int, throttle: Throttle) -> list[tuple[int, int, str]]:
        """(position, bytes, reason) of damage in the part [start, end) of one segment, which begins with a record.
        Reads past the page cache. FileNotFoundError: the segment was deleted."""
        scrub = _kernel.SegmentScrub(self.path(segment), segment, start, end, self.header_bytes)
        found: list[tuple[int, int, str]] = []
        done = False
        while not done:
            before = scrub.pos
            done, damage, _ = scrub.step(_CHECKED_BYTES)
            throttle.took(scrub.pos - before)
            found += damage
        return found

    # -- the tables ----------------------------------------------------------------------------------------------------

    def tables_before(self) -> Iterator[tuple[str, bytes]]:
        """(path in the store, content) of the tables that are read before the end of the log."""
        if not self.is_member:
            yield from self._read(_BEFORE)
            return
        path = self.root / METADATA
        if path.exists():
            content = path.read_bytes()
            snapshot.decode(content)  # a damaged one would only be found when it is restored
            yield METADATA, content
        else:
            yield from self._read((*_BEFORE, *_AFTER))
        ends = self._ends_before(self.begin())
        if ends:
            yield QUEUE_ENDS, queue_ends.encode(ends)

    def tables_after(self) -> Iterator[tuple[str, bytes]]:
        """(path in the store, content) of the tables that are read behind the end of the log."""
        yield from self._read(_OWN_OF_MEMBER if self.is_member else _AFTER)

    def _read(self, names: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
        for name in names:
            content = self._table(self.root / "config" / name)
            if content is not None:
                yield f"config/{name}", content

    def _table(self, path: Path) -> bytes | None:
        """A sound version of a table. The broker may be replacing it: for a moment only the backup has a name."""
        fault = ""
        for _ in range(_TRIES):
            for each in (path, path.with_name(path.name + ".bak")):
                try:
                    content = each.read_bytes()
                    if path.suffix == ".json":
                        tables.decode(content)
                    return content
                except FileNotFoundError:
                    continue
                except tables.DamagedTableError as error:
                    fault = f"{each.name}: {error}"
            if not fault:
                return None
            time.sleep(_PAUSE_S)
        raise BackupError(f"{path} is damaged, and so is its backup ({fault}): repair the store, then back it up")

    def _ends_before(self, begin: int) -> dict[tuple[str, int], int]:
        """The next offsets of queues whose records are all before the begin of the log: the log does not tell them."""
        ends = queue_ends.load(self.root / "config")
        for topic, queue, folder in queue_folders(self.root):
            unit = _last_unit(folder)
            if unit is not None and unit[0] + unit[1] <= begin and unit[1] != BLANK_UNIT_SIZE:
                ends[topic, queue] = max(ends.get((topic, queue), 0), unit[2])
        return ends

    # -- the group -----------------------------------------------------------------------------------------------------

    def group_facts(self, begin: int) -> GroupFacts | None:
        """What the log of a member does not contain. BackupError: the log begins elsewhere meanwhile."""
        if not self.is_member:
            return None
        folder = self.log_folder.parent
        mark, origin = LedgerMark.load(folder), Origin.load(folder)
        if mark is None or origin is None or self._vote is None:
            raise BackupError(f"{folder} was not written by tallystick: start a member with it first, then back it up")
        if mark.base.pos != begin:
            raise BackupError(f"{folder}: the log begins at {mark.base.pos} now, not at {begin}")
        vote = VoteRecord.load(folder) or self._vote
        first = origin.entry.membership if origin.entry is not None else Membership(frozenset())
        newest = self._newest_membership(mark) or first
        return GroupFacts(
            group=vote.identity.group,
            member=vote.identity.member,
            term=vote.term,
            base_index=mark.base.index,
            base_term=mark.base.term,
            base_chain=mark.base.chain,
            voters=sorted(newest.voters),
            learners=sorted(newest.learners),
            origin_index=-1 if origin.entry is None else origin.entry.index,
            origin_voters=sorted(first.voters),
            origin_learners=sorted(first.learners),
            index_segment_bytes=mark.index_segment_bytes,
        )

    def _newest_membership(self, mark: LedgerMark) -> Membership | None:
        """Only for people: a restore gives the group another membership."""
        with (
            SegmentFiles(self.log_folder.parent / "index") as index,
            SegmentFiles(self.log_folder, self.segment_bytes) as log,
        ):
            for number in sorted(mark.memberships, reverse=True):
                try:
                    unit = IndexUnit.decode(index.read(number * UNIT_BYTES, UNIT_BYTES) or b"")
                    record = log.read(unit.pos + ENTRY_HEADER_BYTES, unit.size - ENTRY_HEADER_BYTES)
                    return Membership.decode(body_of(record or b""))
                except (LedgerFormatError, RecordError, MembershipError, OSError):
                    continue
        return None


def first_store_time(data: bytes, header_bytes: int) -> int:
    """The store time (ms) of the record at the begin of a segment; 0: there is none."""
    head = data[header_bytes : header_bytes + 256]
    if len(head) < _SMALLEST_HEAD:
        return 0
    (flags,) = struct.unpack_from(">i", head, _SYS_FLAG_AT)
    at = _BORN_HOST_AT + (20 if flags & _BORN_V6 else 8)
    (found,) = struct.unpack_from(">q", head, at)
    return int(found) if 0 < found < 1 << 62 else 0


def _last_unit(folder: Path) -> tuple[int, int, int] | None:
    """(position, size, next offset) of the newest unit of a queue; None: it is empty, or its files expire."""
    with SegmentFiles(folder) as files:
        for start in reversed(files.starts):
            try:
                data = files.buffer(start)
            except FileNotFoundError:
                return None
            count = units_written(data)
            if count:
                pos, size, _ = UNIT.unpack_from(data, (count - 1) * UNIT.size)
                return int(pos), int(size), start // UNIT.size + count
    return None
