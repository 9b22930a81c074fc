"""The first step of an export: it reads the messages that are not exported yet, and gathers them in Arrow files.

What follows depends on the form of the output: `export.py` merges them into a folder, `iceberg_export.py` into tables.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow.compute as pc

from tallystick.spark.jobs.export_book import Ranges, file_name
from tallystick.spark.jobs.export_files import Form, Gathered, GatherTask, gather
from tallystick.spark.options import ReadOptions
from tallystick.spark.outputs import Output, writing
from tallystick.spark.planning import Planned, plan_sources
from tallystick.spark.runner import Runner, interleaved
from tallystick.spark.scan import Damage, SplitScan, Wanted
from tallystick.spark.splits import Split

CARRIED_BYTES = 16 << 20
"""Approximate bytes of the log for the file of one task, if the driver has to hold its result."""


@dataclass(frozen=True)
class Reading:
    """What a run read of all sources. `lost`: splits behind the bound, whose messages are gone: they are reported and
    not recorded, because the broker can write new messages there. `damage`: of all splits."""

    planned: Sequence[Planned]
    gathered: Sequence[Gathered]
    lost: Sequence[Split]
    damage: Sequence[Damage]

    def of(self, source: str) -> list[Gathered]:
        """Returns what was gathered of a source."""
        return [each for each in self.gathered if each.split.source == source]

    def ranges(self, source: str) -> Ranges:
        """Returns the ranges of a source's log whose messages were gathered. Without those that expired meanwhile or
        are missing: another member of the group may still have them."""
        done = [each.split for each in self.of(source) if not each.expired and not each.split.missing]
        return [(split.begin, split.end) for split in done]

    def summary(self, exported: Mapping[str, Ranges]) -> dict[str, Any]:
        """Returns what a summary says about the reading. `exported`: the ranges of each source that are exported."""
        return {
            "sources": [
                _source_summary(each, exported[each.volume.source], self.of(each.volume.source))
                for each in self.planned
            ],
            "without_content": sum(each.unread for each in self.gathered),
            "damaged": sum(each.damaged for each in self.gathered) + len(self.lost),
            "damage": [str(each) for each in self.damage],
        }


def read_new(
    options: ReadOptions,
    runner: Runner,
    output: Output,
    form: Form,
    exported: Mapping[str, Ranges],
    folder: str,
    token: str,
) -> Reading:
    """Gathers the messages outside of the ranges that are exported. The names of the files are
    `folder/source-token-position`. VolumeError, OSError."""
    if not output.shared:
        options = replace(options, split_bytes=min(options.split_bytes, CARRIED_BYTES))
    planned = plan_sources(options, runner, exported)
    splits = [split for each in planned for split in each.splits if split.begin < each.volume.bound]
    splits = interleaved(splits, lambda split: split.source)
    if not output.shared:
        splits = [piece for pieces in runner(cut, splits) for piece in pieces]
    items = [GatherTask(each, f"{folder}/{file_name(each.source)}-{token}-{each.begin:020d}") for each in splits]
    gathered = list(writing(output, runner, partial(gather, wanted=options.wanted, form=form), items))
    lost = [split for each in planned for split in each.splits if split.begin >= each.volume.bound]
    damage = [damage for each in gathered for damage in each.damage]
    damage += [found for each in runner(damage_of, lost) for found in each]
    return Reading(planned, gathered, lost, damage)


def _source_summary(planned: Planned, ranges: Ranges, own: Sequence[Gathered]) -> dict[str, Any]:
    volume = planned.volume
    return {
        "source": volume.source,
        "begin": volume.begin,
        "bound": volume.bound,
        "ranges": ranges,
        "records": sum(each.records for each in own),
        "added_rows": sum(each.rows for each in own),
        "added_bytes": sum(each.split.bytes for each in own),
    }


def cut(split: Split) -> list[Split]:
    """Splits a split into pieces of about `CARRIED_BYTES` at the ends of records, if no queue had a boundary."""
    if split.bytes <= 2 * CARRIED_BYTES:
        return [split]
    pieces = []
    for batch in SplitScan(split, ["physical_offset", "size"]):
        ends = pc.add(batch.column(0), batch.column(1)).to_pylist()
        while (number := bisect_left(ends, split.begin + CARRIED_BYTES)) < len(ends) and ends[number] < split.end:
            pieces.append(replace(split, end=ends[number]))
            split = replace(split, begin=ends[number])
    return [*pieces, split]


def damage_of(split: Split) -> list[Damage]:
    """Returns the damage of a split whose messages are not exported."""
    scan = SplitScan(split, [], Wanted(topics=()))
    for _ in scan:
        pass
    return scan.damage
