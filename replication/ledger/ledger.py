"""One member's log in dledger's layout: what consensus reads of it, and the changes of it.

    append_own, append_entries ─▶ staged ─ write_out ─▶ written ─ sync ─▶ flushed      (kernel `Log`)
                                                           │                 │
                                    what `LogView` shows ──┘                 └── what can be acknowledged

Entries are identified by an index from 0; positions are bytes. Only the data is synced before an entry is acknowledged:
the index is derived from the data and written before it, and a start rebuilds what was lost of it. `save_mark` syncs
the index from time to time and notes how far both are durable, so that a start reads only what is behind that.

If recovery found the log damaged (`damage`), the ledger shows the entries before the damage and accepts no others. This
ends when `rewrite` has replaced the damaged entries by another member's bytes, or `truncate` has given up the rest.

Threads: writes, truncations and restarts of the log must come from one thread, or from several that take turns.
`save_mark` and `sync` can run on another thread at the same time. Reads are safe from all threads.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tallystick.replication.ledger import dledger_files
from tallystick.replication.ledger.mark import EntryPoint, Flags, LedgerMark, newest_memberships
from tallystick.replication.ledger.recovery import (
    Damage,
    LedgerError,
    RecoveredLedger,
    empty_folders,
    recover,
    remove,
    segments_from,
)
from tallystick.replication.ledger.vote import VoteRecord
from tallystick.store._kernel import Entries, Log, check_entries
from tallystick.store.finding_log import FindingLog
from tallystick.store.formats.ledger_format import FILLER_MAGIC, GROUP_LOG_TOPIC, UNIT_BYTES, EntryKind
from tallystick.store.formats.progress import boot_id as machine_boot_id
from tallystick.store.formats.segment_files import segment_start

if TYPE_CHECKING:
    from tallystick.store._kernel import Door, LedgerLog

# dledger requires this size and refuses index files of another length: 5 242 880 units.
INDEX_SEGMENT_BYTES = 32 * 5 * 1024 * 1024
_FILLER = struct.Struct(">ii")
_MARKS_A_CHECKPOINT = 10


class DamagedLogError(Exception):
    """The log accepts no entries: it is damaged, see `Ledger.damage`."""


class Ledger:
    """One open log; a `LogView` of consensus. Methods that write can raise OSError; see the kernel's `LedgerLog` for
    its state.

    `log` is the kernel's log, for `feed`, `append`, `write_out`, `sync` and `release`.
    """

    def __init__(
        self,
        folder: Path,
        door: Door,
        log: LedgerLog,
        recovered: RecoveredLedger,
        boot_id: bytes,
        findings: FindingLog,
    ) -> None:
        self.folder = folder
        self.log = log
        self.recovered = recovered
        self.findings = findings
        self._door = door
        self._boot_id = boot_id
        self._marking = threading.Lock()
        # A truncation or reset has begun and not ended: if it failed, the next start must finish it.
        self._half_done = False
        # A sync of the index failed: the system may have dropped what it could not write, and still serve it to reads
        # (D7).
        self._index_lost = False
        self._marks = 0
        self._begin(recovered)

    @classmethod
    def open(
        cls,
        folder: Path,
        door: Door,
        *,
        segment_bytes: int,
        max_message_bytes: int,
        store_host: bytes,
        store_id: bytes = bytes(16),
        suffix: bytes = b"",
        region: str = "DefaultRegion",
        trace_on: bool = True,
        index_segment_bytes: int = INDEX_SEGMENT_BYTES,
        boot_id: bytes | None = None,
        findings: FindingLog | None = None,
    ) -> Ledger:
        """Recovers the log in `folder` (`data/` and `index/` in it, which are created if necessary). Blocks.

        `store_id`: the id in the vote file; a log without a mark adopts it. `suffix`, `region`, `trace_on`: as for
        `MessageStore.open`. `findings`: receives what is found in the files, now and later.
        Raises LedgerError if the log cannot be opened as it is; OSError; DamageError.
        """
        boot_id = machine_boot_id() if boot_id is None else boot_id
        for part in ("data", "index"):
            door.mkdir(folder / part)
        findings = findings or FindingLog(folder)
        recovered = recover(
            folder,
            segment_bytes,
            index_segment_bytes,
            door,
            boot_id=boot_id,
            store_id=store_id,
            findings=findings,
        )
        log = Log(
            door,
            str(folder / "data"),
            segment_bytes=segment_bytes,
            max_message_bytes=max_message_bytes,
            store_host=store_host,
            suffix=suffix,
            region=region,
            trace_on=trace_on,
            index_folder=str(folder / "index"),
            index_segment_bytes=index_segment_bytes,
        )
        # The kernel has one class for both layouts; with an index this log has dledger's.
        return cls(folder, door, cast("LedgerLog", log), recovered, boot_id, findings)

    def _begin(self, recovered: RecoveredLedger) -> None:
        end = recovered.end
        self.log.start(end.pos, end.store_timestamp_ms, end.index, end.term, end.chain)
        self.recovered = recovered
        self.base: EntryPoint = recovered.base
        self.damage: Damage | None = recovered.damage
        self._memberships: tuple[int, ...] = recovered.memberships
        self._mark: LedgerMark = recovered.mark

    def close(self, committed_index: int = -1) -> None:
        """Writes and syncs the rest, and notes a clean stop. OSError: the stop was not clean."""
        self.log.write_out()
        self.log.sync()
        self.save_mark(committed_index, clean=self.damage is None)

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def segment_bytes(self) -> int:
        return self._mark.segment_bytes

    @property
    def store_id(self) -> bytes:
        return self._mark.store_id

    @property
    def first_index(self) -> int:
        """Index of the oldest kept entry; `last_index` + 1 if there is none."""
        return self.base.index + 1

    @property
    def last_index(self) -> int:
        """Index of the last written entry; `base.index` if there is none."""
        return self.log.written_index

    @property
    def synced_index(self) -> int:
        """Index of the last durable entry."""
        return self.log.flushed_index

    def term_of(self, index: int) -> int | None:
        """Term of an entry, also of the one before the first kept one (-1: there is none, or dledger truncated the log
        and did not note it). None if it is not known. LedgerError: the index does not contain the entry."""
        if index == self.base.index:
            return self.base.term
        if not self.first_index <= index <= self.last_index:
            return None
        unit = self.log.unit(index)
        if unit is None:
            self._index_lost = True
            raise LedgerError(self.folder / "index", f"the index does not have entry {index}; a restart rebuilds it")
        return unit[2]

    @property
    def memberships(self) -> tuple[int, ...]:
        """Indexes of the newest membership entries, newest first, at most four, including staged ones (M1).

        After a truncation the newest remaining one is in force: at most one is uncommitted at any time (M2, M3)."""
        # A failed write may have dropped a staged one, and its index may belong to a message now.
        written = self.log.written_index
        staged = self.log.staged_index
        return tuple(i for i in self._memberships if written < i <= staged or (i <= written and self._is_membership(i)))

    def _is_membership(self, index: int) -> bool:
        if index <= self.base.index or index in self._mark.memberships:
            return True  # deleted: it was committed; or noted: its header may be damaged
        header = self.log.header(index)
        return header is None or header[3] == EntryKind.MEMBERSHIP

    def extent(self, first: int, max_bytes: int) -> int:
        """The last of the entries from `first` on that fit into `max_bytes`; at least `first`."""
        return self.log.extent(first, max_bytes)

    def end_of(self, index: int) -> int:
        """The position behind an entry, also a staged one, or behind the base. KeyError if there is no such entry."""
        if index == self.base.index:
            return self.base.pos
        unit = self.log.unit(index) if index >= self.first_index else None
        if unit is None:
            raise KeyError(index)
        return unit[0] + unit[1]

    def pos_of(self, index: int) -> int:
        """The position of an entry, also of a staged one. KeyError if there is no such entry."""
        unit = self.log.unit(index) if index >= self.first_index else None
        if unit is None:
            raise KeyError(index)
        return unit[0]

    def index_of(self, pos: int) -> int:
        """The last written entry that ends at or before `pos`; `base.index` if there is none."""
        return self.log.index_of(pos, self.first_index)

    def verified_range(self, first: int, last: int) -> Entries:
        """Written entries as they are on the disk, as a follower's `check` takes them; checked against the entry
        before. EntryError: the disk is damaged, see `rewrite`."""
        before = self.point(first - 1)
        data = self.log.read_range(first, last)
        return check_entries(data, self.segment_bytes, before.index, before.term, before.chain)

    def record_of(self, index: int) -> bytes:
        """The CommitLog record in a written entry, checked except for the chain. Raises EntryError."""
        data = self.log.read_range(index, index)
        return check_entries(data, self.segment_bytes, index - 1, -1).record(index)

    def point(self, index: int) -> EntryPoint:
        """The point behind a written entry, or the base. LedgerError: the data does not contain the entry."""
        if index == self.base.index:
            return self.base
        header = self.log.header(index)
        if header is None:
            raise LedgerError(self.folder / "data", f"the header of entry {index} cannot be read")
        pos, size, term, _, chain, _ = header
        return EntryPoint(index, term, chain, pos + size, self.log.last_store_ms)

    # -- appending -----------------------------------------------------------------------------------------------------

    def append_own(self, kind: EntryKind, body: bytes, now_ms: int, born_host: bytes) -> int:
        """Stages a leader's entry that is not a client's message; returns its index. DamagedLogError, OSError."""
        self._must_be_whole()
        self.log.append(
            GROUP_LOG_TOPIC.encode(), 0, body, b"", now_ms=now_ms, born_timestamp=now_ms, born_host=born_host, kind=kind
        )
        index = self.log.staged_index
        if kind == EntryKind.MEMBERSHIP:
            self._memberships = newest_memberships(self.memberships, [index])
        return index

    def check(self, payload: bytes | bytearray, prev_index: int, prev_term: int) -> Entries:
        """Checks a leader's range as far as possible without the entry before it. Raises EntryError."""
        return check_entries(payload, self.segment_bytes, prev_index, prev_term)

    def append_entries(self, entries: Entries, first_index: int) -> None:
        """Stages a leader's entries from `first_index` on, which must be the next index here.

        Raises EntryError if they do not continue this log's chain (S13), DamagedLogError or OSError."""
        self._must_be_whole()
        end, last = self.log.written, self.log.written_index
        if self.log.staged_index == last and end > (filled := self.end_of(last)):
            # A failed write left a filler without an entry behind it: the new leader may have no filler there.
            point = self.point(last)
            self.log.cut(filled, last, point.term, point.chain)
        found = [
            entry.entry_index
            for entry in entries.special
            if entry.kind == EntryKind.MEMBERSHIP and entry.entry_index >= first_index
        ]
        known = newest_memberships(self.memberships, found) if found else self._memberships
        try:
            self.log.append_entries(entries, first_index)
        finally:
            # If a segment could not be created, the entries before it stay staged.
            if found:
                self._memberships = tuple(index for index in known if index <= self.log.staged_index)

    def _must_be_whole(self) -> None:
        if self._half_done:
            raise DamagedLogError("a truncation of the log failed: the next start finishes it")
        if self.damage is not None:
            damage = self.damage
            raise DamagedLogError(f"entry {damage.index} at byte {damage.pos} of the log is damaged: {damage.reason}")

    # -- truncating ----------------------------------------------------------------------------------------------------

    def truncate(self, last_kept: int) -> None:
        """Removes all entries behind `last_kept`, durably (D4). The caller has checked that none is committed (S7).

        In a damaged log, `last_kept` = `last_index` gives up what is behind the damage.
        Raises ValueError if `last_kept` is before the base or behind the end. OSError: the log's state is not known.
        """
        if not self.base.index <= last_kept <= self.last_index:
            raise ValueError(f"entry {last_kept} is not one of {self.base.index}..{self.last_index}")
        self.log.write_out()
        if last_kept == self.last_index and self.damage is None:
            return
        # The point that the mark will name must be durable, like every synced point.
        self.log.sync()
        self._sync_index()
        point = self.point(last_kept)
        kept = tuple(index for index in self.memberships if index <= last_kept)
        with self._marking:
            self._half_done = True
            mark = self._save(flags=Flags.CUTTING, synced=point, memberships=kept)
            self._memberships = kept
            if self.damage is not None:
                self._recover_again()
                return
            self.log.cut(point.pos, last_kept, point.term, point.chain)
            self._save(flags=mark.flags & ~Flags.CUTTING)
            self._half_done = False

    def install_snapshot(self, index: int, term: int, chain: int, pos: int) -> None:
        """Removes all entries and starts the log again behind entry `index`, at `pos` (L11); durable on return.

        Raises ValueError if `pos` is not a segment's start, or the index or term is below -1.
        """
        if pos % self.segment_bytes or index < -1 or term < -1:
            raise ValueError(f"a log cannot begin after entry {index} of term {term} at {pos}")
        base = EntryPoint(index, term, chain, pos)
        with self._marking:
            self._half_done = True
            self._save(flags=Flags.RESETTING, base=base, synced=base, memberships=())
            empty_folders(self._door, self.folder)
            self.log.start(pos, 0, index, term, chain)
            self._save(flags=Flags.NONE)
            self.base, self._memberships, self.damage = base, (), None
            self._half_done = False

    def release_before(self, pos: int) -> None:
        """Notes durably that the log begins at `pos`, a segment's start: what is before it can be deleted now (D10).

        The caller has checked that it is applied, flushed, and needed by no other member. Raises ValueError if `pos` is
        not a segment's start, or not within the synced log.
        """
        if pos <= self.base.pos:
            return
        last = self.index_of(pos)
        if pos % self.segment_bytes or pos > self.log.flushed or last < self.first_index:
            raise ValueError(f"the log cannot begin at {pos}")
        base = replace(self.point(last), pos=pos)
        with self._marking:
            self._save(base=base)
            self.base = base

    def delete_released(self) -> int:
        """Removes segments and index files before the log's start; returns how many. OSError: call it again later."""
        return self._delete("data", self.base.pos, self.segment_bytes) + self.delete_released_index()

    def delete_released_index(self) -> int:
        """Removes only the index files, for a caller that deletes segments by its own rules."""
        return self._delete("index", self.first_index * UNIT_BYTES, self._mark.index_segment_bytes)

    def _delete(self, part: str, limit: int, file_bytes: int) -> int:
        self.log.forget_files()
        gone = [
            path
            for path in reversed(segments_from(self.folder / part, 0))
            if (start := segment_start(path.name)) is not None and start + file_bytes <= limit
        ]
        for path in gone:
            remove(self._door, path)
        return len(gone)

    def rewrite(self, data: bytes) -> None:
        """Replaces damaged entries by another member's bytes, durably.

        `data` is a range as `check` takes it. It begins with the first damaged entry, or with any existing entry, and
        its positions are those of this log. The entry behind it must continue its last entry.
        Raises EntryError if it is damaged or does not fit, LedgerError if the entry before it is damaged too.
        """
        first = int.from_bytes(data[8:16], "big")
        before = self.point(first - 1)
        gap = behind = b""
        entries = check_entries(data, self.segment_bytes, before.index, before.term, before.chain)
        if entries.last_index < self.last_index:
            following = self.log.unit(entries.last_index + 1)
            assert following is not None, "it is written"
            gap = b"" if following[0] == entries.end_pos else self._filler(entries.end_pos, following[0])
            behind = gap + self.log.read_range(entries.last_index + 1, entries.last_index + 1)
            check_entries(data + behind, self.segment_bytes, before.index, before.term, before.chain)
        if entries.first_pos not in (before.pos, self._next_segment(before.pos)):
            raise LedgerError(self.folder / "data", f"entry {first} lies at {before.pos}, not at {entries.first_pos}")
        if entries.first_pos != before.pos:
            self.log.rewrite(before.pos, self._filler(before.pos, entries.first_pos)[:8])
        # Write the filler too: bytes in the same page may be unreadable, and a page is written as a whole or read
        # first.
        self.log.rewrite(entries.first_pos, data + gap)
        self.log.forget_files()
        if self.damage is not None and entries.last_index >= self.damage.index:
            with self._marking:
                self._recover_again()

    def rewrite_filler(self, pos: int) -> None:
        """Rewrites the filler at `pos`, which closes its segment. The caller knows that it belongs there."""
        self.log.rewrite(pos, self._filler(pos, self._next_segment(pos)))
        self.log.forget_files()

    def _next_segment(self, pos: int) -> int:
        return pos - pos % self.segment_bytes + self.segment_bytes

    def _filler(self, pos: int, end: int) -> bytes:
        return _FILLER.pack(FILLER_MAGIC, end - pos).ljust(end - pos, b"\0")

    def reopen(self) -> None:
        """Recovers again: segments were added to `data/` behind the base, or damage was repaired from outside."""
        with self._marking:
            self._recover_again()

    def _recover_again(self) -> None:
        mark = self._mark
        self.log.forget_files()
        recovered = recover(
            self.folder,
            mark.segment_bytes,
            mark.index_segment_bytes,
            self._door,
            boot_id=self._boot_id,
            store_id=mark.store_id,
            findings=self.findings,
        )
        self._begin(recovered)
        self._half_done = self._index_lost = False

    # -- the mark ------------------------------------------------------------------------------------------------------

    def save_mark(self, committed_index: int = -1, *, clean: bool = False) -> None:
        """Syncs the index and notes how far everything is durable. Call it about once a second, on a thread that may
        block.

        `committed_index`: a hint for the next start, and for dledger. dledger's files (also the one of the term) are
        written with every tenth mark and at the end. OSError: the previous mark is still valid.
        """
        with self._marking:
            if self._half_done:
                return  # the note of the truncation must stay
            pos, index, term, chain = self.log.flushed_point()
            try:
                self._sync_index()
            except OSError:
                self._save()
                raise
            if self.damage is None:
                synced = EntryPoint(index, term, chain, pos, self.log.last_store_ms)
                kept = tuple(known for known in self.memberships if known <= index)
                flags = Flags.CLEAN if clean else Flags.NONE
                self._save(flags=flags, synced=synced, memberships=kept)
            if clean or self._marks % _MARKS_A_CHECKPOINT == 0:
                self._write_dledger_files(index, min(committed_index, index))
            self._marks += 1

    def _sync_index(self) -> None:
        try:
            self.log.sync_index()
        except OSError:
            self._index_lost = True
            raise

    def _write_dledger_files(self, index: int, committed_index: int) -> None:
        dledger_files.write_checkpoint(self._door, self.folder, index, committed_index)
        vote = VoteRecord.load(self.folder)
        if vote is not None and dledger_files.read_term(self.folder) != (vote.term, vote.voted_for):
            dledger_files.write_term(self._door, self.folder, vote.term, vote.voted_for)

    def _save(self, *, flags: Flags | None = None, **changes: object) -> LedgerMark:
        flags = self._mark.flags if flags is None else flags
        if self._index_lost:
            flags |= Flags.REINDEX
        self._mark = self._mark.save(self._door, self.folder, boot_id=self._boot_id, flags=flags, **changes)
        return self._mark

    @property
    def committed_hint(self) -> int:
        """The committed index that was last saved, limited to what the log contains; -1 if there is none (D6)."""
        hint = dledger_files.read_committed_index(self.folder)
        return min(hint, self.last_index) if hint >= self.first_index else -1
