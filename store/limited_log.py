"""Logs that a flood cannot fill: of bad input, one line per kind of event and interval, with a count of the rest; of
work that fails each time it is tried, one line per error."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

_KEYS_MAX = 1024  # kinds are few and members are few


class LimitedLog:
    """Wraps a logger. `kind` names the event and comes from a fixed set, never from the input. With `about`, the number
    of a member, the limit applies to each member separately.

    `burst`: how many lines of a kind can come at once before the interval limits them.
    """

    def __init__(
        self, logger: logging.Logger, clock: Callable[[], float], interval_s: float = 10.0, burst: int = 1
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._interval_s = interval_s
        self._burst_s = (burst - 1) * interval_s
        self._next_s: dict[tuple[str, int | None], float] = {}
        """When the lines logged so far would have been logged at one per interval; a burst may run ahead of this
        time."""
        self._silent: dict[tuple[str, int | None], int] = {}
        self.counts: dict[str, int] = {}
        """Events of each kind so far, logged or not."""

    def warning(self, kind: str, message: str, *args: object, about: int | None = None, exc_info: bool = False) -> bool:
        """Logs `message`, unless the limit of its kind is reached. Returns whether it was logged."""
        return self._log(logging.WARNING, kind, about, message, args, exc_info)

    def info(self, kind: str, message: str, *args: object, about: int | None = None) -> bool:
        """The same at level INFO."""
        return self._log(logging.INFO, kind, about, message, args, False)

    def _log(
        self, level: int, kind: str, about: int | None, message: str, args: tuple[object, ...], exc_info: bool
    ) -> bool:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        key, now = (kind, about), self._clock()
        if now < self._next_s.get(key, now) - self._burst_s:
            self._silent[key] = self._silent.get(key, 0) + 1
            return False
        if len(self._next_s) >= _KEYS_MAX:
            self._next_s.clear()
        self._next_s[key] = max(now, self._next_s.get(key, now)) + self._interval_s
        silent = self._silent.pop(key, 0)
        if silent:
            message, args = message + " (and %d more since the last such line)", (*args, silent)
        self._logger.log(level, message, *args, exc_info=exc_info)
        return True


class RepeatedError:
    """Logs the errors of work that is retried: a line at level ERROR when the text of the error changes, and after a
    success again. `message` says what failed, and what follows from it.

    `expected`: errors that the work can have. Any other error is a bug in the work: its line has the traceback.
    """

    def __init__(
        self, logger: logging.Logger, message: str, expected: tuple[type[Exception], ...] = (OSError,)
    ) -> None:
        self._logger = logger
        self._message = message
        self._expected = expected
        self._last = ""

    def failed(self, error: Exception) -> None:
        """The work failed: logs the error, unless it is that of the previous attempt."""
        is_bug = not isinstance(error, self._expected)
        text = repr(error) if is_bug else str(error)
        if text != self._last:
            self._logger.error("%s: %s", self._message, text, exc_info=error if is_bug else None)
        self._last = text

    def worked(self) -> None:
        """The work succeeded: the next error is logged, whatever its text."""
        self._last = ""

    async def attempt(self, work: Callable[[], Awaitable[None] | None]) -> bool:
        """Does the work once, and logs its error. Returns whether it succeeded.

        This is how a loop survives a failed round: no error of `work` is raised.
        """
        try:
            result = work()
            if result is not None:
                await result
        except Exception as error:
            self.failed(error)
            return False
        self.worked()
        return True
