"""What a conversion of a store needs to know of groups: the tables of the old one, and the files of a new member.

The tables of a member are in its log: the file `tally-metadata` has them as of some entry, and later entries change
them. In the plain layout they are files, so a conversion applies the entries up to the end of the log, as the messages
up to there are converted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.group import queue_ends
from tallystick.node.broker.services.schedule import DelayOffsets
from tallystick.node.broker.tables.consumer_groups import SubscriptionGroupTable
from tallystick.node.broker.tables.offsets import ConsumerOffsets
from tallystick.node.broker.tables.saving import ReplicatedTable
from tallystick.node.broker.tables.topics import TopicTable
from tallystick.replication.ledger import dledger_files
from tallystick.replication.ledger.mark import LedgerMark
from tallystick.replication.metadata import snapshot
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store import tables
from tallystick.store._kernel import find_entry, walk_entries
from tallystick.store.convert.log_copy import FIRST_INDEX, TERM
from tallystick.store.formats.ledger_format import UNIT_BYTES, EntryKind, IndexUnit, LedgerFormatError
from tallystick.store.formats.record import Record
from tallystick.store.formats.segment_files import SegmentFiles

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

_TABLES: tuple[type[ReplicatedTable], ...] = (TopicTable, SubscriptionGroupTable, ConsumerOffsets, DelayOffsets)
_ENTRIES_A_TURN = 1 << 16
_SEARCH_BYTES = 16 << 20
_UNKNOWN: int | None = None


def written_end_of(ledger: Path) -> int:
    """The position up to which a member knew that its log was durable; -1 if no member opened it. OSError."""
    mark = LedgerMark.load(ledger)
    return -1 if mark is None else mark.synced.pos


def tables_of_member(config: Path, ledger: Path) -> dict[str, bytes]:
    """The files of the tables as of the last entry of a member's log; empty if it never saved any: RocketMQ's member.

    Raises SnapshotError, MetadataError or OSError.
    """
    committed = snapshot.load(config)
    if committed is None:
        return {}
    apply_entries(committed, ledger)
    kinds = {kind.what: kind for kind in _TABLES}
    found: Mapping[str, Any] = committed.pictures()
    return {what: tables.encode(kinds[what].file_form(found[what])) for what in kinds.keys() & found.keys()}


def apply_entries(committed: ReplicatedTables, ledger: Path) -> None:
    """Applies the entries of tables that follow, up to the end of the log. Passes over damage, which the conversion of
    the log reports."""
    with SegmentFiles(ledger / "data") as log:
        if not log.starts:
            return
        pos, index = _begin(log, ledger, committed.applied_index + 1)
        term, chain = -1, _UNKNOWN
        while True:
            walked = walk_entries(log.folder, log.segment_bytes, pos, index, term, chain, _ENTRIES_A_TURN)
            for at, kind, place, size in walked.special:
                record = log.read(place, size)
                if kind == EntryKind.METADATA and record is not None:
                    committed.apply(at, Record.decode(record).body)
            pos, index, term, chain = walked.pos, walked.next_index, walked.last_term, walked.last_chain
            if walked.done:
                behind = find_entry(log.folder, log.segment_bytes, pos, index, _SEARCH_BYTES)
                if behind is None:
                    return
                (pos, index), chain = behind, None


def _begin(log: SegmentFiles, ledger: Path, index: int) -> tuple[int, int]:
    """Where to begin: (position, index) of entry `index`, if the index of entries has it, else of the first entry."""
    with SegmentFiles(ledger / "index") as units:
        try:
            unit = IndexUnit.decode(units.read(index * UNIT_BYTES, UNIT_BYTES) or b"")
        except LedgerFormatError:
            unit = None
        if unit is not None and unit.log_index == index and log.start_of(unit.pos) is not None:
            return unit.pos, index
        data = log.read(log.first + 8, 8)
        return log.first, int.from_bytes(data or bytes(8), "big")


def member_finisher(door: Door, config: Path) -> Callable[[Path, int, dict[tuple[str, int], int]], None]:
    """Returns the function that writes what a new member needs beside its log: see `Options.finish_member`.

    The tables are in files. The entries are committed: a leader without them is refused.
    """

    def finish(ledger: Path, last_index: int, ends: dict[tuple[str, int], int]) -> None:
        dledger_files.write_checkpoint(door, ledger, last_index, last_index)
        dledger_files.write_term(door, ledger, TERM, None)
        for name in (dledger_files.CHECKPOINT, dledger_files.CURRENT_TERM):
            door.sync(ledger / name)
        door.sync_dir(ledger)
        snapshot.save(door, config, snapshot.encode(ReplicatedTables(FIRST_INDEX - 1)))
        queue_ends.save(door, config, ends)

    return finish
