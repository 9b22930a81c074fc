"""The options of the Java processes of a StoreJob, compared with those of Spark's launcher."""

from __future__ import annotations

from typing import Any

from tallystick.spark.cluster.java import Java


def test_what_spark_reaches_into_is_open(spark: Any) -> None:
    """As its launcher says: a newer Spark may want more."""
    wanted = spark._jvm.org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptionArray()
    command = Java("java", ()).gateway(512)
    opened = [each for each in wanted if each.startswith("--add-opens=java.base/")]
    assert len(opened) > 10 and set(opened) <= set(command)
    assert {each for each in wanted if each.startswith("-Dio.netty.") and ".ssl." not in each} <= set(command)
