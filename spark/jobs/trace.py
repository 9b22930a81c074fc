"""`trace`: all records of one message: sent, delayed, committed, retried, moved to the dead letters.

It finds a message by a key, by the client's id (UNIQ_KEY), or by the broker's id (its position). All later records of a
message have its UNIQ_KEY and its keys: while it is delayed, when a consumer sent it back (topic `%RETRY%group`), as a
dead letter (`%DLQ%group`), and when its transaction ended.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow.compute as pc

from tallystick.spark.jobs.job import Argument, Job, Summary
from tallystick.spark.jobs.report import table_text, time_text
from tallystick.spark.options import ReadOptions
from tallystick.spark.planning import plan_sources
from tallystick.spark.runner import Runner
from tallystick.spark.scan import SplitScan, Wanted
from tallystick.spark.splits import Split, Task, tasks_of
from tallystick.store.formats.derive import SCHEDULE_TOPIC
from tallystick.store.formats.message import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from tallystick.store.formats.message_id import MessageIdError, decode_message_id

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
RETRY, DLQ = "%RETRY%", "%DLQ%"
MOST_EVENTS = 10_000
_COLUMNS = (
    *("source", "topic", "queue_id", "queue_offset", "physical_offset", "message_id", "unique_key", "tags", "keys"),
    *("properties", "sys_flag", "born_timestamp_ms", "born_host", "store_timestamp_ms", "reconsume_times"),
    "body_bytes",
)


def run(options: ReadOptions, runner: Runner, sought: str) -> dict[str, Any]:
    """Returns the events in the order of their store times; records of several replicas count once. VolumeError,
    OSError."""
    planned = plan_sources(options, runner)
    rows: list[dict[str, Any]] = []
    keys = {sought}
    try:
        pos = decode_message_id(sought)[1]
        there = [split for each in planned for split in each.splits if split.begin <= pos < split.end]
        rows = [row for part in runner(partial(rows_with_id, message_id=sought.upper()), there) for row in part]
        keys |= {row["unique_key"] for row in rows if row["unique_key"]}
    except MessageIdError:
        pass  # then it is a key; a client's id can have the same length, so both are tried
    rows += _found(options, runner, keys)
    events: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        key = (row["message_id"], row["store_timestamp_ms"])
        event = events.setdefault(key, event_of(row))
        if row["source"] not in event["sources"]:
            event["sources"].append(row["source"])
    ordered = sorted(events.values(), key=lambda event: (event["stored_ms"], event["physical_offset"]))
    return {
        "job": "trace",
        "sought": sought,
        "sources": [
            {"source": each.volume.source, "begin": each.volume.begin, "bound": each.volume.bound} for each in planned
        ],
        "messages": sorted({row["unique_key"] for row in rows if row["unique_key"]}),
        "events": ordered[:MOST_EVENTS],
        "omitted": max(0, len(ordered) - MOST_EVENTS),
    }


def rows_with_id(split: Split, message_id: str) -> list[dict[str, Any]]:
    """Returns the record with this id, if it is in the split."""
    rows: list[dict[str, Any]] = []
    for batch in SplitScan(split, _COLUMNS):
        rows += batch.filter(pc.equal(batch.column("message_id"), message_id)).to_pylist()
    return [{**row, "properties": dict(row["properties"])} for row in rows]


def _found(options: ReadOptions, runner: Runner, keys: set[str]) -> list[dict[str, Any]]:
    """Returns the records with one of these keys, by the index files where they can tell."""
    wanted = Wanted(keys=tuple(sorted(keys)))
    splits = [split for each in plan_sources(options, runner, wanted=wanted) for split in each.splits]
    tasks = tasks_of(splits, options.split_bytes)
    return [row for part in runner(partial(rows_of, wanted=wanted), tasks) for row in part]


def rows_of(task: Task, wanted: Wanted) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for split in task.splits:
        for batch in SplitScan(split, _COLUMNS, wanted):
            rows += batch.to_pylist()
            if len(rows) >= MOST_EVENTS:
                break
    return [{**row, "properties": dict(row["properties"])} for row in rows]


def event_of(row: dict[str, Any]) -> dict[str, Any]:
    properties = row["properties"]
    return {
        "stored_ms": row["store_timestamp_ms"],
        "what": what_happened(row["topic"], row["sys_flag"], row["reconsume_times"], properties),
        "topic": row["topic"],
        "queue_id": row["queue_id"],
        "queue_offset": row["queue_offset"],
        "physical_offset": row["physical_offset"],
        "message_id": row["message_id"],
        "unique_key": row["unique_key"],
        "tags": row["tags"],
        "keys": row["keys"],
        "born_ms": row["born_timestamp_ms"],
        "born_host": row["born_host"],
        "attempts": row["reconsume_times"],
        "body_bytes": row["body_bytes"],
        "sources": [],
    }


def what_happened(topic: str, sys_flag: int, attempts: int, properties: dict[str, str]) -> str:
    """Returns a text for the event, from the record's topic and its properties."""
    if topic == HALF_TOPIC:
        return f"half of a transaction, for {properties.get('REAL_TOPIC', '?')}"
    if topic == SCHEDULE_TOPIC:
        real = properties.get("REAL_TOPIC", "?")
        if real.startswith((RETRY, DLQ)):
            return f"waits for try {attempts} by {real.removeprefix(RETRY).removeprefix(DLQ)}"
        return f"waits for delay level {properties.get('DELAY', '?')}, for {real}"
    if topic.startswith(DLQ):
        return f"given up by {topic.removeprefix(DLQ)} after {attempts} tries"
    if topic.startswith(RETRY):
        return f"delivered again to {topic.removeprefix(RETRY)}, try {attempts}"
    kind = sys_flag & TRANSACTION_MASK
    if kind == TRANSACTION_COMMIT:
        return "committed"
    if kind == TRANSACTION_ROLLBACK:
        return "rolled back"
    if "DELAY" in properties:
        return f"delivered after delay level {properties['DELAY']}"
    return "sent"


# -- the report --------------------------------------------------------------------------------------------------------


def _trace_text(summary: Summary) -> str:
    rows = [
        [
            time_text(event["stored_ms"]),
            event["what"],
            event["topic"],
            f"{event['queue_id']}/{event['queue_offset']}",
            event["message_id"],
            ",".join(event["sources"]),
        ]
        for event in summary["events"]
    ]
    if not rows:
        return f"no record of {summary['sought']} was found"
    return table_text(("stored (UTC)", "what", "topic", "queue/offset", "message id", "on"), rows)


JOB = Job(
    name="trace",
    help="show all records of a key or message id",
    run=lambda call: run(call.options, call.runner, call.arguments["key"]),
    text=_trace_text,
    figures=lambda summary: {"rows": len(summary["events"])},
    message=lambda summary, figures: f"{figures['rows']:,} events of {summary['sought']}",
    arguments=(Argument("key", "key, unique key or message id", metavar="KEY"),),
)
