"""The first step of a job: for each store, it determines the bound and cuts the log below it into splits.

The bound comes first. If the address of the store's broker is known and the broker answers, its committed position is
the bound. Otherwise the files determine it (`volume.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tallystick.spark.options import ReadOptions
from tallystick.spark.pruning import difference, pruned
from tallystick.spark.runner import Runner
from tallystick.spark.scan import Wanted
from tallystick.spark.splits import Split, splits_of
from tallystick.spark.store_client import StoreClient, StoreClientError
from tallystick.spark.volume import Source, Volume, open_volume

Ranges = Sequence[tuple[int, int]]
_LOOKS = 3
_PATIENCE_S = 3.0
"""If the broker does not answer within this time, the files determine the bound."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlanTask:
    """`committed`: the given bound, if any; `without`: ranges of the log to leave out, ascending."""

    of: Source
    committed: int | None
    split_bytes: int
    without: tuple[tuple[int, int], ...] = ()
    wanted: Wanted = Wanted()  # noqa: RUF009 -- frozen
    """Ranges that cannot have records of this filter are left out as well."""

    @property
    def source(self) -> str:
        return self.of.source


@dataclass(frozen=True, slots=True)
class Planned:
    """A store at the time when its bound was determined, and its splits."""

    volume: Volume
    splits: tuple[Split, ...]


def plan_sources(
    options: ReadOptions,
    runner: Runner,
    without: Mapping[str, Ranges] | None = None,
    *,
    members: bool = False,
    wanted: Wanted | None = None,
) -> list[Planned]:
    """Plans all sources of `options`, in their order. `without`: ranges of the log to leave out, by source. `wanted`:
    a filter; ranges that cannot have its records are left out, unless the option `pruning` is false.

    OptionError: two sources have the same name; VolumeError, OSError.
    """
    tasks = plan_tasks(options, without, members=members)
    if wanted is not None and options.pruning:
        tasks = [replace(task, wanted=wanted) for task in tasks]
    return runner(plan_source, tasks)


def plan_tasks(
    options: ReadOptions, without: Mapping[str, Ranges] | None = None, *, members: bool = False
) -> list[PlanTask]:
    left_out = without or {}
    return [
        PlanTask(source, source.committed, options.split_bytes, tuple(left_out.get(source.source, ())))
        for source in options.sources(members=members)
    ]


def plan_source(task: PlanTask) -> Planned:
    volume = volume_of(task)
    ranges = difference(pruned(volume, task.wanted).ranges, task.without)
    splits = splits_of(volume, ranges, task.split_bytes)
    return Planned(replace(volume, ends=None), tuple(splits))  # only audits need the ends


def volume_of(task: PlanTask) -> Volume:
    committed = task.committed
    if committed is None and task.of.http is not None:
        committed = broker_bound(task.of)
    for look in range(_LOOKS):
        try:
            return open_volume(Path(task.of.root), task.of.source, committed)
        except FileNotFoundError:  # a file expired after it was listed
            if look == _LOOKS - 1:
                raise
    raise AssertionError("the loop returns or raises")


def broker_bound(source: Source) -> int | None:
    """Returns the committed position of the source's broker; None: it does not answer, or not with a position."""
    try:
        with StoreClient(source.http or "", source.access, patience_s=_PATIENCE_S) as client:
            return client.store().committed
    except StoreClientError as error:
        _logger.warning("the broker gave no bound, the files determine it: %s", error)
        return None
