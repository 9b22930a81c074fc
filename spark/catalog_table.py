"""Tables of Spark's catalog: `CREATE TABLE orders USING tallystick OPTIONS (path '/data/a', topic 'orders')`.

Spark gives a source in Python the options of a table when the table is created, and none when it is read. But Spark
keeps the schema, with the metadata of each column. So the source writes the options into the metadata of the first
column, and finds them there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from tallystick.spark.options import OptionError

_METADATA = "tallystick.options"
_PROVIDER = "provider"
_PREFIX = "option."


def is_created(options: Mapping[str, str]) -> bool:
    """Returns whether the options are those of CREATE TABLE: Spark adds properties of the table."""
    return _PROVIDER in options and "owner" in options


def options_of(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options that the user gave."""
    if not is_created(options):
        return dict(options)
    given = {name[len(_PREFIX) :]: text for name, text in options.items() if name.startswith(_PREFIX)}
    if "path" in options:  # the location of the table
        given["path"] = options["path"]
    return given


def schema_with(options: Mapping[str, str], schema: pa.Schema) -> StructType:
    """Returns the schema as Spark's, with the options. OptionError: one of them must not be in a catalog."""
    if any(name.lower() == "token" for name in options):
        raise OptionError("token", "would be readable in the catalog: use tokenFile")
    columns = [StructField(field.name, from_arrow_type(field.type), True) for field in schema]
    columns[0].metadata = {_METADATA: json.dumps(dict(options))}
    return StructType(columns)


def options_in(schema: StructType) -> dict[str, str]:
    """Returns the options that `schema_with` wrote, if any."""
    for column in schema.fields:
        if _METADATA in (column.metadata or {}):
            found = json.loads(column.metadata[_METADATA])
            return {str(name): str(text) for name, text in found.items()}
    return {}
