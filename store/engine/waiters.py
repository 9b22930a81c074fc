"""Coroutines that wait until the log is safe up to a position."""

from __future__ import annotations

import asyncio
from collections import deque

from tallystick.store.formats.message import PutStatus


class Waiters:
    """Owns the futures of those who wait for one kind of safety (written, flushed or committed), in log order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, asyncio.Future[PutStatus]]] = deque()

    def add(self, end: int) -> asyncio.Future[PutStatus]:
        """Waits until the log is safe up to `end`. The result is PUT_OK, or why it will never be safe."""
        status: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, status))
        return status

    async def in_time(self, end: int, limit_s: float, otherwise: PutStatus) -> PutStatus:
        """As `add`, for at most `limit_s` seconds; then the result is `otherwise`."""
        status: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, status))
        try:
            async with asyncio.timeout(limit_s):
                return await status
        except TimeoutError:
            return otherwise

    def resolve(self, safe: int) -> None:
        """The log is safe up to `safe`."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= safe:
            _, status = waiting.popleft()
            if not status.done():
                status.set_result(PutStatus.PUT_OK)

    def refuse(self, safe: int, outcome: PutStatus) -> None:
        """Nothing behind `safe` will become safe: ends the waiting for it with `outcome`."""
        waiting = self._waiting
        while waiting and waiting[-1][0] > safe:
            _, status = waiting.pop()
            if not status.done():
                status.set_result(outcome)

    def end(self, outcome: PutStatus) -> None:
        """Ends the waiting of all with `outcome`."""
        for _, status in self._waiting:
            if not status.done():
                status.set_result(outcome)
        self._waiting.clear()
