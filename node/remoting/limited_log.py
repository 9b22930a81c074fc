"""A log that a flood of bad input cannot fill: one line per kind of event and interval, with a count of the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable


class LimitedLog:
    """Wraps a logger. `kind` names what happened and comes from a fixed set, never from the input."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float], interval_s: float = 10.0) -> None:
        self._logger = logger
        self._clock = clock
        self._interval_s = interval_s
        self._next_s: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        """Events of each kind so far, logged or not."""
        self._logged: dict[str, int] = {}

    def warning(self, kind: str, message: str, *args: object, exc_info: bool = False) -> None:
        """Log `message`, unless a line of that kind was logged less than an interval ago."""
        count = self.counts[kind] = self.counts.get(kind, 0) + 1
        now = self._clock()
        if now < self._next_s.get(kind, now):
            return
        self._next_s[kind] = now + self._interval_s
        silent = count - 1 - self._logged.get(kind, 0)
        self._logged[kind] = count
        if silent:
            message, args = message + " (and %d more since the last such line)", (*args, silent)
        self._logger.warning(message, *args, exc_info=exc_info)
