"""The pauses of periodic work, which end at once when a setting changes.

Times are those of the event loop, which cannot be set.
"""

from __future__ import annotations

import asyncio
import contextlib


class Pace:
    """The pauses of some tasks of one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def pause(self, milliseconds: float) -> None:
        """Returns after this time, or at the next `wake`."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(milliseconds / 1000, _end, woken)
        self._waiting.add(woken)
        try:
            await woken
        finally:
            timer.cancel()
            self._waiting.discard(woken)

    def wake(self) -> None:
        """Ends all pauses, so that the work runs now and pauses for the new interval afterwards."""
        for woken in tuple(self._waiting):
            _end(woken)


def _end(woken: asyncio.Future[None]) -> None:
    with contextlib.suppress(asyncio.InvalidStateError):  # it was ended or cancelled in the same turn
        woken.set_result(None)
