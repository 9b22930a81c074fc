"""`export`: messages as Parquet files by topic and day, and a record of which bytes of which log are in them.

    out/topic=orders/day=2026-11-21/broker-a-00000000000000000000-00000000000134217728.parquet
    out/_tally/broker-a.json        {"ranges": [[0, 134217728]]}: half-open, of the source's log

A run exports what lies below the bound now and is in no range yet; so a second run adds exactly what came since. It is
all or nothing: files are written aside, moved in place under names that carry their range, and then the ranges are
saved. A run that was killed leaves files of ranges that are not recorded, and the next one removes them first. Times
are those of storing, days are UTC. Members of one group hold the same messages: export one of them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from tallystick.spark.columns import SCHEMA, schema_of
from tallystick.spark.jobs.runner import Runner
from tallystick.spark.options import ReadOptions
from tallystick.spark.scan import Damage, SplitScan, Wanted
from tallystick.spark.splits import Split, plan
from tallystick.spark.volume import Volume

DAY_MS = 86_400_000
_BOOKS = "_tally"
_STAGING = "staging"
_NAME = re.compile(r"(?P<source>.+)-(?P<begin>\d{20})-(?P<end>\d{20})\.parquet")
_MOST_OPEN = 256
"""Parquet files a task writes at a time; a split of more topics and days closes the oldest and begins another part."""

Ranges = list[tuple[int, int]]


@dataclass(frozen=True)
class Exported:
    split: Split
    rows: int
    files: int
    damaged: int
    damage: list[Damage]


class ExportError(Exception):
    """The output folder is not what an export left behind."""


def run(options: ReadOptions, runner: Runner, out: Path) -> dict[str, Any]:
    """Brings `out` up to date. VolumeError, OSError; ExportError: its books cannot be read, or name another filter."""
    volumes = options.volumes()
    books = {volume.source: _ranges(out, volume.source, options.wanted) for volume in volumes}
    for volume in volumes:
        _remove_unrecorded(out, volume.source, books[volume.source])
    missing = [split for volume in volumes for split in _missing(volume, books[volume.source], options.split_bytes)]
    staging = out / _BOOKS / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    exported = runner(partial(write_split, staging=str(staging), wanted=options.wanted), missing)
    _move(staging, out)
    for volume in volumes:
        done = [each.split for each in exported if each.split.source == volume.source]
        books[volume.source] = joined(books[volume.source] + [(split.begin, split.end) for split in done])
        _save(out, volume.source, books[volume.source], options.wanted)
    return {
        "job": "export",
        "out": str(out),
        "sources": [
            {
                "source": volume.source,
                "bound": volume.bound,
                "ranges": books[volume.source],
                "added_rows": sum(each.rows for each in exported if each.split.source == volume.source),
                "added_bytes": sum(each.split.bytes for each in exported if each.split.source == volume.source),
            }
            for volume in volumes
        ],
        "added_rows": sum(each.rows for each in exported),
        "added_files": sum(each.files for each in exported),
        "damaged": sum(each.damaged for each in exported),
        "damage": [str(damage) for each in exported for damage in each.damage],
    }


def write_split(split: Split, staging: str, wanted: Wanted) -> Exported:
    """The split's messages below `staging`. What an earlier try of the task wrote is replaced."""
    schema = schema_of(name for name in SCHEMA.names if name != "topic")
    writers: dict[tuple[str, str], parquet.ParquetWriter] = {}
    parts: dict[tuple[str, str], int] = {}
    rows = 0
    scan = SplitScan(split, SCHEMA.names, wanted, check_crc=True)
    try:
        for batch in scan:
            table = pa.Table.from_batches([batch])
            day = pc.cast(pc.floor(pc.divide(pc.cast(table["store_timestamp_ms"], pa.float64()), DAY_MS)), pa.int64())
            table = table.append_column("_day", day)
            kinds = table.group_by(["topic", "_day"], use_threads=False).aggregate([])
            for topic, number in zip(kinds["topic"].to_pylist(), kinds["_day"].to_pylist(), strict=True):
                taken = table.filter(pc.and_(pc.equal(table["topic"], topic), pc.equal(table["_day"], number)))
                key = (topic, day_name(number))
                if key not in writers:
                    while len(writers) >= _MOST_OPEN:
                        writers.pop(next(iter(writers))).close()
                    parts[key] = parts.get(key, 0) + 1
                    writers[key] = _writer(Path(staging), split, key, parts[key], schema)
                writers[key].write_table(taken.drop_columns(["topic", "_day"]).cast(schema))
                rows += taken.num_rows
    finally:
        for writer in writers.values():
            writer.close()
    return Exported(split, rows, sum(parts.values()), scan.damaged, scan.damage)


