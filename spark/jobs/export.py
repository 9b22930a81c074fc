"""`export`: writes messages as Parquet files by topic and day, and records which bytes of which log are in them.

    out/topic=orders/day=2026-11-21/broker-a-00000000000000000000-00000000000134217728.parquet
    out/_tally/broker-a.json        {"pieces": [[0, 134217728]], ...}: half-open, of the source's log, as they were read

A run exports the messages below the present bound that are in no piece yet, so a second run adds exactly the new ones.
It adds all of them or none, without a rename, because a bucket does not support that:

    1. it deletes files whose piece is not in the book: they are left over from a killed run
    2. it writes files under their final names, which contain their piece
    3. it checks that the book is unchanged and all files exist; then it writes the book, and the files are valid

Bytes in the book are never written again. If a run that was considered dead writes a file later, its piece is not in
the book, and the next run deletes it in step 1, also if its bytes were exported in other pieces meanwhile.

A member of a group has the group's name, because all members have the same log: a run can read any of them. A member
that is behind the book adds nothing. Bytes that retention removed before a run could read them are in no piece, so that
another member can still provide them. Times are store times, and days are in UTC.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from tallystick.spark.columns import SCHEMA, schema_of
from tallystick.spark.jobs.job import Job, OutputUse, Summary
from tallystick.spark.jobs.report import bytes_text, counted, table_text
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.outputs import Output, writing
from tallystick.spark.planning import plan_sources
from tallystick.spark.runner import Runner, interleaved
from tallystick.spark.scan import EXPIRED, Damage, SplitScan, Wanted
from tallystick.spark.splits import Split

DAY_MS = 86_400_000
CARRIED_BYTES = 16 << 20
"""Approximate bytes of the log for the files of one task, if the driver has to hold its result."""
_BOOKS = "_tally"
_NAME = re.compile(r"topic=[^/]*/day=[^/]*/(?P<source>[^/~]+)(?:~\d+)?-(?P<begin>\d{20})-(?P<end>\d{20})\.parquet")
_MOST_OPEN = 256
"""Parquet files that a task writes at the same time; with more topics and days it closes the oldest and begins another
part."""

Ranges = list[tuple[int, int]]


@dataclass(frozen=True)
class Exported:
    """`names`: the files of the split."""

    split: Split
    rows: int
    records: int
    names: tuple[str, ...]
    damaged: int
    damage: list[Damage]

    @property
    def expired(self) -> bool:
        return any(each.reason == EXPIRED for each in self.damage)


class ExportError(Exception):
    """The output was not written by an export, or another export is writing to it."""


def run(options: ReadOptions, runner: Runner, output: Output | None) -> dict[str, Any]:
    """Brings the output up to date. OptionError: no output is given; VolumeError, OSError, OutputError; ExportError:
    its books are unreadable, name another filter, or changed in the meantime."""
    if output is None:
        raise OptionError("out", "an export needs a place for its files")
    books = {each.source: Book.load(output, each.source, options.wanted) for each in options.sources()}
    output.clear_aside()
    for book in books.values():
        for name in book.unrecorded(output.names()):
            output.remove(name)
    if not output.shared:
        options = replace(options, split_bytes=min(options.split_bytes, CARRIED_BYTES))
    planned = plan_sources(options, runner, {source: book.ranges for source, book in books.items()})
    # What was lost behind the bound is reported and not recorded: the broker can write new messages there.
    lost = [split for each in planned for split in each.splits if split.begin >= each.volume.bound]
    splits = [split for each in planned for split in each.splits if split.begin < each.volume.bound]
    splits = interleaved(splits, lambda split: split.source)
    if not output.shared:
        splits = [piece for pieces in runner(cut, splits) for piece in pieces]
    exported = list(writing(output, runner, partial(write_split, wanted=options.wanted), splits))
    for name in [name for each in exported if each.expired for name in each.names]:
        output.remove(name)
    damage = [damage for each in exported for damage in each.damage]
    damage += [found for each in runner(damage_of, lost) for found in each]
    for source, book in books.items():
        book.add(output, [each for each in exported if each.split.source == source])
    return {
        "job": "export",
        "out": output.place,
        "sources": [
            {
                "source": each.volume.source,
                "begin": each.volume.begin,
                "bound": each.volume.bound,
                "ranges": books[each.volume.source].ranges,
                "records": sum(one.records for one in exported if one.split.source == each.volume.source),
                "added_rows": sum(one.rows for one in exported if one.split.source == each.volume.source),
                "added_bytes": sum(one.split.bytes for one in exported if one.split.source == each.volume.source),
            }
            for each in planned
        ],
        "added_rows": sum(each.rows for each in exported),
        "added_files": sum(len(each.names) for each in exported),
        "damaged": sum(each.damaged for each in exported) + len(lost),
        "damage": [str(each) for each in damage],
    }


# -- a task ------------------------------------------------------------------------------------------------------------


def cut(split: Split) -> list[Split]:
    """Splits a split into pieces of about `CARRIED_BYTES` at the ends of records, if no queue had a boundary."""
    if split.bytes <= 2 * CARRIED_BYTES:
        return [split]
    pieces = []
    for batch in SplitScan(split, ["physical_offset", "size"]):
        ends = pc.add(batch.column(0), batch.column(1)).to_pylist()
        while (number := bisect_left(ends, split.begin + CARRIED_BYTES)) < len(ends) and ends[number] < split.end:
            pieces.append(replace(split, end=ends[number]))
            split = replace(split, begin=ends[number])
    return [*pieces, split]


def damage_of(split: Split) -> list[Damage]:
    """Returns the damage of a split whose messages are not exported."""
    scan = SplitScan(split, [], Wanted(topics=()))
    for _ in scan:
        pass
    return scan.damage


def write_split(split: Split, output: Output, wanted: Wanted) -> Exported:
    """Writes the split's messages. The files of an earlier attempt of the task have the same names."""
    scan = SplitScan(split, SCHEMA.names, wanted, check_crc=True)
    rows = 0
    with _Files(output, split) as files:
        for batch in scan:
            table = pa.Table.from_batches([batch])
            day = pc.cast(pc.floor(pc.divide(pc.cast(table["store_timestamp_ms"], pa.float64()), DAY_MS)), pa.int64())
            table = table.append_column("_day", day)
            kinds = table.group_by(["topic", "_day"], use_threads=False).aggregate([])
            for topic, number in zip(kinds["topic"].to_pylist(), kinds["_day"].to_pylist(), strict=True):
                taken = table.filter(pc.and_(pc.equal(table["topic"], topic), pc.equal(table["_day"], number)))
                files.write(topic, day_name(number), taken.drop_columns(["topic", "_day"]))
                rows += taken.num_rows
    return Exported(split, rows, scan.records, tuple(files.names), scan.damaged, scan.damage)


