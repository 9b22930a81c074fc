"""The threads of one store: everything that blocks on the disk runs on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tallystick.store.engine.scrub import idle_io_priority

T = TypeVar("T")


class Threads:
    """Owns the threads of a store. `dispatch`: recovers, then updates queues and index. `upkeep`: writes and
    syncs derived files. `scrub`: reads whole files with the lowest priority.
    `timers`: reads the log for the index of timers, and saves it."""

    def __init__(self) -> None:
        self.dispatch = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dispatch")
        self.upkeep = ThreadPoolExecutor(max_workers=1, thread_name_prefix="upkeep")
        self.scrub = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scrub", initializer=idle_io_priority)
        self.timers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="timers")  # one reads while the other saves

    async def run_between_turns(self, work: Callable[[], T]) -> T:
        """Runs `work` on the dispatch thread, so that nothing is dispatched meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self.dispatch, work)

    async def run_upkeep(self, work: Callable[[], T]) -> T:
        """Runs `work` on the thread that writes and syncs derived files; dispatch continues meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self.upkeep, work)

    def shutdown(self) -> None:
        """Waits until all threads have ended."""
        self.dispatch.shutdown()
        self.upkeep.shutdown()
        self.scrub.shutdown()
        self.timers.shutdown()
