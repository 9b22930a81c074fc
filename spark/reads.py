"""How much of logs is read, counted where a file is read.

    in a process        `so_far`: all that scans have read in it
    of a job            `CountingRunner`: the sum over its items
    of Spark's tasks    `SessionReads`: what the tasks of the data source have read, in the driver

It is what the scanner reads of the files of logs. The driver also reads a few pages of queues and index when it plans;
these are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

    from tallystick.spark.runner import Runner

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Reads:
    """`bytes`: read from files of logs; `records`: sound records in them, wanted or not; `tasks`: of Spark."""

    bytes: int = 0
    records: int = 0
    tasks: int = 0

    def __add__(self, more: Reads) -> Reads:
        return Reads(self.bytes + more.bytes, self.records + more.records, self.tasks + more.tasks)

    def __sub__(self, less: Reads) -> Reads:
        return Reads(self.bytes - less.bytes, self.records - less.records, self.tasks - less.tasks)


NOTHING = Reads()
_so_far = NOTHING


def add(read_bytes: int, records: int) -> None:
    """Counts what a scan has read since its last call."""
    global _so_far
    _so_far += Reads(read_bytes, records)


def so_far() -> Reads:
    """Returns what this process has read. A worker of Spark runs one task at a time, so a difference is of one task."""
    return _so_far


class CountingRunner:
    """A `Runner` that counts what the items read. An item that Spark runs twice counts once."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.reads = NOTHING

    @property
    def at_once(self) -> int:
        return self._runner.at_once

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return list(self._results(self._runner(partial(_counted, function=function), items)))

    def stream(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        return self._results(self._runner.stream(partial(_counted, function=function), items))

    def _results(self, counted: Any) -> Iterator[Any]:
        for result, reads in counted:
            self.reads += reads
            yield result


def _counted(item: Any, function: Callable[[Any], Any]) -> tuple[Any, Reads]:
    before = so_far()
    result = function(item)
    return result, so_far() - before


Stages = Mapping[int, Reads]
"""By the id of Spark's stage."""
_EARLIER = -1
"""The key for the stages before the last `_MOST_STAGES`."""
_MOST_STAGES = 1000


class SessionReads:
    """What the tasks of the data source have read in a session, since `source.register` returned it.

    A task counts when it ends well, before the query returns. A task that Spark stops early, as for `limit`, does not
    count; a task that is repeated counts once. Tasks fill an accumulator of Spark, which this object reads.
    """

    def __init__(self, context: SparkContext) -> None:
        param: Any = _StagesParam()  # Spark calls its methods only, and a scan must not import Spark
        self.accumulator: Accumulator[Stages] = context.accumulator({}, param)

    @property
    def total(self) -> Reads:
        return sum(self.accumulator.value.values(), NOTHING)

    @property
    def stages(self) -> Stages:
        """The last 1000 stages, as Spark's UI and event log number them."""
        return {stage: reads for stage, reads in self.accumulator.value.items() if stage != _EARLIER}


class _StagesParam:
    """Adds up what stages have read. It returns a new mapping each time, because another thread may read the old
    one."""

    def zero(self, value: Stages) -> Stages:
        return {}

    def addInPlace(self, value: Stages, more: Stages) -> Stages:  # noqa: N802
        found = dict(value)
        for stage, reads in more.items():
            found[stage] = found.get(stage, NOTHING) + reads
        for stage in sorted(stage for stage in found if stage != _EARLIER)[:-_MOST_STAGES]:
            found[_EARLIER] = found.get(_EARLIER, NOTHING) + found.pop(stage)
        return found


def counting(batches: Iterator[Result], accumulator: Accumulator[Stages] | None) -> Iterator[Result]:
    """Yields the batches of a task, and adds what it has read to the accumulator of its session."""
    from pyspark import TaskContext

    before = so_far()
    yield from batches
    task = TaskContext.get()
    if accumulator is not None and task is not None:
        read = so_far() - before
        accumulator.add({task.stageId(): Reads(read.bytes, read.records, 1)})