class _Files:
    """The files of one split. A context manager: leaving it without an exception completes them."""

    _SCHEMA = schema_of(name for name in SCHEMA.names if name != "topic")

    def __init__(self, output: Output, split: Split) -> None:
        self.names: list[str] = []
        self._output = output
        self._split = split
        self._parts: dict[tuple[str, str], int] = {}
        self._open: dict[tuple[str, str], tuple[parquet.ParquetWriter, ExitStack]] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        while self._open:
            _, (_, stack) = self._open.popitem()
            stack.__exit__(kind, error, trace)

    def write(self, topic: str, day: str, rows: pa.Table) -> None:
        key = topic, day
        if key not in self._open:
            while len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open)))[1].close()
            self._open[key] = self._begin(*key)
        self._open[key][0].write_table(rows.cast(self._SCHEMA))

    def _begin(self, topic: str, day: str) -> tuple[parquet.ParquetWriter, ExitStack]:
        part = self._parts[topic, day] = self._parts.get((topic, day), 0) + 1
        source = file_name(self._split.source) + ("" if part == 1 else f"~{part}")
        folder = f"topic={quote(topic, safe='')}/day={day}"
        self.names.append(f"{folder}/{source}-{self._split.begin:020d}-{self._split.end:020d}.parquet")
        with ExitStack() as stack:
            file = stack.enter_context(self._output.create(self.names[-1]))
            writer = stack.enter_context(parquet.ParquetWriter(file, self._SCHEMA, compression="zstd"))
            return writer, stack.pop_all()


def day_name(number: int) -> str:
    """The date of this number of days after 1970-01-01; `beyond`: outside of the calendar, because of a wrong clock."""
    try:
        return (date(1970, 1, 1) + timedelta(days=number)).isoformat()
    except OverflowError:
        return "beyond"


