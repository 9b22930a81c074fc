"""Iceberg tables that an export fills, through pyiceberg.

A commit adds data files, and records what the table then has as properties of the same snapshot:

    tallystick.exported    by source: the ranges of its log that the table has, and the filter of the export
    tallystick.added       by source: the ranges that this snapshot added
    tallystick.run         the run that wrote the files

So messages and positions change in one step. The record of the newest ancestor of the current snapshot that has one is
valid. A compaction or a deletion by another engine does not hide it, and a rollback to an older snapshot takes back the
messages with their positions. If the snapshots with a record have expired, the table's property `tallystick.exported`
is valid, which each commit sets as well.

pyiceberg repeats an append that another commit preceded. Two runs that read the same messages would then both add them.
So a commit here is repeated only if the other one was not that of an export, and did not exclude this run (`exclude`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO, parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform, MonthTransform, YearTransform
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from tallystick.spark.jobs.export_book import ExportError, Ranges

EXPORTED, ADDED, RUN, EXCLUDED = (f"tallystick.{name}" for name in ("exported", "added", "run", "excluded"))
TOPIC = "tallystick.topic"
"""Property of a table: the topic whose messages it has."""
_ONCE = {"commit.retry.num-retries": "0"}
_TRIES = 5
_THREADS = 8
_SIMPLE: Mapping[pa.DataType, type[IcebergType]] = {
    pa.string(): StringType,
    pa.int32(): IntegerType,
    pa.int64(): LongType,
    pa.binary(): BinaryType,
    pa.timestamp("us", "UTC"): TimestamptzType,
}
_TRANSFORMS = {
    "topic": (IdentityTransform,),
    "source": (IdentityTransform,),
    "store_time": (DayTransform, MonthTransform, YearTransform),
}
"""By column: partitions that a data file lies in as a whole. A file has messages of one source, topic and day."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What a table has of one source: the ranges of its log, and the filter of the export."""

    ranges: Ranges
    filter: Mapping[str, Any]


def catalog_at(name: str | None, properties: Mapping[str, str]) -> Catalog:
    """Opens a catalog with pyiceberg's own configuration (`.pyiceberg.yaml`, environment variables) and these
    properties. `name`: None is pyiceberg's default catalog. ExportError."""
    with _reported(f"the catalog {name or 'default'}"):
        return load_catalog(name, **{"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO", **properties})


