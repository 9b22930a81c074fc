"""`spark.read.format("tallystick")` and `spark.readStream.format("tallystick")`: messages of stores, from their files.

    spark.read.format("tallystick").load("http://broker:8080").where("topic = 'orders'").show()

Spark finds the source by itself where the package is installed (`pyspark_tallystick`). The driver determines the bound
of each store and plans splits. A worker opens the file of its split, or fetches that range of it if the store is
elsewhere (`places.py`), and passes on the kernel's batches. Nothing is written to a store. Spark's Python API has two
limits. Columns that a query does not use are read unless the option `columns` or a schema excludes them (the body must
be requested). And a split cannot prefer a host; the jobs do that in another way (`spark/cluster/place.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from pyspark import Accumulator
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tallystick.spark import catalog_table
from tallystick.spark.columns import DAMAGE_SCHEMA, check_requested, conform, ddl_of, schema_of
from tallystick.spark.job_stores import report_read
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.places import is_remote, opened, reached
from tallystick.spark.presence import release
from tallystick.spark.pruning import pruned
from tallystick.spark.reads import SessionReads, Stages, counting
from tallystick.spark.scan import Damage, SplitScan, Wanted
from tallystick.spark.splits import Split, Task, files_of, splits_of, tasks_of
from tallystick.spark.versions import PUSHDOWN_SETTING, arrow_schema, is_remote_session, pushes_filters
from tallystick.spark.volume import Source

NAME = "tallystick"

_logger = logging.getLogger(__name__)


def register(spark: SparkSession) -> SessionReads | None:
    """Enables the push-down of filters in this session (Spark's default is off), and registers the format. Where Spark
    finds the format by itself, this is only necessary to count what tasks read.

    Returns what the tasks of later queries read. None: Spark 4.0 cannot count it, nor can a session of Spark Connect.
    """
    spark.conf.set(PUSHDOWN_SETTING, "true")
    reads = None if is_remote_session(spark) else SessionReads(spark.sparkContext)

    class CountingSource(TallystickSource):
        counter = None if reads is None else reads.accumulator

    try:
        spark.dataSource.register(CountingSource)
    except AnalysisException as error:  # Spark 4.0 has found it, and refuses a second one
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        return None
    return reads


@dataclass(frozen=True)
class SplitPartition(InputPartition):
    """`of`: the store, with what a task needs to reach it; None: it is a folder."""

    task: Task
    of: Source | None = None


class TallystickSource(DataSource):
    """The data source. Options: `options.ReadOptions`. Columns: `columns.SCHEMA`."""

    counter: ClassVar[Accumulator[Stages] | None] = None
    """Where tasks add what they read; see `register`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType | str:
        given = catalog_table.options_of(self.options)
        options = ReadOptions.parse(given)
        schema = DAMAGE_SCHEMA if options.view == "damage" else schema_of(options.columns)
        if catalog_table.is_created(self.options):
            return catalog_table.schema_with(given, schema)
        return ddl_of(schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read_options(schema)
        if options.pushdown and pushes_filters():
            from tallystick.spark.pushdown import PushingReader  # Spark 4.0 does not have its imports

            return PushingReader(options, schema, self.counter)
        return MessageReader(options, schema, self.counter)

    def streamReader(self, schema: StructType):  # type: ignore[no-untyped-def]  # noqa: N802
        from tallystick.spark.stream import MessageStreamReader

        return MessageStreamReader(self._read_options(schema), schema, self.counter)

    def _read_options(self, schema: StructType) -> ReadOptions:
        return ReadOptions.parse(catalog_table.options_in(schema) | dict(self.options))

    def writer(self, schema: StructType, overwrite: bool):  # type: ignore[no-untyped-def]
        from tallystick.spark.sink import MessageWriter, writer_of  # readers do not need the brokers' protocol

        return writer_of(MessageWriter, self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool):  # type: ignore[no-untyped-def]  # noqa: N802
        from tallystick.spark.sink import MessageStreamWriter, writer_of

        return writer_of(MessageStreamWriter, self.options, schema, overwrite)


class MessageReader(DataSourceReader):
    """One table: messages, or with `view` the damage. It is pickled to the workers, so it has only plain values."""

    def __init__(self, options: ReadOptions, schema: StructType, counter: Accumulator[Stages] | None = None) -> None:
        self.schema = requested_schema(schema, options)
        self.counter = counter
        self.options = options if options.view == "damage" else options.reading(self.schema.names)
        self.wanted = options.wanted
        self.impossible = False
        """Two filters contradict each other."""

    def partitions(self) -> list[InputPartition]:
        if self.impossible:
            return []
        # The side output and the table of damage are of the whole log.
        all_damage = self.options.view == "damage" or self.options.damage_path is not None
        wanted = Wanted() if all_damage or not self.options.pruning else self.wanted
        sources = self.options.sources()
        splits: list[Split] = []
        for source in sources:
            if self.wanted.sources is not None and source.source not in self.wanted.sources:
                continue
            with opened(source) as volume:
                found = pruned(volume, wanted)
                _logger.info(
                    "%s: %s of %s bytes are to be read, in %s ranges%s",
                    *(volume.source, found.bytes, volume.bytes, len(found.ranges)),
                    f", because of {' and '.join(found.by)}" if found.by else "",
                )
                splits += splits_of(volume, found.ranges, self.options.split_bytes)
        return partitions_of(splits, sources, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SplitPartition):  # Spark's default, instead of an empty list
            return iter(())
        return counting(read_partition(partition, self.options, self.wanted, self.schema), self.counter)


def requested_schema(schema: StructType, options: ReadOptions) -> pa.Schema:
    """Returns the Arrow schema to produce. OptionError: the user's schema has a column that cannot be produced."""
    wanted = arrow_schema(schema)
    try:
        check_requested(wanted, DAMAGE_SCHEMA if options.view == "damage" else None)
    except ValueError as error:
        raise OptionError("schema", str(error)) from error
    return wanted


def partitions_of(splits: Iterable[Split], sources: Iterable[Source], options: ReadOptions) -> list[InputPartition]:
    """Returns the tasks that read these splits. A task of a store elsewhere gets what it needs to reach it."""
    remote = {each.source: each for each in sources if is_remote(each.root)}
    return [SplitPartition(task, remote.get(task.source)) for task in tasks_of(splits, options.split_bytes)]


def read_partition(
    partition: SplitPartition, options: ReadOptions, wanted: Wanted, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a task's splits in the schema that Spark expects. DamageMetError (FAILFAST), OSError,
    StoreClientError."""
    if partition.of is None:
        for split in partition.task.splits:
            yield from _read_split(split, options, wanted, schema)
        return
    records = scanned = 0
    with reached(partition.of, files_of(partition.task.splits)) as store:
        for split in partition.task.splits:
            here = store.to_here(split)
            scan = yield from _read_split(here, options, wanted, schema, store.from_here)
            records, scanned = records + scan.records, scanned + scan.bytes_read
            release(here.path, here.begin - here.file_start, here.end - here.file_start)
        report_read(store.store, store.via, records, scanned)


def _read_split(
    split: Split,
    options: ReadOptions,
    wanted: Wanted,
    schema: pa.Schema,
    from_here: Callable[[list[Damage]], list[Damage]] = list,
) -> Generator[pa.RecordBatch, None, SplitScan]:
    """Yields the rows of a split, and returns its scan, which has counted what was read."""
    if options.view == "damage":
        scan = SplitScan(split, [], Wanted(topics=()), check_crc=options.verify is not False)
        for _ in scan:
            pass
        rows = [asdict(damage) for damage in from_here(scan.damage)]
        yield conform(pa.RecordBatch.from_pylist(rows, schema=DAMAGE_SCHEMA).select(schema.names), schema)
        return scan
    scan = SplitScan(
        split,
        schema.names,
        wanted,
        check_crc=options.check_crc,
        fail_fast=options.fail_fast,
        max_content_bytes=options.max_content_bytes,
    )
    for batch in scan:
        yield conform(batch, schema)
    if scan.unread:
        _logger.warning(
            "%s: %s bodies could not be decompressed, first %s", split.path, scan.unread, scan.unread_places[0]
        )
    damage = from_here(scan.damage)
    if options.damage_path is not None:
        write_damage(Path(options.damage_path), split, damage)
    for each in damage:
        _logger.warning("skipped %s", each)
    return scan


def write_damage(folder: Path, split: Split, damage: list[Damage]) -> None:
    """Writes the damage of a split, if any, to a file whose name is the same in a retry of the task."""
    path = folder / f"{split.source.strip('/').replace('/', '_')}-{split.begin:020d}.json"
    if not damage:
        path.unlink(missing_ok=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(asdict(item)) + "\n" for item in damage))
    temporary.replace(path)
