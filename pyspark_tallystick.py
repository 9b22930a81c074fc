"""Spark imports this module to find the data source `tallystick`, so that no program has to register it.

An error here would hide all other Python data sources from Spark. So the module has no source where a library is
missing, and `tallystick.spark.source.register` then says which.
"""

try:
    from tallystick.spark.source import TallystickSource as DefaultSource
except ImportError:
    pass

__all__ = ["DefaultSource"]
