"""One turn of a client: its arguments, and what it counts. It runs in the client's process, with any Python 3.11.

The CPU time is that of the process, threads included, between the end of the warm-up and the end of the measurement.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Arguments:
    """`server`: of name servers, for the official client a proxy. Loads that send run for `seconds` after `warm_up`
    seconds; those that consume end with `count` messages, of which the first fifth is the warm-up."""

    mode: str
    server: str
    topic: str
    group: str
    size: int
    outstanding: int
    seconds: float
    warm_up: float
    count: int

    @property
    def body(self) -> bytes:
        """The body of each message."""
        return b"x" * self.size

    @property
    def buffer_bytes(self) -> int:
        """Memory for so many outstanding messages."""
        return self.outstanding * (self.size + 700)

    @classmethod
    def parse(cls, arguments: list[str]) -> Arguments:
        """From the command line: one JSON object."""
        return cls(**json.loads(arguments[0]))


class Counter:
    """Counts messages, and notes when the measurement began and ended."""

    def __init__(self, given: Arguments) -> None:
        self._given = given
        self._count = 0
        self._begin: tuple[int, float, float] | None = None
        self._end: tuple[int, float, float] | None = None
        self._first_s: float | None = None
        self.goes_on = True

    def add(self, count: int) -> None:
        """So many messages were stored or consumed."""
        self._count += count
        given = self._given
        if given.count:
            if self._begin is None and self._count >= given.count // 5:
                self._begin = self._now()
            if self._end is None and self._count >= given.count:
                self._end, self.goes_on = self._now(), False
            return
        now_s = time.perf_counter()
        if self._first_s is None:
            self._first_s = now_s
        elif self._begin is None:
            if now_s - self._first_s >= given.warm_up:
                self._begin = self._now()
        elif self._end is None and now_s - self._begin[1] >= given.seconds:
            self._end, self.goes_on = self._now(), False

    def _now(self) -> tuple[int, float, float]:
        return self._count, time.perf_counter(), time.process_time()

    def report(self) -> None:
        """Prints the result as one line."""
        assert self._begin is not None and self._end is not None, "the measurement did not end"
        count, seconds, cpu_s = (end - begin for begin, end in zip(self._begin, self._end, strict=True))
        print(json.dumps({"messages": count, "seconds": seconds, "cpu_s": cpu_s}), flush=True)
