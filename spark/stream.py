"""The streaming reader: it follows growing stores and reads each message exactly once.

An offset has a position for each source: {"broker-a": 123456}. It is a bound from `open_volume`, or the end of a split
below one. So it lies between two records, and nothing before it changes: the same two offsets give the same rows, also
after a restart from a checkpoint, as exactly-once requires. A source that appears later begins at the first byte that
it has; a source that is removed from `path` keeps its position.

If retention deletes messages before they are read, the query fails; with `failOnDataLoss` false it continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tallystick.spark.follow import FollowedVolume
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.places import is_remote, opened
from tallystick.spark.reads import Stages, counting
from tallystick.spark.source import SplitPartition, partitions_of, read_partition, requested_schema
from tallystick.spark.splits import Split, plan
from tallystick.spark.versions import (
    HAS_READ_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from tallystick.spark.volume import Source, Volume

Offset = dict[str, int]


class DataLossError(Exception):
    """Messages were deleted before the query read them. `lost`: bytes by source."""

    def __init__(self, lost: Offset) -> None:
        told = ", ".join(f"{lost_bytes} bytes of {source}" for source, lost_bytes in lost.items())
        super().__init__(f"deleted before they were read: {told} (failOnDataLoss=false continues without them)")
        self.lost = lost


class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType, counter: Accumulator[Stages] | None = None) -> None:
        if options.max_bytes_per_trigger is not None and not HAS_READ_LIMITS:
            raise OptionError("maxBytesPerTrigger", "requires Spark 4.2 or later")
        self._stop_at: Offset | None = None
        self._followed: dict[tuple[str, str], FollowedVolume] = {}
        self.schema = requested_schema(schema, options)
        self.counter = counter
        self.options = options.reading(self.schema.names)

    def initialOffset(self) -> Offset:  # noqa: N802
        volumes = self._volumes()
        return {volume.source: volume.bound if self.options.start_at_latest else volume.begin for volume in volumes}

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802
        """Returns the limit of a step. Spark decides whether the option applies: the trigger availableNow ignores
        it."""
        start = start or {}
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        latest = dict(start)
        for source in self.options.sources():
            with self._present(source, with_queues=most is not None) as volume:
                done = start.get(volume.source, 0)
                end = _end_within(volume, max(start.get(volume.source, volume.begin), volume.begin), most)
            if self._stop_at is not None:
                end = min(end, self._stop_at.get(volume.source, done))
            latest[volume.source] = max(end, done)
        return latest

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limits the query to the present messages, in steps of `maxBytesPerTrigger`."""
        self._stop_at = self.reportLatestOffset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.options.max_bytes_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxBytes(most)

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return {volume.source: volume.bound for volume in self._volumes()}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        splits: list[Split] = []
        lost: Offset = {}
        sources = self.options.sources()
        for source in sources:
            stop = end.get(source.source)
            if stop is None:  # it was added later
                continue
            with self._below(source, stop) as volume:
                begin = start.get(volume.source, volume.begin)
                if begin < min(volume.begin, stop):
                    lost[volume.source] = min(volume.begin, stop) - begin
                # The bound may be higher than when `stop` was determined; all files below `stop` exist.
                splits += plan(volume, begin, stop, self.options.split_bytes)
        if lost and self.options.fail_on_data_loss:
            raise DataLossError(lost)
        return partitions_of(splits, sources, self.options)

    def _volumes(self) -> Iterator[Volume]:
        """Yields the stores in their present state."""
        for source in self.options.sources():
            with self._present(source) as volume:
                yield volume

    @contextmanager
    def _present(self, source: Source, *, with_queues: bool = False) -> Iterator[Volume]:
        """The store in its present state; see `places.opened`."""
        if is_remote(source.root):
            with opened(source, with_queues=with_queues) as volume:
                yield volume
        else:
            yield self._follow(source).now()

    @contextmanager
    def _below(self, source: Source, end: int) -> Iterator[Volume]:
        """The store below a bound that was returned before."""
        if is_remote(source.root):
            with opened(source) as volume:
                yield volume
        else:
            yield self._follow(source).until(end)

    def _follow(self, source: Source) -> FollowedVolume:
        found = self._followed.get((source.source, source.root))
        if found is None:
            found = self._followed[source.source, source.root] = FollowedVolume(source)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SplitPartition), "partitions() gives no others"
        return counting(read_partition(partition, self.options, self.options.wanted, self.schema), self.counter)


def _end_within(volume: Volume, begin: int, most_bytes: int | None) -> int:
    """Returns the bound, or the end of the first split that reaches `most_bytes`. Both are record boundaries."""
    if most_bytes is None or volume.bound - begin <= most_bytes:
        return volume.bound
    for split in plan(volume, begin, split_bytes=most_bytes):
        return split.end
    return volume.bound
