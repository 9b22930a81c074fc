"""`stats`: what is in the stores, by topic, queue, tag and hour; sizes; who produced it.

A task reduces its split to sums, so that only these travel: messages, bytes and bodies' bytes for each (source, topic,
queue, tag, hour of storing), counts in buckets of size for each topic, and of producers' addresses. Percentiles are of
buckets a sixteenth of a factor of two wide, so they are true to 4.5 percent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.spark.jobs.runner import Runner
from tallystick.spark.options import ReadOptions
from tallystick.spark.planning import plan_sources
from tallystick.spark.scan import Damage, SplitScan, Wanted
from tallystick.spark.splits import Split

HOUR_MS = 3_600_000
PERCENTILES = (50, 90, 99)
_BUCKETS_A_DOUBLING = 16
_MOST_BUCKETS = 32 * _BUCKETS_A_DOUBLING
_COLUMNS = ("topic", "queue_id", "tags", "store_timestamp_ms", "born_host", "size", "body_bytes")
_BY = ["topic", "queue_id", "tags", "hour_ms"]


@dataclass(frozen=True)
class Sums:
    """What one split comes to. `groups`: by `_BY`; `sizes`: by topic and bucket; `producers`: by topic and address."""

    source: str
    groups: pa.Table
    sizes: pa.Table
    producers: pa.Table
    damage: list[Damage]
    damaged: int
    records: int
    """Read, wanted or not."""


def run(options: ReadOptions, runner: Runner) -> dict[str, Any]:
    """The summary as JSON's values. VolumeError, OSError."""
    planned = plan_sources(options, runner)
    sums = runner(partial(sums_of, wanted=options.wanted), [split for each in planned for split in each.splits])
    sources = [
        {
            "source": volume.source,
            "begin": volume.begin,
            "bound": volume.bound,
            "records": sum(each.records for each in sums if each.source == volume.source),
        }
        for volume in (each.volume for each in planned)
    ]
    return {"job": "stats", "sources": sources} | merged(sums)


def sums_of(split: Split, wanted: Wanted | None = None) -> Sums:
    """Reads one split, without the bodies."""
    scan = SplitScan(split, _COLUMNS, wanted or Wanted())
    groups, sizes, producers = [], [], []
    for batch in scan:
        topics, topic = _coded(batch.column("topic"))
        tags, tag = _coded(batch.column("tags").fill_null(""))
        hosts, host = _coded(batch.column("born_host"))
        hour = pc.cast(pc.divide(batch.column("store_timestamp_ms"), HOUR_MS), pa.int64())
        groups.append(_grouped(batch, topics, topic, tags, tag, hour))
        log = pc.log2(pc.cast(batch.column("size"), pa.float32()))
        bucket = pc.cast(pc.floor(pc.multiply(log, float(_BUCKETS_A_DOUBLING))), pa.int64())
        sizes.append(_counted(topics, topic, bucket, _MOST_BUCKETS, "bucket", None))
        producers.append(_counted(topics, topic, host, len(hosts), "host", hosts))
    return Sums(
        split.source,
        _summed(groups, _BY, ["messages", "bytes", "body_bytes"]),
        _summed(sizes, ["topic", "bucket"], ["messages"]),
        _summed(producers, ["topic", "host"], ["messages"]),
        scan.damage,
        scan.damaged,
        scan.records,
    )


