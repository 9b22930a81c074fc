"""Whether a member runs, and what went wrong with it: kept for operators, and logged."""

from __future__ import annotations

import logging
import time

from tallystick.replication.effects import Refused
from tallystick.store.limited_log import LimitedLog

CLOSED = "the member is closed"
NOT_STARTED = "the member was not started"

_logger = logging.getLogger("tallystick.replication")


class Health:
    """Owns the reason why the member does not run, its last error, and the numbers of what it refused."""

    def __init__(self, member: int) -> None:
        self.stopped: str | None = NOT_STARTED
        """Why the member does not run; None while it runs."""
        self.last_error = ""
        """The last error, as a text for people; empty if there was none."""
        self.refused_ranges = 0
        """Number of appends that were dropped because their entries are damaged, or differ from the announced ones."""
        self.refused_messages = 0
        """Number of messages that were dropped because they cannot be true."""
        self._member = member
        self._limited = LimitedLog(_logger, time.monotonic)

    @property
    def fatal(self) -> str | None:
        """Why the member stopped; None while it runs, and after `Member.stop`."""
        return None if self.stopped is CLOSED else self.stopped

    def note(self, text: str) -> None:
        """Logs an error."""
        self.last_error = text
        _logger.error("n%d: %s", self._member, text)

    def note_failure(self, error: OSError) -> None:
        """Logs an error of the disk, once if it is repeated."""
        if str(error) != self.last_error:
            _logger.error("n%d: disk error: %s", self._member, error)
        self.last_error = str(error)

    def refuse_range(self, reason: str) -> None:
        """A leader's entries were dropped as if they had not arrived."""
        self.refused_ranges += 1
        if reason != self.last_error:
            _logger.error("n%d refused entries: %s", self._member, reason)
        self.last_error = reason

    def refuse_message(self, effect: Refused) -> None:
        """Handles the effect."""
        self.refused_messages += 1
        who = "this member" if effect.member == self._member else f"n{effect.member}"
        self.last_error = f"refused a message of {who}: {effect.reason}"
        self._limited.warning("refused", "n%d: %s", self._member, self.last_error, about=effect.member)
