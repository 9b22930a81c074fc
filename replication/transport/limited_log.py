"""A log that a peer cannot fill: one line for a kind of event and peer in each interval, with a count of the others."""

from __future__ import annotations

import logging
from collections.abc import Callable

_KEYS_MAX = 1024  # kinds are few and members are few; strangers share one key


class LimitedLog:
    """Wraps a logger. `kind` and `peer` say what happened with whom; neither is taken from the input of a stranger."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float], interval_s: float = 10.0) -> None:
        self._logger = logger
        self._clock = clock
        self._interval_s = interval_s
        self._next_s: dict[tuple[str, int | None], float] = {}
        self._silent: dict[tuple[str, int | None], int] = {}

    def warning(self, kind: str, peer: int | None, message: str, *args: object, exc_info: bool = False) -> bool:
        """Log `message`, unless a line of that kind about that peer was logged less than an interval ago; whether."""
        return self._log(logging.WARNING, kind, peer, message, args, exc_info)

    def info(self, kind: str, peer: int | None, message: str, *args: object) -> None:
        """The same for what is as it should be."""
        self._log(logging.INFO, kind, peer, message, args, False)

    def _log(
        self, level: int, kind: str, peer: int | None, message: str, args: tuple[object, ...], exc_info: bool
    ) -> bool:
        key = (kind, peer)
        now = self._clock()
        if now < self._next_s.get(key, now):
            self._silent[key] = self._silent.get(key, 0) + 1
            return False
        if len(self._next_s) >= _KEYS_MAX:
            self._next_s.clear()
        self._next_s[key] = now + self._interval_s
        silent = self._silent.pop(key, 0)
        if silent:
            message, args = message + " (and %d more since the last such line)", (*args, silent)
        self._logger.log(level, message, *args, exc_info=exc_info)
        return True
