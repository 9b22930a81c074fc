"""`stats`: messages by topic, queue, tag and hour, their sizes, and their producers.

A task reduces its split to sums in the kernel, so that only sums are sent to the driver. Percentiles come from buckets
of sizes, with 16 buckets for each factor of two, so they are exact to 4.5 percent.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from tallystick.spark.jobs.job import Job, Summary
from tallystick.spark.jobs.report import MOST_ROWS, bars, bytes_text, counted, html_table, page, table_text, time_text
from tallystick.spark.options import ReadOptions
from tallystick.spark.planning import plan_sources
from tallystick.spark.runner import Runner
from tallystick.spark.scan import Damage, SplitScan, Sums, Wanted
from tallystick.spark.splits import Split

Rows = list[dict[str, Any]]
PERCENTILES = (50, 90, 99)
_BUCKETS_A_DOUBLING = 16
_BY = ("topic", "queue_id", "tags", "hour_ms")
_NUMBERS = ("messages", "bytes", "body_bytes")


@dataclass(frozen=True)
class SplitSums:
    """The result of one split. `sums` None: its file has expired."""

    source: str
    sums: Sums | None
    damage: list[Damage]
    damaged: int
    records: int
    """Number of records read, also of those that the filter excludes."""


def run(options: ReadOptions, runner: Runner) -> dict[str, Any]:
    """Returns the summary as a JSON object. VolumeError, OSError."""
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


def sums_of(split: Split, wanted: Wanted | None = None) -> SplitSums:
    scan = SplitScan(split, (), wanted or Wanted())
    sums = scan.sums()
    return SplitSums(split.source, sums, scan.damage, scan.damaged, scan.records)


def _added(tables: Sequence[pa.Table], by: Sequence[str], numbers: Sequence[str] = ("messages",)) -> Rows:
    """Returns the rows of all tables; rows with the same key are added."""
    if not tables:
        return []
    whole = pa.concat_tables(tables).group_by(list(by), use_threads=False)
    found = whole.aggregate([(name, "sum") for name in numbers])
    rows: Rows = found.rename_columns([*by, *numbers]).to_pylist()
    return rows


def merged(splits: Sequence[SplitSums]) -> dict[str, Any]:
    sums = [each.sums for each in splits if each.sums]
    rows = _added([each.groups for each in sums], _BY, _NUMBERS)
    buckets: dict[str, dict[int, int]] = defaultdict(dict)
    for row in _added([each.sizes for each in sums], ["topic", "bucket"]):
        buckets[row["topic"]][row["bucket"]] = row["messages"]
    producers: dict[str, dict[str, int]] = defaultdict(dict)
    for row in _added([each.producers for each in sums], ["topic", "address"]):
        producers[row["topic"]][row["address"]] = row["messages"]
    groups = sorted(rows, key=lambda row: tuple(row[name] for name in _BY))
    topics: dict[str, dict[str, Any]] = {}
    queues = Counter(topic for topic, _ in {(row["topic"], row["queue_id"]) for row in rows})
    for row in groups:
        total = topics.setdefault(row["topic"], {"topic": row["topic"], **dict.fromkeys(_NUMBERS, 0)})
        for name in _NUMBERS:
            total[name] += row[name]
    for name, total in topics.items():
        total |= {f"size_p{percent}": percentile(buckets[name], percent) for percent in PERCENTILES}
        total["queues"] = queues[name]
        total["producers"] = dict(sorted(producers[name].items()))
    return {
        "messages": sum(total["messages"] for total in topics.values()),
        "bytes": sum(total["bytes"] for total in topics.values()),
        "topics": sorted(topics.values(), key=lambda total: (-total["messages"], total["topic"])),
        "groups": groups,
        "damaged": sum(each.damaged for each in splits),
        "damage": [str(damage) for each in splits for damage in each.damage],
    }


def percentile(buckets: dict[int, int], percent: int) -> int:
    """Returns the middle of the bucket in which this percentile lies; 0 without messages."""
    wanted, seen = math.ceil(sum(buckets.values()) * percent / 100), 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= wanted:
            return round(2 ** ((bucket + 0.5) / _BUCKETS_A_DOUBLING))
    return 0


# -- the report --------------------------------------------------------------------------------------------------------


_TOPIC_HEADS = ("topic", "queues", "messages", "size", "p50", "p90", "p99", "producers")


def _topic_rows(summary: Summary) -> list[list[object]]:
    return [
        [
            topic["topic"],
            topic["queues"],
            topic["messages"],
            bytes_text(topic["bytes"]),
            topic["size_p50"],
            topic["size_p90"],
            topic["size_p99"],
            len(topic["producers"]),
        ]
        for topic in summary["topics"]
    ]


def _stats_text(summary: Summary) -> str:
    head = f"{counted(summary['messages'], 'message')}, {bytes_text(summary['bytes'])}"
    head += f", {counted(len(summary['topics']), 'topic')}"
    if summary["damaged"]:
        head += f", {counted(summary['damaged'], 'damaged place')}"
    return "\n".join([head, "", table_text(_TOPIC_HEADS, _topic_rows(summary)), *summary["damage"]])


def _stats_page(summary: Summary) -> str:
    hours: dict[int, int] = {}
    tags: dict[str, int] = {}
    for row in summary["groups"]:
        hours[row["hour_ms"]] = hours.get(row["hour_ms"], 0) + row["messages"]
        tags[row["tags"] or "(none)"] = tags.get(row["tags"] or "(none)", 0) + row["messages"]
    top = sorted(tags.items(), key=lambda item: (-item[1], item[0]))[:MOST_ROWS]
    shown = sorted(hours.items())[-72:]
    return page(
        "Contents of the stores",
        [
            f"<p>{summary['messages']:,} messages, {bytes_text(summary['bytes'])}.</p>",
            "<h2>Messages by topic</h2>",
            bars([(topic["topic"], topic["messages"]) for topic in summary["topics"][:MOST_ROWS]]),
            "<h2>Messages by hour of storing (UTC)</h2>",
            bars([(time_text(hour)[:16], count) for hour, count in shown]),
            "<h2>Messages by tag</h2>",
            bars(top),
            "<h2>Topics</h2>",
            html_table(_TOPIC_HEADS, _topic_rows(summary)),
        ],
    )


def _message(summary: Summary, figures: Mapping[str, int]) -> str:
    return f"{figures['records']:,} messages, {bytes_text(figures['bytes'])}, {len(summary['topics'])} topics"


JOB = Job(
    name="stats",
    help="count messages and bytes by topic, queue, tag and hour; list sizes and producers",
    run=lambda call: run(call.options, call.runner),
    text=_stats_text,
    page=_stats_page,
    figures=lambda summary: {"records": summary["messages"], "bytes": summary["bytes"]},
    message=_message,
    reads_a_part=True,
)
