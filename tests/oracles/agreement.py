"""Compares what an audit says of a store with what `tally store verify` says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tallystick.spark.jobs import audit
from tallystick.spark.options import ReadOptions
from tallystick.spark.runner import inline
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES
from tallystick.store.formats.log_walk import walk
from tallystick.store.formats.record import Record
from tallystick.store.formats.segment_files import SegmentFiles, segment_name
from tallystick.store.verify.report import verify

Place = tuple[str, int, str]
_ONLY_AUDIT = re.compile(
    r"no entry of a key of the record|unit \d+ names \d+ bytes at \d+, the record has \d+ at"
    r"|the file is missing$|unwritten$"
)
"""What only an audit looks for: missing entries, records that claim the unit of another one, and lost parts of the log
behind its end."""


def audited(root: Path, settings: Mapping[str, str] | None = None, split_bytes: int = 1 << 30) -> dict[str, Any]:
    options = ReadOptions.parse({"path": f"n0={root}", "splitBytes": str(split_bytes)})
    return audit.run(options, inline, settings=settings)


def agree(root: Path) -> dict[str, Any]:
    """Checks that both name the same places of a store in the same words. Returns the summary of the audit."""
    summary, checked = audited(root), verified(root)
    assert checked <= places(summary), checked - places(summary)
    more = {each for each in places(summary) - checked if not _ONLY_AUDIT.match(each[2])}
    assert not more
    return summary


def places(summary: Mapping[str, Any]) -> set[Place]:
    return {(each["file"], each["offset"], each["reason"]) for each in summary["differences"]}


def verified(root: Path) -> set[Place]:
    """Damage, and what the next start repairs."""
    report = verify(root)
    found = [*report.damage, *(note for note in report.notes if note.repairable)]
    return {(str(root / each.file), each.offset, each.reason) for each in found}


def log_of(root: Path) -> tuple[Path, int]:
    """The folder of the log, and the bytes before each record."""
    ledger = next(iter(root.glob("dledger-*/data")), None)
    return (root / "commitlog", 0) if ledger is None else (ledger, ENTRY_HEADER_BYTES)


def records_of(root: Path) -> list[Record]:
    folder, header = log_of(root)
    with SegmentFiles(folder) as log:
        return [step.record for step in walk(log, entry_header_bytes=header) if step.record is not None]


def patched(root: Path, pos: int, data: bytes) -> None:
    """Writes these bytes at a position of the log."""
    folder, _ = log_of(root)
    with SegmentFiles(folder) as log:
        start = log.start_of(pos)
    assert start is not None
    with (folder / segment_name(start)).open("r+b") as file:
        file.seek(pos - start)
        file.write(data)
