"""`export`: writes messages as Parquet files by topic and day, and records which bytes of which log are in them.

    out/topic=orders/day=2026-11-21/broker-a-5f0c1d2e3a4b5c6d-000000.parquet
    out/_tally/broker-a.json        the book: what is exported, and which runs wrote valid files (`export_book.py`)

A run exports the messages below the present bound that are not exported yet, so a second run adds exactly the new ones.
It adds all of them or none, without a rename, because a bucket does not support that:

    1. it deletes files that are not valid: they are left over from a killed run, or were replaced
    2. it gathers the new messages, and merges them into files (`export_files.py`) whose names contain this run
    3. it checks that the book is unchanged and all files exist; then it writes the book, and the files are valid

Bytes in the book are never written again. If a run that was considered dead writes a file later, its run is not in the
book, and the next one deletes it in step 1.

With `compact`, the run also merges small files of a topic and day. The book names those that are replaced, in the same
step; they are deleted afterwards.

A member of a group has the group's name, because all members have the same log: a run can read any of them. A member
that is behind the book adds nothing. Bytes that retention removed before a run could read them are not recorded, so
that another member can still provide them. Times are store times, and days are in UTC.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow.compute as pc

from tallystick.spark.jobs.export_book import BOOKS, Book, ExportError, file_name, place_of
from tallystick.spark.jobs.export_files import Form, Gathered, GatherTask, Group, gather, merge, targets_of, tasks_of
from tallystick.spark.jobs.export_table import create_table
from tallystick.spark.jobs.job import Argument, Call, Job, Kind, OutputUse, Summary
from tallystick.spark.jobs.report import bytes_text, counted, table_text
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.outputs import Output, writing
from tallystick.spark.planning import Planned, plan_sources
from tallystick.spark.runner import Runner, inline, interleaved
from tallystick.spark.scan import Damage, SplitScan, Wanted
from tallystick.spark.splits import Split

FILE_MIB = 128
CARRIED_BYTES = 16 << 20
"""Approximate bytes of the log for the file of one task, if the driver has to hold its result."""
_GATHERED = f"{BOOKS}/gathered"
"""Folder of the files between the two steps. When a run begins, its content is left over from killed runs."""
_SMALL, _MERGED = 8, 4
"""With `compact`, a Parquet file is small below an eighth of the target size, and files are merged up to a fourth:
compressed, they have about a fourth of the bytes of their log."""


@dataclass(frozen=True, slots=True)
class Ways:
    """How files are written. `file_bytes`: of the log, for one file. `compact`: small files of a topic and day are
    merged if there are at least as many; 0: never. `table`: of Spark's catalog."""

    file_bytes: int = FILE_MIB << 20
    compact: int = 0
    decompressed: bool = False
    table: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Ways:
        """OptionError: an argument is wrong."""
        bodies = given.get("bodies", "stored")
        if bodies not in ("stored", "decompressed"):
            raise OptionError("bodies", f"must be stored or decompressed, not {bodies!r}")
        mib = given.get("fileMib", FILE_MIB)
        compact = given.get("compact") or 0
        if not 1 <= mib <= 1024:
            raise OptionError("fileMib", f"must be 1 to 1024, not {mib}")
        if compact and compact < 2:
            raise OptionError("compact", f"must be 2 or more, not {compact}")
        return cls(mib << 20, compact, bodies == "decompressed", given.get("table"))


DEFAULT_WAYS = Ways()


def run(options: ReadOptions, runner: Runner, output: Output | None, ways: Ways = DEFAULT_WAYS) -> dict[str, Any]:
    """Brings the output up to date. OptionError: no output is given; VolumeError, OSError, OutputError; ExportError:
    its books are unreadable, name another filter, or changed in the meantime."""
    if output is None:
        raise OptionError("out", "an export needs a place for its files")
    bodies = "decompressed" if ways.decompressed else "stored"
    books = {each.source: Book.load(output, each.source, options.wanted, bodies) for each in options.sources()}
    _clear(output, books)
    if not output.shared:
        options = replace(options, split_bytes=min(options.split_bytes, CARRIED_BYTES))
    planned = plan_sources(options, runner, {source: book.ranges for source, book in books.items()})
    form = Form(ways.decompressed, options.max_content_bytes)
    token = secrets.token_hex(8)
    gathered = _gathered(planned, runner, output, options.wanted, form, token)
    # What was lost behind the bound is reported and not recorded: the broker can write new messages there.
    lost = [split for each in planned for split in each.splits if split.begin >= each.volume.bound]
    damage = [damage for each in gathered for damage in each.damage]
    damage += [found for each in runner(damage_of, lost) for found in each]
    files, replaced = 0, 0
    for source, book in books.items():
        own = [each for each in gathered if each.split.source == source]
        small = small_files(book.valid(output.names()), output.sizes(), ways) if ways.compact else []
        written = _merged(source, token, own, small, runner, output, form, ways)
        done = [each.split for each in own if not each.expired and not each.split.missing]
        ranges = [(split.begin, split.end) for split in done]
        book.add(output, token, ranges, written, [each.name for each in small])
        for name in [*(each.name for each in own if each.name), *(each.name for each in small)]:
            output.remove(name)
        files, replaced = files + len(written), replaced + len(small)
    if ways.table is not None:
        create_table(ways.table, output.place, form.schema)
    return {
        "job": "export",
        "out": output.place,
        "sources": [_source_summary(each, books[each.volume.source], gathered) for each in planned],
        "added_rows": sum(each.rows for each in gathered),
        "added_files": files,
        "replaced_files": replaced,
        "without_content": sum(each.unread for each in gathered),
        "damaged": sum(each.damaged for each in gathered) + len(lost),
        "damage": [str(each) for each in damage],
    }