# -- the book ----------------------------------------------------------------------------------------------------------


class Book:
    """The pieces of one source in the output. ExportError: see `run`."""

    def __init__(self, source: str, chosen: Mapping[str, Any], pieces: Iterable[tuple[int, int]]) -> None:
        self.source = source
        self.pieces = sorted(pieces)
        self._filter = chosen
        self._name = f"{_BOOKS}/{file_name(source)}.json"
        self._text: bytes | None = None

    @classmethod
    def load(cls, output: Output, source: str, wanted: Wanted) -> Book:
        book = cls(source, _filter_of(wanted), [])
        book._text = output.read(book._name)
        if book._text is None:
            return book
        try:
            found = json.loads(book._text)
            book.pieces = sorted((int(begin), int(end)) for begin, end in found["pieces"])
            chosen = found["filter"]
        except (ValueError, KeyError, TypeError) as error:
            raise ExportError(f"{output.place}/{book._name} cannot be read: {error!r}") from error
        if chosen != book._filter:
            raise ExportError(f"{output.place} was begun with another filter ({chosen}): export into another folder")
        return book

    @property
    def ranges(self) -> Ranges:
        """The bytes of all pieces."""
        return joined(self.pieces)

    def unrecorded(self, names: Iterable[str]) -> list[str]:
        """Files of this source without a piece in the book."""
        pieces = set(self.pieces)
        return [name for name in names if (piece := self._piece_of(name)) is not None and piece not in pieces]

    def _piece_of(self, name: str) -> tuple[int, int] | None:
        match = _NAME.fullmatch(name)
        if match is None or match["source"] != file_name(self.source):
            return None
        return int(match["begin"]), int(match["end"])

    def add(self, output: Output, exported: list[Exported]) -> None:
        """Records the exported pieces as valid. All files were written."""
        done = [each for each in exported if not each.expired and not each.split.missing]
        if not done:
            return
        whole = Book(self.source, self._filter, [*self.pieces, *((each.split.begin, each.split.end) for each in done)])
        names = set(output.names())
        if output.read(self._name) != self._text or whole.unrecorded(names):
            raise ExportError(f"another export of {self.source} into {output.place} is running")
        if lost := {name for each in done for name in each.names} - names:
            raise ExportError(f"{output.place} has lost {min(lost)}, which was just written")
        book = {"source": self.source, "filter": self._filter, "ranges": whole.ranges, "pieces": whole.pieces}
        self._text = (json.dumps(book) + "\n").encode()
        output.write(self._name, self._text)
        self.pieces = whole.pieces


def joined(ranges: Ranges) -> Ranges:
    """The same bytes in as few ranges as possible, ascending."""
    found: Ranges = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif begin < end:
            found.append((begin, end))
    return found


def file_name(source: str) -> str:
    """Returns it escaped for a file's name; `~` begins the number of a part there."""
    return quote(source, safe="").replace("~", "%7E")


def _filter_of(wanted: Wanted) -> Mapping[str, Any]:
    named = {name: getattr(wanted, name) for name in ("topics", "queues", "queue_offsets", "store_times_ms", "keys")}
    return {name: list(value) for name, value in named.items() if value is not None}


# -- the report --------------------------------------------------------------------------------------------------------


def _export_text(summary: Summary) -> str:
    rows = [
        [each["source"], each["added_rows"], bytes_text(each["added_bytes"]), str(each["ranges"])]
        for each in summary["sources"]
    ]
    rows_text, files_text = counted(summary["added_rows"], "row"), counted(summary["added_files"], "file")
    head = f"{rows_text} in {files_text} added to {summary['out']}"
    return "\n".join([head, "", table_text(("source", "rows", "of log", "ranges now"), rows), *summary["damage"]])


def _figures(summary: Summary) -> dict[str, int]:
    added = {"rows": summary["added_rows"], "files": summary["added_files"]}
    return added | {"bytes": sum(source["added_bytes"] for source in summary["sources"])}


JOB = Job(
    name="export",
    help="write messages as Parquet files; a later run adds the new messages",
    run=lambda call: run(call.options, call.runner, call.output),
    text=_export_text,
    figures=_figures,
    message=lambda summary, figures: f"{figures['rows']:,} rows in {figures['files']:,} files added",
    reads_a_part=True,
    output=OutputUse.REQUIRED,
    failures=(ExportError,),
)
