"""How far a broker's start is, for probes and `GET /node`: which step, since when, and how much of the log is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

STARTING, WAITING, RECOVERING = "starting", "waiting-for-name", "recovering"
_WORDS = {
    STARTING: "starting",
    WAITING: "starting: the broker's own name has no address yet",
    RECOVERING: "starting: the store is being recovered",
}


class StartStoppedError(Exception):
    """A signal ended the start before the log was recovered. The next start recovers it from the beginning."""


class StartProgress:
    """The code that starts a broker reports here. `read` may be called on any thread: it only replaces values.

    It is also the way to end a recovery that takes long: after `stop` the next `read` raises StartStoppedError.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.phase = STARTING
        self._clock = clock
        self._step = ""
        self._since_s = clock()
        self._begin: int | None = None
        self._pos = self._end = 0
        self._stopped = False

    def stop(self) -> None:
        """Let the running recovery end where it is, as a kill would end it."""
        self._stopped = True

    def enter(self, phase: str, step: str = "") -> None:
        """The next step begins."""
        self.phase, self._step, self._since_s = phase, step, self._clock()
        self._begin = None

    def read(self, pos: int, end: int) -> None:
        """The log was read up to `pos`, and will be up to `end`. StartStoppedError: it is to end here."""
        if self._stopped:
            raise StartStoppedError(self.reason())
        if self._begin is None:
            self._begin = pos
        self._pos, self._end = pos, end

    def reason(self) -> str:
        """Why no client can be served yet."""
        text = _WORDS[self.phase]
        begin = self._begin
        if self.phase == RECOVERING and begin is not None and self._end > begin:
            text += f", {(self._pos - begin) * 100 // (self._end - begin)} % of {self._end - begin} bytes"
        return text

    def to_json(self) -> dict[str, Any] | None:
        """The current step; None: the log is not being recovered. Bytes are null if they are not counted."""
        if self.phase != RECOVERING:
            return None
        begin = self._begin
        return {
            "step": self._step,
            "seconds": round(self._clock() - self._since_s, 3),
            "doneBytes": None if begin is None else self._pos - begin,
            "totalBytes": None if begin is None else self._end - begin,
        }
