"""Runs the items of a job: in this process, on Spark, or on Spark with each item where its volume is.

Items and results are small (a split, an aggregate), so items are elements of an RDD: without schema and code generation
a job takes half a second less than with a DataFrame. If results are large (files that the driver writes), a job takes
them one after the other from `stream`.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from pyspark import SparkContext

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 8
"""Largest number of results of a stream that are in progress or wait: the driver's memory must hold them."""
PIECE_BYTES = 4 << 20
"""Bytes of a piece of a streamed result. With pieces, Java on neither side needs the whole result as one array
twice."""
_groups = count()


class Runner(Protocol):
    @property
    def at_once(self) -> int:
        """The number of items that run at the same time."""
        ...

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Returns `function` of each item, in their order. An exception ends the job."""
        ...

    def stream(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Yields the same results one at a time; at most `AHEAD` of them are held. Closing it cancels running items.

        A result passes through Java's memory, so it should have at most some 32 MiB. To run items on different hosts
        at the same time, put them next to each other (`interleaved`).
        """
        ...


class Inline:
    """Runs the items one after the other in this process."""

    at_once = 1

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return [function(item) for item in items]

    def stream(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        return (function(item) for item in items)


inline = Inline()


class SparkRunner:
    """Runs one task for each item. `host_of`: the preferred executor host of an item, None: any (`located`).

    If Spark runs in this process (`local[N]`), a single item runs directly: a Spark job would take 0.1 s more and run
    it on the same machine.
    """

    def __init__(self, context: SparkContext, host_of: Callable[[Any], str | None] | None = None) -> None:
        self._context = context
        self._host_of = host_of
        self._is_here = host_of is None and str(context.master).split("[")[0] == "local"

    @property
    def at_once(self) -> int:
        return max(1, self._context.defaultParallelism)

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        if self._is_here and len(items) <= 1:
            return inline(function, items)
        if not items:
            return []
        return list(self._distributed(items).map(function).collect())

    def stream(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        if not items:
            return
        rdd = self._distributed(items).mapPartitions(partial(_pieces, function))
        group = f"stream-{next(_groups)}"
        hosts = [None if self._host_of is None else self._host_of(item) for item in items]
        at_a_time = max(1, self._context.defaultParallelism if self._host_of is None else 1)
        under_way: dict[int, Future[Result]] = {}
        with ThreadPoolExecutor(AHEAD, thread_name_prefix=group) as pool:
            try:
                for number in range(len(items)):
                    running = Counter(hosts[each] for each, future in under_way.items() if not future.done())
                    for each in startable(hosts, number, list(under_way), running, at_a_time):
                        under_way[each] = pool.submit(self._one, rdd, each, group)
                    yield under_way[number].result()
                    del under_way[number]
            finally:
                if under_way:  # the caller stopped early, or an item failed
                    for future in under_way.values():
                        future.cancel()
                    self._context.cancelJobGroup(group)

    def _one(self, rdd: Any, number: int, group: str) -> Any:
        """Runs a Spark job of one partition, so that the other items stay on their hosts."""
        self._context.setJobGroup(group, "one of a stream")
        return pickle.loads(b"".join(self._context.runJob(rdd, list, [number])))

    def _distributed(self, items: Sequence[Any]) -> Any:
        if self._host_of is None:
            return self._context.parallelize(items, len(items))
        return located(self._context, items, self._host_of)


def on_spark(context: SparkContext, host_of: Callable[[Any], str | None] | None = None) -> SparkRunner:
    return SparkRunner(context, host_of)


def startable(
    hosts: Sequence[str | None], number: int, held: Collection[int], running: Counter[str | None], at_a_time: int
) -> list[int]:
    """Returns the items of a stream to start when `number` is needed next. Pure.

    `held`: items that were started and not yet yielded; `running`: how many of these still run, by host. Item `number`
    is in `held` or in the result. A host gets no more items than it can run at a time, because Spark would give waiting
    ones to another host, which does not have the volume.
    """
    started = [] if number in held else [number]
    running = running + Counter(hosts[each] for each in started)
    for each in range(number + 1, min(number + AHEAD, len(hosts))):
        if len(held) + len(started) >= AHEAD:
            break
        if each not in held and running[hosts[each]] < at_a_time:
            started.append(each)
            running[hosts[each]] += 1
    return started


def interleaved(items: Sequence[Item], kind_of: Callable[[Item], Any]) -> list[Item]:
    """Returns the first item of each kind, then the second of each, and so on."""
    turns: Counter[Any] = Counter()
    keyed = []
    for item in items:
        kind = kind_of(item)
        keyed.append((turns[kind], item))
        turns[kind] += 1
    return [item for _, item in sorted(keyed, key=lambda pair: pair[0])]


def _pieces(function: Callable[[Item], Result], items: Iterator[Item]) -> Iterator[bytes]:
    for item in items:
        data = pickle.dumps(function(item), pickle.HIGHEST_PROTOCOL)
        for at in range(0, len(data), PIECE_BYTES):
            yield data[at : at + PIECE_BYTES]


def located(context: SparkContext, items: Sequence[Any], host_of: Callable[[Any], str | None]) -> Any:
    """Returns an RDD with one partition for each item, which prefers the item's host.

    Spark's Python API does not support that; only this function and `executor_hosts` use the Java side of the bridge.
    """
    from pyspark import RDD, CPickleSerializer

    context_: Any = context
    jvm: Any = context_._jvm
    serializer: Any = CPickleSerializer()
    pairs = jvm.java.util.ArrayList()
    for item in items:
        host = host_of(item)
        hosts = jvm.PythonUtils.toSeq([] if host is None else [host])
        pairs.add(jvm.scala.Tuple2(bytearray(serializer.dumps(item)), hosts))
    tag = jvm.scala.reflect.ClassTag.apply(context_._gateway.jvm.java.lang.Class.forName("[B"))
    made = context_._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(pairs), tag)
    return RDD(made.toJavaRDD(), context, serializer)


def executor_hosts(context: SparkContext, driver: str) -> list[str]:
    """Returns the host of each present executor. `driver`: host and port for blocks of the driver, which is excluded.

    Spark's Python API does not support that, either.
    """
    context_: Any = context
    addresses = context_._jvm.scala.jdk.javaapi.CollectionConverters.asJava(
        context_._jsc.sc().getExecutorMemoryStatus().keys()
    )
    return [address.rpartition(":")[0] for address in addresses if address != driver]


def is_stopped(context: SparkContext) -> bool:
    """Returns whether the context was stopped in this process. Its calls then have no Java side."""
    context_: Any = context
    return context_._jsc is None


def completed_tasks(context: SparkContext) -> int:
    """Returns the number of finished tasks of the running stages; 0 if Spark has ended."""
    from py4j.protocol import Py4JError

    try:
        if is_stopped(context):
            return 0
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except (Py4JError, OSError, AttributeError):  # it ends at this moment
        return 0
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)
