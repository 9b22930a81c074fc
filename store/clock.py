"""The two clocks, in the unit of records and settings.

The wall clock says when something happened, for records and for people. It can be set at any time, by any amount.
Therefore a duration is never a difference of wall clock times: intervals, leases and timeouts use the steady clock.
Only the wall clock tells the ages of files and messages; `age_clock.py` protects deletions by age.
"""

import time


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Milliseconds of a clock that cannot be set. Only differences are meaningful."""
    return time.monotonic_ns() // 1_000_000


def elapsed_ms() -> int:
    """Like `steady_ms`, but it also advances while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
