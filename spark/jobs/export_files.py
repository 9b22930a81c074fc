"""The tasks of an export: they gather the messages of splits, and merge them into files of topics and days.

    splits ──gather──▶ one Arrow file each, sorted by topic and day ──merge──▶ Parquet files, each of a target size

A task that reads a split does not know what the others read. If it wrote the files of its topics itself, there would be
one for each topic and split: 160 000 for 10 GiB of log with 2 000 topics. So it writes one file in which the rows of a
topic and day are batches of their own (`Group`). The driver then assigns the groups of all splits to files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, timedelta
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from tallystick.spark.columns import CONTENT_SCHEMA, SCHEMA, TIME, schema_of, time_of
from tallystick.spark.outputs import Output
from tallystick.spark.scan import EXPIRED, Damage, SplitScan, Wanted
from tallystick.spark.splits import Split

DAY_MS = 86_400_000
SECTION_BYTES = 32 << 20
"""Approximate bytes of rows that a task holds, sorts and writes at a time."""
_ROW_GROUP_BYTES = 32 << 20
_GATHERED = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one topic and day in a file. `batch`: their number in an Arrow file; None: all of a Parquet file."""

    topic: str
    day: str
    name: str
    batch: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class GatherTask:
    """A split, and the name of the file for its messages."""

    split: Split
    name: str

    @property
    def source(self) -> str:
        return self.split.source

    @property
    def splits(self) -> tuple[Split, ...]:
        return (self.split,)


@dataclass(frozen=True)
class Gathered:
    """The messages of a split, in the file `name`; None: there are none."""

    split: Split
    name: str | None
    rows: int
    records: int
    groups: tuple[Group, ...]
    damaged: int
    damage: list[Damage]
    unread: int

    @property
    def expired(self) -> bool:
        return any(each.reason == EXPIRED for each in self.damage)


@dataclass(frozen=True)
class Target:
    """A Parquet file, and the groups that become its rows.

    For a file of a table: `columns` are the table's, which include the topic, and `without` has the ranges of the log
    whose messages the table has already; all groups are of one topic and source. `columns` None: the file is in a
    folder by topic and day.
    """

    name: str
    groups: tuple[Group, ...]
    columns: pa.Schema | None = None
    without: tuple[tuple[int, int], ...] = ()

    @property
    def bytes(self) -> int:
        return sum(group.bytes for group in self.groups)


@dataclass(frozen=True, slots=True)
class MergeTask:
    source: str
    targets: tuple[Target, ...]
    splits: tuple[Split, ...] = ()
    """It reads no file of the store."""


@dataclass(frozen=True, slots=True)
class Form:
    """What the files contain. `decompressed`: the content of bodies, and a body only if it has no content."""

    decompressed: bool
    max_content_bytes: int

    @property
    def columns(self) -> list[str]:
        return [*SCHEMA.names, *(CONTENT_SCHEMA.names if self.decompressed else ())]

    @property
    def schema(self) -> pa.Schema:
        """The columns of a file in a folder; topic and day are in its path."""
        fields = list(schema_of(name for name in self.columns if name != "topic"))
        times = [pa.field("born_time", TIME), pa.field("store_time", TIME)]
        body = pa.field("body", pa.binary(), nullable=self.decompressed)
        return pa.schema([body if field.name == "body" else field for field in [*fields, *times]])


# -- gather ------------------------------------------------------------------------------------------------------------


def gather(task: GatherTask, output: Output, wanted: Wanted, form: Form) -> Gathered:
    """Writes the messages of a split to a file. An earlier attempt of the task wrote the same file."""
    split, name = task.split, task.name
    scan = SplitScan(split, form.columns, wanted, check_crc=True, max_content_bytes=form.max_content_bytes)
    groups: list[Group] = []
    rows = 0
    with ExitStack() as stack:
        writer = None
        for section in _sections(scan):
            if writer is None:
                file = stack.enter_context(output.create(name))
                writer = stack.enter_context(pa.ipc.new_file(file, form.schema, options=_GATHERED))
            for topic, day, size, batch in _grouped(section, form):
                groups.append(Group(topic, day, name, len(groups), size))
                writer.write_batch(batch)
            rows += section.num_rows
    found = name if groups else None
    return Gathered(split, found, rows, scan.records, tuple(groups), scan.damaged, scan.damage, scan.unread)


def _sections(scan: SplitScan) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in scan:
        held.append(batch)
        if sum(each.nbytes for each in held) >= SECTION_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _grouped(section: pa.Table, form: Form) -> Iterator[tuple[str, str, int, pa.RecordBatch]]:
    """Yields topic, day, bytes and rows of each group of a section."""
    day = days_of(section["store_timestamp_ms"])
    size = pc.cast(section["size"], pa.int64())
    if form.decompressed:
        size = pc.add(size, pc.fill_null(pc.cast(pc.binary_length(section["content"]), pa.int64()), 0))
    keys = pa.table({"topic": section["topic"], "day": day, "size": size})
    order = pc.sort_indices(keys, [("topic", "ascending"), ("day", "ascending")])
    counts = (
        keys.take(order).group_by(["topic", "day"], use_threads=False).aggregate([("size", "count"), ("size", "sum")])
    )
    rows = _formed(section, form).take(order).combine_chunks()
    begin = 0
    for group in counts.to_pylist():
        (batch,) = rows.slice(begin, group["size_count"]).to_batches()
        yield group["topic"], day_name(group["day"]), group["size_sum"], batch
        begin += group["size_count"]


