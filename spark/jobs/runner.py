"""Runs a job's items: in this process, on Spark, or on Spark with each item where its volume is.

What crosses between driver and workers is small (a split there, an aggregate back), so items are elements of an RDD: no
schema, no code generation, and about half a second less for each job than the same through a DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")


class Runner(Protocol):
    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """`function` of each item, in their order. What it raises ends the job."""
        ...


def inline(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """One after the other, here."""
    return [function(item) for item in items]


def on_spark(spark: SparkSession, host_of: Callable[[Any], str] | None = None) -> Runner:
    """A task for each item. `host_of`: the executor's host that is to be preferred for it (`located`)."""

    def run(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        if not items:
            return []
        rdd = located(spark, items, host_of) if host_of else spark.sparkContext.parallelize(items, len(items))
        return list(rdd.map(function).collect())

    return run


def located(spark: SparkSession, items: Sequence[Any], host_of: Callable[[Any], str]) -> Any:
    """An RDD with one partition for each item, preferred on its host.

    Python has no public way to say so; this is the only place that uses Spark's own side of the bridge.
    """
    from pyspark import RDD, CPickleSerializer

    context: Any = spark.sparkContext
    jvm: Any = context._jvm
    serializer: Any = CPickleSerializer()
    pairs = jvm.java.util.ArrayList()
    for item in items:
        hosts = jvm.PythonUtils.toSeq([host_of(item)])
        pairs.add(jvm.scala.Tuple2(bytearray(serializer.dumps(item)), hosts))
    tag = jvm.scala.reflect.ClassTag.apply(context._gateway.jvm.java.lang.Class.forName("[B"))
    made = context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(pairs), tag)
    return RDD(made.toJavaRDD(), context, serializer)
