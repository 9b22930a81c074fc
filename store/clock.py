"""The two clocks, in the unit of records and settings.

The wall clock says when something happened, for records and for people. It may be set at any time, by any amount. How
long something lasted is never a difference of wall clock times: intervals, leases and patience are counted on the
steady clock. Ages of files and messages have nothing but the wall clock; `age_clock.py` guards deletions by age.
"""

import time


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Milliseconds of a clock that nobody can set. Only differences have a meaning."""
    return time.monotonic_ns() // 1_000_000


def elapsed_ms() -> int:
    """As `steady_ms`, but it also counts while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
