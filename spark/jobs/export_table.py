"""An exported folder as a table of Spark's catalog."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tallystick.spark.options import OptionError


def create_table(name: str, place: str, schema: pa.Schema) -> None:
    """Creates the table if it does not exist, and adds the partitions of new topics and days. OptionError: there is no
    session of Spark with a catalog, or Spark refuses the table."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise OptionError("table", f"needs Spark: {error}") from error
    spark = SparkSession.getActiveSession()
    if spark is None:
        raise OptionError("table", "needs a session of Spark, which this run does not have")
    try:
        spark.sql(statement(name, place, schema))
        spark.sql(f"ALTER TABLE {name} RECOVER PARTITIONS")
    except PySparkException as error:
        raise OptionError("table", f"{name}: {error}") from error


def statement(name: str, place: str, schema: pa.Schema) -> str:
    """Returns the statement that creates the table. Topic and day are its partitions."""
    from pyspark.sql.pandas.types import from_arrow_type

    columns = [f"{field.name} {from_arrow_type(field.type).simpleString()}" for field in schema]
    columns += ["topic string", "day string"]
    location = place.replace("s3://", "s3a://", 1) if place.startswith("s3://") else str(Path(place).absolute())
    location = location.replace("\\", "\\\\").replace("'", "\\'")
    return (
        f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns)}) USING parquet PARTITIONED BY (topic, day) "
        f"LOCATION '{location}'"
    )