def _writer(staging: Path, split: Split, key: tuple[str, str], part: int, schema: pa.Schema) -> parquet.ParquetWriter:
    topic, day = key
    folder = staging / f"topic={quote(topic, safe='')}" / f"day={day}"
    folder.mkdir(parents=True, exist_ok=True)
    source = _file_name(split.source) + ("" if part == 1 else f"~{part}")
    return parquet.ParquetWriter(
        folder / f"{source}-{split.begin:020d}-{split.end:020d}.parquet", schema, compression="zstd"
    )


def day_name(number: int) -> str:
    """The day so many days after 1970-01-01; `beyond`: a clock was so wrong that the calendar has no such day."""
    from datetime import date, timedelta

    try:
        return (date(1970, 1, 1) + timedelta(days=number)).isoformat()
    except OverflowError:
        return "beyond"


def joined(ranges: Ranges) -> Ranges:
    """The same bytes in as few ranges as possible, ascending."""
    found: Ranges = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif begin < end:
            found.append((begin, end))
    return found


def _missing(volume: Volume, ranges: Ranges, split_bytes: int) -> list[Split]:
    splits, pos = [], volume.begin
    for begin, end in [*ranges, (volume.bound, volume.bound)]:
        if pos < begin:
            splits += plan(volume, pos, min(begin, volume.bound), split_bytes)
        pos = max(pos, end)
    return splits


def _file_name(source: str) -> str:
    return quote(source, safe="")


def _book(out: Path, source: str) -> Path:
    return out / _BOOKS / f"{_file_name(source)}.json"


def _filter_of(wanted: Wanted) -> Mapping[str, Any]:
    named = {name: getattr(wanted, name) for name in ("topics", "queues", "queue_offsets", "store_times_ms", "keys")}
    return {name: list(value) for name, value in named.items() if value is not None}


def _ranges(out: Path, source: str, wanted: Wanted) -> Ranges:
    path = _book(out, source)
    try:
        book = json.loads(path.read_text())
        ranges, chosen = [(int(begin), int(end)) for begin, end in book["ranges"]], book["filter"]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{path} cannot be read: {error}") from error
    if chosen != _filter_of(wanted):
        raise ExportError(f"{out} was begun with another filter ({chosen}): export into another folder")
    return joined(ranges)


def _save(out: Path, source: str, ranges: Ranges, wanted: Wanted) -> None:
    path = _book(out, source)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"source": source, "filter": _filter_of(wanted), "ranges": ranges}) + "\n")
    temporary.replace(path)


def _remove_unrecorded(out: Path, source: str, ranges: Ranges) -> None:
    for path in out.glob("topic=*/day=*/*.parquet"):
        name = _NAME.fullmatch(path.name)
        if name is None or name["source"].partition("~")[0] != _file_name(source):
            continue
        begin, end = int(name["begin"]), int(name["end"])
        if not any(low <= begin and end <= high for low, high in ranges):
            path.unlink()


def _move(staging: Path, out: Path) -> None:
    for path in sorted(staging.glob("topic=*/day=*/*.parquet")):
        target = out / path.relative_to(staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    shutil.rmtree(staging, ignore_errors=True)
