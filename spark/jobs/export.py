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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tallystick.spark.jobs.export_book import BOOKS, Book, ExportError, file_name, place_of
from tallystick.spark.jobs.export_files import Form, Gathered, Group, merge, targets_of, tasks_of
from tallystick.spark.jobs.export_reading import read_new
from tallystick.spark.jobs.export_table import create_table
from tallystick.spark.jobs.job import Argument, Call, Job, Kind, OutputUse, Summary
from tallystick.spark.jobs.report import bytes_text, counted, table_text
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.outputs import Output
from tallystick.spark.runner import Runner, inline

FILE_MIB = 128
PARQUET, ICEBERG = "parquet", "iceberg"
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
        raise OptionError("out", "an export to Parquet files needs a place for them")
    bodies = "decompressed" if ways.decompressed else "stored"
    books = {each.source: Book.load(output, each.source, options.wanted, bodies) for each in options.sources()}
    _clear(output, books)
    form = Form(ways.decompressed, options.max_content_bytes)
    token = secrets.token_hex(8)
    exported = {source: book.ranges for source, book in books.items()}
    reading = read_new(options, runner, output, form, exported, _GATHERED, token)
    files, replaced = 0, 0
    for source, book in books.items():
        own = reading.of(source)
        small = small_files(book.valid(output.names()), output.sizes(), ways) if ways.compact else []
        written = _merged(source, token, own, small, runner, output, form, ways)
        book.add(output, token, reading.ranges(source), written, [each.name for each in small])
        for name in [*(each.name for each in own if each.name), *(each.name for each in small)]:
            output.remove(name)
        files, replaced = files + len(written), replaced + len(small)
    if ways.table is not None:
        create_table(ways.table, output.place, form.schema)
    return {
        "job": "export",
        "out": output.place,
        "added_rows": sum(each.rows for each in reading.gathered),
        "added_files": files,
        "replaced_files": replaced,
        **reading.summary({source: book.ranges for source, book in books.items()}),
    }


def _clear(output: Output, books: Mapping[str, Book]) -> None:
    """Removes what killed runs of these sources left."""
    output.clear_aside()
    names = output.names()
    for source, book in books.items():
        left = [name for name in names if name.startswith(f"{_GATHERED}/{file_name(source)}-")]
        for name in [*left, *book.invalid(names)]:
            output.remove(name)


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
    if summary.get("removed_files"):
        head += f"; {counted(summary['removed_files'], 'file')} of a killed run removed"
    if summary.get("left_files"):
        head += f"; left, because their table is gone: {', '.join(summary['left_files'])}"
    if summary["without_content"]:
        head += f"; {counted(summary['without_content'], 'body')} could not be decompressed"
    return "\n".join([head, "", table_text(("source", "rows", "of log", "ranges now"), rows), *summary["damage"]])


def _figures(summary: Summary) -> dict[str, int]:
    added = {"rows": summary["added_rows"], "files": summary["added_files"]}
    return added | {"bytes": sum(source["added_bytes"] for source in summary["sources"])}


def _run(call: Call) -> dict[str, Any]:
    ways = Ways.parse(call.arguments)
    form = call.arguments.get("format", PARQUET)
    if form == ICEBERG:
        return _run_iceberg(call, ways)
    if form != PARQUET:
        raise OptionError("format", f"must be {PARQUET} or {ICEBERG}, not {form!r}")
    if call.arguments.get("catalog") or call.arguments.get("catalogSet"):
        raise OptionError("catalog", f"needs the format {ICEBERG}")
    return run(call.options, call.runner, call.output, ways)


def _run_iceberg(call: Call, ways: Ways) -> dict[str, Any]:
    try:
        from tallystick.spark.jobs import iceberg_export
    except ImportError as error:
        raise OptionError("format", f"{ICEBERG} needs pip install 'tallystick[iceberg]': {error}") from error
    if call.output is not None:
        raise OptionError("out", f"the format {ICEBERG} has none: the catalog knows where a table is")
    if ways.table is None:
        raise OptionError("table", f"is required by the format {ICEBERG}: NAMESPACE.TABLE, or NAMESPACE.{{topic}}")
    if ways.compact:
        raise OptionError("compact", "is not for Iceberg tables: use the procedure rewrite_data_files of an engine")
    catalog = call.arguments.get("catalog"), call.arguments.get("catalogSet") or {}
    return iceberg_export.run(
        call.options, call.runner, ways.table, catalog, decompressed=ways.decompressed, file_bytes=ways.file_bytes
    )


ARGUMENTS = (
    Argument(
        "format",
        "parquet, or iceberg: adds to tables of a catalog",
        "--format",
        metavar="NAME",
        default=PARQUET,
        local=True,
    ),
    Argument(
        "catalog", "catalog of Iceberg tables, in pyiceberg's configuration", "--catalog", metavar="NAME", local=True
    ),
    Argument(
        "catalogSet",
        "a property of the catalog, such as uri; can be repeated",
        "--catalog-set",
        kind=Kind.TABLE,
        metavar="KEY=VALUE",
        local=True,
    ),
    Argument(
        "fileMib", f"bytes of the log for one file, in MiB ({FILE_MIB})", "--file-mib", Kind.NUMBER, "N", FILE_MIB
    ),
    Argument(
        "compact", "merge the small files of a topic and day if there are N or more", "--compact", Kind.NUMBER, "N"
    ),
    Argument("bodies", "stored, or decompressed: the column content", "--bodies", metavar="FORM", default="stored"),
    Argument(
        "table",
        "the Iceberg table, or NAMESPACE.{topic}; with Parquet files: a table of Spark's catalog to create",
        "--table",
        metavar="NAME",
        local=True,
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
    needs_session=lambda arguments: arguments["table"] is not None and arguments["format"] == PARQUET,
    failures=(ExportError,),
)
