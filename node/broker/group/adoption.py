"""A log that RocketMQ wrote in DLedger mode, and that no member of a group has opened before.

If its first segments were deleted, it begins behind some entry. For a log of a group this would mean that entries of
tables are missing. But RocketMQ has its tables in files, and not in the log: they are complete. A member needs a file
that says so. It is written before the member opens the log, so a start that is interrupted is repeated.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.replication.ledger.mark import LedgerMark
from tallystick.replication.ledger.vote import VoteRecord
from tallystick.replication.metadata import snapshot
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES, EntryHeader, LedgerFormatError
from tallystick.store.formats.segment_files import SegmentFiles

if TYPE_CHECKING:
    from tallystick.store._kernel import Door


def adopted_tables(door: Door, config: Path, ledger: Path, segment_bytes: int) -> ReplicatedTables:
    """The state of the tables before the first entry of a log that no member has opened. `ledger`: the folder of the
    log. Saves it if it is not the one of a new group. Blocks. OSError."""
    tables = ReplicatedTables()
    if LedgerMark.load(ledger) is not None or VoteRecord.load(ledger) is not None:
        return tables
    first = _first_entry(ledger / "data", segment_bytes)
    # Entries of a group have a CRC: a member that lost its files must not take files of other tables for its own.
    if first is not None and first.log_index > 0 and first.chain_crc == 0:
        tables.pass_over(first.log_index - 1)
        snapshot.save(door, config, snapshot.encode(tables))
    return tables


def _first_entry(folder: Path, segment_bytes: int) -> EntryHeader | None:
    with SegmentFiles(folder, segment_bytes) as log:
        try:
            return EntryHeader.decode(log.read(log.first, ENTRY_HEADER_BYTES) or b"")
        except LedgerFormatError:
            return None  # the recovery of the log reports it