def days_of(times_ms: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the number of days since 1970-01-01 of any 64-bit time."""
    days = pc.divide(times_ms, DAY_MS)  # towards zero
    begins_later = pc.greater(pc.multiply(days, DAY_MS), times_ms)
    return pc.subtract(days, pc.cast(begins_later, pa.int64()))


def _formed(section: pa.Table, form: Form) -> pa.Table:
    columns = {name: section[name] for name in form.schema.names if name in section.column_names}
    columns["born_time"] = time_of(section["born_timestamp_ms"])
    columns["store_time"] = time_of(section["store_timestamp_ms"])
    if form.decompressed:
        nothing = pa.scalar(None, pa.binary())
        columns["body"] = pc.if_else(pc.is_valid(section["content_error"]), section["body"], nothing)
    return pa.table([columns[name] for name in form.schema.names], schema=form.schema)


def day_name(number: int) -> str:
    """The date of this number of days after 1970-01-01; `beyond`: outside of the calendar, because of a wrong clock."""
    try:
        return (date(1970, 1, 1) + timedelta(days=number)).isoformat()
    except OverflowError:
        return "beyond"


# -- merge -------------------------------------------------------------------------------------------------------------


def targets_of(source: str, run: str, groups: Sequence[Group], file_bytes: int) -> list[Target]:
    """Assigns groups to files. A file ends with the group that reaches `file_bytes`, so the files of a topic and day
    are at most one for each `file_bytes`, and one for the rest. Pure."""
    by_place: dict[tuple[str, str], list[list[Group]]] = {}
    for group in groups:
        files = by_place.setdefault((group.topic, group.day), [[]])
        if sum(each.bytes for each in files[-1]) >= file_bytes:
            files.append([])
        files[-1].append(group)
    found = []
    for (topic, day), files in sorted(by_place.items()):
        folder = f"topic={quote(topic, safe='')}/day={day}"
        found += [(f"{folder}/{source}-{run}", tuple(file)) for file in files]
    return [Target(f"{stem}-{number:06d}.parquet", file) for number, (stem, file) in enumerate(found)]


def tasks_of(source: str, targets: Sequence[Target], file_bytes: int) -> list[MergeTask]:
    """Divides targets among tasks of about one file's size each. Pure."""
    tasks: list[list[Target]] = []
    left = 0
    for target in targets:
        if left <= 0:
            tasks.append([])
            left = file_bytes
        tasks[-1].append(target)
        left -= target.bytes
    return [MergeTask(source, tuple(each)) for each in tasks]


def merge(task: MergeTask, output: Output, form: Form) -> list[str]:
    """Writes Parquet files, each sorted by queue and offset. Returns the names of those that have rows; the others are
    not written. The files of an earlier attempt of the task have the same names."""
    with ExitStack() as stack:
        readers: dict[str, pa.ipc.RecordBatchFileReader] = {}

        def rows_of(group: Group) -> pa.Table:
            if group.batch is None:
                with output.opened(group.name) as file:
                    return _completed(parquet.read_table(file, partitioning=None), form.schema)
            if group.name not in readers:
                readers[group.name] = pa.ipc.open_file(stack.enter_context(output.opened(group.name)))
            return pa.Table.from_batches([readers[group.name].get_batch(group.batch)])

        written = []
        for target in task.targets:
            rows = _new_rows(pa.concat_tables([rows_of(group) for group in target.groups]), target)
            if rows.num_rows:
                _write(target, rows if target.columns is None else _in_table(rows, target, target.columns), output)
                written.append(target.name)
        return written


def _new_rows(rows: pa.Table, target: Target) -> pa.Table:
    """Returns the rows that are not in the ranges of `without`."""
    position = rows["physical_offset"]
    for begin, end in target.without:
        outside = pc.or_(pc.less(position, begin), pc.greater_equal(position, end))
        rows, position = rows.filter(outside), position.filter(outside)
    return rows


def _in_table(rows: pa.Table, target: Target, columns: pa.Schema) -> pa.Table:
    topic = pa.repeat(pa.scalar(target.groups[0].topic, pa.string()), rows.num_rows)
    rows = rows.append_column("topic", topic)
    return pa.table([rows[field.name].cast(field.type) for field in columns], schema=columns)


def _write(target: Target, rows: pa.Table, output: Output) -> None:
    order = [("queue_id", "ascending"), ("queue_offset", "ascending"), ("physical_offset", "ascending")]
    rows = rows.sort_by(order)
    sorting = parquet.SortingColumn.from_ordering(rows.schema, order)
    most = max(1000, rows.num_rows * _ROW_GROUP_BYTES // max(1, rows.nbytes))
    with (
        output.create(target.name) as file,
        parquet.ParquetWriter(file, rows.schema, compression="zstd", sorting_columns=sorting) as writer,
    ):
        writer.write_table(rows, row_group_size=most)


def _completed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns rows of a file; one of an earlier version has no times."""
    columns = {name: rows[name] for name in rows.column_names}
    for name in ("born", "store"):
        if f"{name}_time" not in columns:
            columns[f"{name}_time"] = time_of(columns[f"{name}_timestamp_ms"])
    return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)
