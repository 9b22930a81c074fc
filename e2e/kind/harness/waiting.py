"""Waits that end: with what was waited for, or with an error that says what it was and how it stood at last."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from harness.api import ApiError
from harness.shell import ToolError

T = TypeVar("T")


class NotYetError(Exception):
    """It is not so yet; the text says how it stands."""


class WaitError(AssertionError):
    """It was not so in time."""


def wait_for(what: str, look: Callable[[], T], timeout_s: float, every_s: float = 0.5) -> T:
    """What `look` returns, as soon as it does not raise NotYetError.

    An API server that does not answer for a moment, as it happens while machines are stopped, is no answer, not an end.
    """
    begin_s = time.monotonic()
    while True:
        try:
            return look()
        except (NotYetError, ApiError, ToolError) as error:
            if time.monotonic() - begin_s > timeout_s:
                raise WaitError(f"timed out after {timeout_s:g} s: {what}; last error: {error}") from error
        time.sleep(every_s)
