"""`spark.read.format("tallystick")` and `spark.readStream.format("tallystick")`: messages of stores, from their files.

    from tallystick.spark.source import register
    register(spark)
    spark.read.format("tallystick").option("topic", "orders").load("/data/broker-a,/data/broker-b")

The driver determines the bound of each store and plans splits. A worker opens the file of its split and passes on the
kernel's batches. It sends no request to a broker and writes nothing to a store. Spark's Python API has two limits.
Columns that a query does not use are read unless the option `columns` or a schema excludes them (the body must be
requested). And a split cannot prefer a host; the jobs do that in another way (`spark/cluster/place.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tallystick.spark.columns import DAMAGE_SCHEMA, ddl_of, refuse_times, schema_of, time_of
from tallystick.spark.options import ReadOptions
from tallystick.spark.pruning import pruned
from tallystick.spark.pushdown import hint, push
from tallystick.spark.scan import Damage, SplitScan, Wanted
from tallystick.spark.splits import Split, Task, splits_of, tasks_of

NAME = "tallystick"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

_logger = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Registers the format with this session, and enables the push-down of filters (off by default in Spark)."""
    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(TallystickSource)


@dataclass(frozen=True)
class SplitPartition(InputPartition):
    task: Task


class TallystickSource(DataSource):
    """The data source. Options: `options.ReadOptions`. Columns: `columns.SCHEMA`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        options = ReadOptions.parse(self.options)
        return ddl_of(DAMAGE_SCHEMA if options.view == "damage" else schema_of(options.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.parse(self.options)
        return (PushingReader if options.pushdown else MessageReader)(options, schema)

    def streamReader(self, schema: StructType):  # type: ignore[no-untyped-def]  # noqa: N802
        from tallystick.spark.stream import MessageStreamReader  # Spark 4.1 does not have its imports

        return MessageStreamReader(ReadOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool):  # type: ignore[no-untyped-def]
        from tallystick.spark.sink import MessageWriter, writer_of  # readers do not need the brokers' protocol

        return writer_of(MessageWriter, self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool):  # type: ignore[no-untyped-def]  # noqa: N802
        from tallystick.spark.sink import MessageStreamWriter, writer_of

        return writer_of(MessageStreamWriter, self.options, schema, overwrite)


class MessageReader(DataSourceReader):
    """One table: messages, or with `view` the damage. It is pickled to the workers, so it has only plain values."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.wanted = options.wanted
        self.schema = to_arrow_schema(schema, timezone="UTC")
        refuse_times(self.schema)
        self.impossible = False
        """Two filters contradict each other."""

    def partitions(self) -> list[InputPartition]:
        if self.impossible:
            return []
        # The side output and the table of damage are of the whole log.
        all_damage = self.options.view == "damage" or self.options.damage_path is not None
        wanted = Wanted() if all_damage or not self.options.pruning else self.wanted
        splits: list[Split] = []
        for volume in self.options.volumes(self.wanted.sources):
            found = pruned(volume, wanted)
            _logger.info(
                "%s: %s of %s bytes are to be read, in %s ranges%s",
                *(volume.source, found.bytes, volume.bytes, len(found.ranges)),
                f", because of {' and '.join(found.by)}" if found.by else "",
            )
            splits += splits_of(volume, found.ranges, self.options.split_bytes)
        return [SplitPartition(task) for task in tasks_of(splits, self.options.split_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SplitPartition):  # Spark's default, instead of an empty list
            return iter(())
        return read_partition(partition.task, self.options, self.wanted, self.schema)


class PushingReader(MessageReader):
    """A reader that applies the filters that it supports. Spark needs `spark.sql.python.filterPushdown.enabled` for
    it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        if self.options.view == "damage":
            yield from filters
            return
        for item in filters:
            narrowed = push(self.wanted, item)
            if narrowed is None:
                if self.options.pruning:
                    self.wanted = hint(self.wanted, item)
                yield item
            else:
                self.wanted = narrowed
        self.impossible = is_impossible(self.wanted)


def is_impossible(wanted: Wanted) -> bool:
    empty = (wanted.topics, wanted.queues, wanted.keys, wanted.tags, wanted.sources)
    ranges = (wanted.queue_offsets, wanted.store_times_ms)
    return () in empty or any(bounds is not None and bounds[0] > bounds[1] for bounds in ranges)


def read_partition(task: Task, options: ReadOptions, wanted: Wanted, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a task's splits in the schema that Spark expects. DamageMetError (FAILFAST), OSError."""
    for split in task.splits:
        yield from _read_split(split, options, wanted, schema)


def _read_split(split: Split, options: ReadOptions, wanted: Wanted, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if options.view == "damage":
        scan = SplitScan(split, [], Wanted(topics=()), check_crc=options.verify is not False)
        for _ in scan:
            pass
        yield pa.RecordBatch.from_pylist([asdict(damage) for damage in scan.damage], schema=schema)
        return
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
    if options.damage_path is not None:
        write_damage(Path(options.damage_path), split, scan.damage)
    for damage in scan.damage:
        _logger.warning("skipped %s", damage)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the same columns with the schema's nullability. It copies a column only if its type differs; milliseconds
    become a timestamp."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type.equals(field.type) else _cast(column, field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return (time_of(column) if pa.types.is_timestamp(kind) else column).cast(kind)


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