def _coded(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(distinct values, their numbers as int64): a text is hashed once, then rows are numbers."""
    encoded = column.dictionary_encode()
    return encoded.dictionary, encoded.indices.cast(pa.int64())


def _grouped(
    batch: pa.RecordBatch, topics: pa.Array, topic: pa.Array, tags: pa.Array, tag: pa.Array, hour: pa.Array
) -> pa.Table:
    rows = pa.table(
        {
            "text": pc.add(pc.multiply(topic, len(tags)), tag),
            "queue_id": batch.column("queue_id"),
            "hour": hour,
            "size": batch.column("size"),
            "body_bytes": batch.column("body_bytes"),
        }
    )
    found = rows.group_by(["text", "queue_id", "hour"], use_threads=False).aggregate(
        [("size", "count"), ("size", "sum"), ("body_bytes", "sum")]
    )
    text = found["text"].combine_chunks()
    topic_of = pc.divide(text, len(tags))
    return pa.table(
        {
            "topic": topics.take(topic_of),
            "queue_id": found["queue_id"],
            "tags": tags.take(pc.subtract(text, pc.multiply(topic_of, len(tags)))),
            "hour_ms": pc.multiply(found["hour"], HOUR_MS),
            "messages": found["size_count"],
            "bytes": found["size_sum"],
            "body_bytes": found["body_bytes_sum"],
        }
    )


def _counted(
    topics: pa.Array, topic: pa.Array, value: pa.Array, most: int, name: str, values: pa.Array | None
) -> pa.Table:
    both = pc.add(pc.multiply(topic, most), value)
    found = pa.table({"both": both}).group_by("both", use_threads=False).aggregate([("both", "count")])
    both = found["both"].combine_chunks()
    topic_of = pc.divide(both, most)
    value_of = pc.subtract(both, pc.multiply(topic_of, most))
    return pa.table(
        {
            "topic": topics.take(topic_of),
            name: value_of if values is None else values.take(value_of),
            "messages": found["both_count"],
        }
    )


def _summed(tables: Sequence[pa.Table], by: list[str], numbers: list[str]) -> pa.Table:
    if not tables:
        return pa.table({name: pa.array([], pa.int64()) for name in [*by, *numbers]})
    whole = pa.concat_tables(tables).group_by(by, use_threads=False)
    found = whole.aggregate([(name, "sum") for name in numbers])
    return found.rename_columns([*by, *numbers])


def merged(sums: Sequence[Sums]) -> dict[str, Any]:
    rows = _summed([each.groups for each in sums if each.groups.num_rows], _BY, ["messages", "bytes", "body_bytes"])
    sizes = _summed([each.sizes for each in sums if each.sizes.num_rows], ["topic", "bucket"], ["messages"])
    hosts = _summed([each.producers for each in sums if each.producers.num_rows], ["topic", "host"], ["messages"])
    buckets: dict[str, dict[int, int]] = defaultdict(dict)
    for row in sizes.to_pylist():
        buckets[row["topic"]][row["bucket"]] = row["messages"]
    producers: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in hosts.to_pylist():  # a port is a connection's, not a producer's
        producers[row["topic"]][row["host"].rpartition(":")[0]] += row["messages"]
    groups = sorted(rows.to_pylist(), key=lambda row: tuple(row[name] for name in _BY))
    topics: dict[str, dict[str, Any]] = {}
    for row in groups:
        total = topics.setdefault(row["topic"], {"topic": row["topic"], "messages": 0, "bytes": 0, "body_bytes": 0})
        for name in ("messages", "bytes", "body_bytes"):
            total[name] += row[name]
    for name, total in topics.items():
        total |= {f"size_p{percent}": percentile(buckets[name], percent) for percent in PERCENTILES}
        total["queues"] = len({row["queue_id"] for row in groups if row["topic"] == name})
        total["producers"] = dict(sorted(producers[name].items()))
    return {
        "messages": sum(total["messages"] for total in topics.values()),
        "bytes": sum(total["bytes"] for total in topics.values()),
        "topics": sorted(topics.values(), key=lambda total: (-total["messages"], total["topic"])),
        "groups": groups,
        "damaged": sum(each.damaged for each in sums),
        "damage": [str(damage) for each in sums for damage in each.damage],
    }


def percentile(buckets: dict[int, int], percent: int) -> int:
    """The middle of the bucket in which this share of the sizes is reached; 0: there are none."""
    wanted, seen = math.ceil(sum(buckets.values()) * percent / 100), 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= wanted:
            return round(2 ** ((bucket + 0.5) / _BUCKETS_A_DOUBLING))
    return 0