def _clear(output: Output, books: Mapping[str, Book]) -> None:
    """Removes what killed runs of these sources left."""
    output.clear_aside()
    names = output.names()
    for source, book in books.items():
        left = [name for name in names if name.startswith(f"{_GATHERED}/{file_name(source)}-")]
        for name in [*left, *book.invalid(names)]:
            output.remove(name)


def _gathered(
    planned: Sequence[Planned], runner: Runner, output: Output, wanted: Wanted, form: Form, token: str
) -> list[Gathered]:
    splits = [split for each in planned for split in each.splits if split.begin < each.volume.bound]
    splits = interleaved(splits, lambda split: split.source)
    if not output.shared:
        splits = [piece for pieces in runner(cut, splits) for piece in pieces]
    items = [GatherTask(split, f"{_GATHERED}/{file_name(split.source)}-{token}-{split.begin:020d}") for split in splits]
    return list(writing(output, runner, partial(gather, wanted=wanted, form=form), items))


def _merged(
    source: str,
    token: str,
    gathered: Sequence[Gathered],
    small: Sequence[Group],
    runner: Runner,
    output: Output,
    form: Form,
    ways: Ways,
) -> list[str]:
    """Writes the files of a source, and returns their names. If only the driver can write, it merges as well."""
    groups = [group for each in gathered for group in each.groups]  # a split that expired has none
    targets = targets_of(file_name(source), token, [*small, *groups], ways.file_bytes)
    tasks = tasks_of(source, targets, ways.file_bytes)
    (runner if output.shared else inline)(partial(merge, output=output, form=form), tasks)
    return [target.name for target in targets]


def small_files(names: Iterable[str], sizes: Mapping[str, int], ways: Ways) -> list[Group]:
    """Returns the files to merge: the small ones of each topic and day that has enough of them. Pure.

    Their bytes are scaled so that `targets_of` begins another file at a fourth of the target size.
    """
    by_place: dict[tuple[str, str], list[str]] = {}
    for name in sorted(names):
        place = place_of(name)
        if place is not None and sizes.get(name, 0) < ways.file_bytes // _SMALL:
            by_place.setdefault(place, []).append(name)
    return [
        Group(*place, name, None, sizes.get(name, 0) * _MERGED)
        for place, found in sorted(by_place.items())
        if len(found) >= ways.compact
        for name in found
    ]


def _source_summary(planned: Planned, book: Book, gathered: Sequence[Gathered]) -> dict[str, Any]:
    volume = planned.volume
    own = [each for each in gathered if each.split.source == volume.source]
    return {
        "source": volume.source,
        "begin": volume.begin,
        "bound": volume.bound,
        "ranges": book.ranges,
        "records": sum(each.records for each in own),
        "added_rows": sum(each.rows for each in own),
        "added_bytes": sum(each.split.bytes for each in own),
    }


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


# -- the report --------------------------------------------------------------------------------------------------------


def _export_text(summary: Summary) -> str:
    rows = [
        [each["source"], each["added_rows"], bytes_text(each["added_bytes"]), str(each["ranges"])]
        for each in summary["sources"]
    ]
    rows_text, files_text = counted(summary["added_rows"], "row"), counted(summary["added_files"], "file")
    head = f"{rows_text} in {files_text} added to {summary['out']}"
    if summary["replaced_files"]:
        head += f"; {counted(summary['replaced_files'], 'small file')} merged"
    if summary["without_content"]:
        head += f"; {counted(summary['without_content'], 'body')} could not be decompressed"
    return "\n".join([head, "", table_text(("source", "rows", "of log", "ranges now"), rows), *summary["damage"]])


def _figures(summary: Summary) -> dict[str, int]:
    added = {"rows": summary["added_rows"], "files": summary["added_files"]}
    return added | {"bytes": sum(source["added_bytes"] for source in summary["sources"])}


def _run(call: Call) -> dict[str, Any]:
    return run(call.options, call.runner, call.output, Ways.parse(call.arguments))


ARGUMENTS = (
    Argument(
        "fileMib", f"bytes of the log for one file, in MiB ({FILE_MIB})", "--file-mib", Kind.NUMBER, "N", FILE_MIB
    ),
    Argument(
        "compact", "merge the small files of a topic and day if there are N or more", "--compact", Kind.NUMBER, "N"
    ),
    Argument("bodies", "stored, or decompressed: the column content", "--bodies", metavar="FORM", default="stored"),
    Argument(
        "table", "create this table of Spark's catalog, and add new partitions", "--table", metavar="NAME", local=True
    ),
)

JOB = Job(
    name="export",
    help="write messages as Parquet files; a later run adds the new messages",
    run=_run,
    text=_export_text,
    figures=_figures,
    message=lambda summary, figures: f"{figures['rows']:,} rows in {figures['files']:,} files added",
    arguments=ARGUMENTS,
    reads_a_part=True,
    output=OutputUse.REQUIRED,
    failures=(ExportError,),
)