class ExportTable:
    """A table of a catalog, as it was when it was opened or when a method last changed it. All methods raise
    ExportError, and OSError of the file system."""

    def __init__(self, name: str, table: Table) -> None:
        self.name = name
        self._table = table

    @classmethod
    def open(cls, catalog: Catalog, name: str) -> ExportTable | None:
        """None: the table does not exist."""
        with _reported(name):
            try:
                return cls(name, catalog.load_table(name))
            except NoSuchTableError:
                return None

    @classmethod
    def create(cls, catalog: Catalog, name: str, columns: pa.Schema, *, by_topic: bool) -> ExportTable:
        """Creates a table with these columns, by day and, with `by_topic`, by topic."""
        schema = _schema(columns)
        parts: list[tuple[str, str, Any]] = [("topic", "topic", IdentityTransform())] if by_topic else []
        if "store_time" in columns.names:
            parts.append(("store_time", "store_day", DayTransform()))
        spec = PartitionSpec(
            *(
                PartitionField(schema.find_field(column).field_id, 1000 + number, transform, part)
                for number, (column, part, transform) in enumerate(parts)
            )
        )
        with _reported(name):
            catalog.create_namespace_if_not_exists(tuple(name.split("."))[:-1])
            return cls(name, catalog.create_table_if_not_exists(name, schema, partition_spec=spec))

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def io(self) -> PyArrowFileIO:
        if not isinstance(self._table.io, PyArrowFileIO):
            raise ExportError(f"{self.name}: the catalog's py-io-impl must be pyiceberg.io.pyarrow.PyArrowFileIO")
        return self._table.io

    @property
    def location(self) -> str:
        return self._table.location()

    @property
    def topic(self) -> str | None:
        """The topic whose messages the table has; None: it is not known yet."""
        return self._table.properties.get(TOPIC)

    def new_file(self, name: str) -> str:
        """Returns the location for a data file of this name."""
        return self._table.location_provider().new_data_location(name)

    def columns(self, wanted: pa.Schema) -> pa.Schema:
        """Returns the columns of a data file: those of `wanted`, with the table's types and numbers. It adds those that
        the table does not have yet to the table."""
        self._check()
        with _reported(self.name):
            there = {field.name for field in self._table.schema().fields}
            missing = pa.schema([field for field in wanted if field.name not in there])
            if len(missing):
                with self._table.update_schema() as update:
                    update.union_by_name(_schema(missing))
            found = schema_to_pyarrow(self._table.schema().select(*wanted.names))
            return pa.schema([found.field(name) for name in wanted.names])

    def _check(self) -> None:
        if self._table.metadata.format_version < 2:  # its snapshots have no numbers: see `_record`
            raise ExportError(f"{self.name} has the format version 1: set its property format-version to 2")
        schema = self._table.schema()
        for part in self._table.spec().fields:
            column = schema.find_column_name(part.source_id) or ""
            if not isinstance(part.transform, _TRANSFORMS.get(column, ())):
                raise ExportError(
                    f"{self.name} has the partition {part.name} ({part.transform} of {column}): only topic, source, "
                    "and day, month or year of store_time are supported"
                )

    # -- what it has ---------------------------------------------------------------------------------------------------

    def exported(self) -> dict[str, Exported]:
        """Returns what the table has, by source."""
        text = self._record()
        try:
            found = json.loads(text) if text else {}
            return {
                source: Exported([(int(begin), int(end)) for begin, end in each["ranges"]], dict(each["filter"]))
                for source, each in found.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExportError(f"{self.name}: its property {EXPORTED} cannot be read: {error!r}") from error

    def _record(self) -> str | None:
        metadata = self._table.metadata
        snapshot = metadata.current_snapshot()
        while snapshot is not None:
            properties = snapshot.summary.additional_properties if snapshot.summary else {}
            if EXPORTED in properties:
                return properties[EXPORTED]
            if (snapshot.sequence_number or 0) <= 1:
                return None  # the first snapshot of the table: this is the whole history
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else metadata.snapshot_by_id(parent)
        return metadata.properties.get(EXPORTED)

    def has_run(self, run: str, of: str = RUN) -> bool:
        """Whether a snapshot names the run."""
        return any(each.summary and each.summary.get(of) == run for each in self._table.metadata.snapshots)

    # -- changes -------------------------------------------------------------------------------------------------------

    def add(
        self,
        run: str,
        files: Sequence[str],
        exported: Mapping[str, Exported],
        added: Mapping[str, Ranges],
        topic: str | None = None,
    ) -> int:
        """Adds data files, which are written, and records what the table then has: in one step, or not at all. Returns
        the number of rows that it adds. `added`: the ranges that the files have; `topic`: if all messages are of one.

        ExportError: another export changed the table since this object was opened, or excluded this run.
        """
        base = self._record()
        now = json.dumps({source: asdict(each) for source, each in ({**self.exported(), **exported}).items()})
        properties = {EXPORTED: now, ADDED: json.dumps(added), RUN: run}
        of_table = {EXPORTED: now} if topic is None else {EXPORTED: now, TOPIC: topic}
        with _reported(self.name):
            made = partial(parquet_file_to_data_file, self.io, self._table.metadata)
            try:
                with ThreadPoolExecutor(_THREADS) as pool:
                    data_files = list(pool.map(made, files))
            except FileNotFoundError as error:
                raise self._lost(str(error)) from error
            for last in (number == _TRIES for number in count(1)):
                try:
                    self._append(data_files, properties, of_table)
                    break
                except CommitFailedException:
                    self._table.refresh()
                    if self._record() != base or self.has_run(run, EXCLUDED):
                        raise self._lost("the table has changed") from None
                    if last:
                        raise
        return sum(each.record_count for each in data_files)

    def _lost(self, why: str) -> ExportError:
        return ExportError(f"another export into {self.name} is running, and this one added nothing to it: {why}")

    def _append(self, files: Sequence[Any], properties: Mapping[str, str], of_table: Mapping[str, str]) -> None:
        self._table.metadata.properties.update(_ONCE)  # only in this process: pyiceberg reads it there
        with self._table.transaction() as transaction:
            transaction.set_properties(dict(of_table))
            with transaction.update_snapshot(snapshot_properties=dict(properties)).fast_append() as append:
                for each in files:
                    append.append_data_file(each)

    def exclude(self, run: str) -> None:
        """Adds an empty snapshot, after which this run can no longer add files; unless there is one."""
        if not self.has_run(run, EXCLUDED):
            with _reported(self.name), self._table.transaction() as transaction:
                transaction.update_snapshot(snapshot_properties={EXCLUDED: run}).fast_append().commit()

    def unused(self, files: Collection[str]) -> set[str]:
        """Returns the files that no snapshot of the table has."""
        left, seen = set(files), set()
        with _reported(self.name):
            for snapshot in self._table.metadata.snapshots:
                for manifest in snapshot.manifests(self.io):
                    if manifest.manifest_path not in seen:
                        seen.add(manifest.manifest_path)
                        entries = manifest.fetch_manifest_entry(self.io, discard_deleted=False)
                        left.difference_update(entry.data_file.file_path for entry in entries)
        return left


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """Reports errors of a catalog. pyiceberg has no class of all its errors, and passes on those of SQL and HTTP."""
    try:
        yield
    except ExportError:
        raise
    except CommitStateUnknownException as error:
        raise ExportError(f"{what}: it is not known whether the commit took effect; the next run will know") from error
    except Exception as error:
        raise ExportError(f"{what}: {type(error).__name__}: {error}") from error


def _schema(columns: pa.Schema) -> Schema:
    numbers = count(1)

    def type_of(kind: pa.DataType) -> IcebergType:
        if pa.types.is_list(kind):
            return ListType(next(numbers), type_of(kind.value_type), element_required=False)
        if pa.types.is_map(kind):
            key, value = next(numbers), next(numbers)
            return MapType(key, type_of(kind.key_type), value, type_of(kind.item_type), value_required=False)
        return _SIMPLE[kind]()

    return Schema(*(NestedField(next(numbers), field.name, type_of(field.type), required=False) for field in columns))
