"""Converts Spark's filters to those of the reader, combined with AND. Spark 4.1 and later have them.

The reader applies filters on source, topic, queue, queue offset and store time itself. Filters on tags and on the
unique key only tell it what it need not read (`pruning.py`), and Spark applies them to the rows. Spark hands over
neither `or` nor functions of columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from tallystick.spark.columns import SCHEMA
from tallystick.spark.options import INT64_MAX, INT64_MIN
from tallystick.spark.scan import Int64Range, Wanted
from tallystick.spark.source import MessageReader

_RANGES = {"queue_offset": "queue_offsets", "store_timestamp_ms": "store_times_ms"}
_CHOICES = {"topic": "topics", "queue_id": "queues", "source": "sources"}


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


def push(wanted: Wanted, item: Filter) -> Wanted | None:
    """Returns `wanted` with one more filter, exactly. None: the scanner does not support it, so Spark must apply it."""
    match item:
        case IsNotNull(attribute=(name,)) if name in SCHEMA.names and not SCHEMA.field(name).nullable:
            return wanted
        case EqualTo(attribute=(name,), value=value) if name in _CHOICES:
            return _choose(wanted, _CHOICES[name], (value,))
        case In(attribute=(name,), value=values) if name in _CHOICES and None not in values:
            return _choose(wanted, _CHOICES[name], tuple(values))
        case EqualTo(attribute=(name,), value=int(value)) if name in _RANGES:
            return _limit(wanted, _RANGES[name], (value, value))
        case GreaterThan(attribute=(name,), value=int(value)) if name in _RANGES and value < INT64_MAX:
            return _limit(wanted, _RANGES[name], (value + 1, INT64_MAX))
        case GreaterThanOrEqual(attribute=(name,), value=int(value)) if name in _RANGES:
            return _limit(wanted, _RANGES[name], (value, INT64_MAX))
        case LessThan(attribute=(name,), value=int(value)) if name in _RANGES and value > INT64_MIN:
            return _limit(wanted, _RANGES[name], (INT64_MIN, value - 1))
        case LessThanOrEqual(attribute=(name,), value=int(value)) if name in _RANGES:
            return _limit(wanted, _RANGES[name], (INT64_MIN, value))
    return None


def hint(wanted: Wanted, item: Filter) -> Wanted:
    """Returns `wanted` with what a filter says that Spark must apply: a superset of its rows is read."""
    match item:
        case EqualTo(attribute=(name,), value=str(value)):
            values: tuple[str, ...] = (value,)
        case In(attribute=(name,), value=given) if all(isinstance(each, str) for each in given):
            values = tuple(given)
        case _:
            return wanted
    if name == "tags":
        return _choose(wanted, "tags", values)
    # A message can have one of `wanted.keys` among its keys, and another unique key.
    return replace(wanted, keys=values) if name == "unique_key" and wanted.keys is None else wanted


def _choose(wanted: Wanted, field: str, values: tuple[object, ...]) -> Wanted:
    before = getattr(wanted, field)
    kept: Any = values if before is None else tuple(value for value in before if value in values)
    return replace(wanted, **{field: kept})


def _limit(wanted: Wanted, field: str, bounds: Int64Range) -> Wanted:
    before = getattr(wanted, field) or (INT64_MIN, INT64_MAX)
    both: Any = max(before[0], bounds[0]), min(before[1], bounds[1])
    return replace(wanted, **{field: both})
