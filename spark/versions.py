"""What differs between the versions of Spark that the data source supports: 4.0 to 4.3.

4.0     no push-down of filters
4.2     streams have limits of a step, and the trigger availableNow in several steps
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pyarrow as pa
import pyspark.sql
import pyspark.sql.datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

__all__ = [
    "HAS_READ_LIMITS",
    "PUSHDOWN_SETTING",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "has_filters",
    "is_remote_session",
    "pushes_filters",
]

PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
except ImportError:
    HAS_READ_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]
        """Stands for the class of later versions, so that the stream reader can be defined."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """As above."""

    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """As above."""

        def __init__(self, max_bytes: int) -> None:
            self.max_bytes = max_bytes

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """As above."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the Arrow schema that Spark expects of batches."""
    convert: Any = to_arrow_schema
    takes_zone = "timezone" in inspect.signature(convert).parameters
    return convert(schema, timezone="UTC") if takes_zone else convert(schema)


def has_filters() -> bool:
    """Returns whether this version can push filters down."""
    return hasattr(pyspark.sql.datasource.DataSourceReader, "pushFilters")


def is_remote_session(session: Any) -> bool:
    """Returns whether Spark runs elsewhere (Spark Connect), without a context in this process."""
    return not isinstance(session, pyspark.sql.SparkSession)


def pushes_filters() -> bool:
    """Returns whether Spark asks this process to take filters.

    A reader that can take filters is an error where the user's session does not push them. Spark plans the two cases in
    separate worker processes, so the loaded module shows which one it is.
    """
    return _PUSHDOWN_WORKER in sys.modules
