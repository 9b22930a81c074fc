"""The live figures: one set of requests to the cluster every two seconds, for all listeners together.

It runs while there are listeners. A listener that misses an event gets the next one: nothing waits in memory for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

from tallystick.admin.models import Figures, json_of
from tallystick.client import ClientError
from tallystick.console.api.encoding import encoded
from tallystick.console.api.problems import ProblemError, problem_of

INTERVAL_S = 2.0
_log = logging.getLogger("tallystick.console")


class LiveEvent(NamedTuple):
    """An event: `figures` or `problem`, and its data as JSON."""

    name: str
    data: bytes


class Live:
    """The figures of one backend."""

    def __init__(self, read: Callable[[], Awaitable[Figures]], interval_s: float = INTERVAL_S) -> None:
        self._read = read
        self._interval_s = interval_s
        self._next: asyncio.Future[LiveEvent] | None = None
        self._latest: LiveEvent | None = None
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None

    async def events(self) -> AsyncGenerator[LiveEvent, None]:
        """Iterates over the events, beginning with the latest one. Close the iterator at the end."""
        self._listeners += 1
        try:
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run(), name="live-figures")
            if self._latest is not None:
                yield self._latest
            while True:
                if self._next is None:
                    self._next = asyncio.get_running_loop().create_future()
                yield await asyncio.shield(self._next)
        finally:
            self._listeners -= 1
            if not self._listeners:
                await self._stop()

    async def close(self) -> None:
        """Ends the requests."""
        await self._stop()

    async def _stop(self) -> None:
        task, self._task, self._latest = self._task, None, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._publish(await self._event())
            await asyncio.sleep(self._interval_s)

    async def _event(self) -> LiveEvent:
        try:
            return LiveEvent("figures", encoded(json_of(await self._read())))
        except ClientError as error:
            problem = problem_of(error)
        except Exception:
            _log.exception("the figures could not be read")
            problem = ProblemError("internal", "the figures could not be read: the log of this server has the details")
        return LiveEvent("problem", encoded(problem.body))

    def _publish(self, event: LiveEvent) -> None:
        self._latest = event
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_result(event)
