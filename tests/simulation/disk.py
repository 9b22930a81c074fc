"""Doors, store locks and the sync thread of simulated processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulation.patches import World, in_thread
from simulation.world import current
from tallystick.store._kernel import Door

if TYPE_CHECKING:
    from tallystick.store._kernel import Log

_STOP_TOKEN = 1 << 62


def process_door() -> Door:
    """What `Door()` is in a simulated process: the door that it was started with."""
    process = current.get()
    return Door() if process is None or process.door is None else process.door


def patched_acquire(real: Callable[..., Any]) -> Callable[..., Any]:
    """A store's lock is noted, because the system releases it when the process dies."""

    def acquire(cls: Any, *args: Any, **kwargs: Any) -> Any:
        held = real(cls, *args, **kwargs)
        process = current.get()
        if process is not None:
            process.locks.append(held)
        return held

    return acquire


class SimSyncThread:
    """`store.sync_thread.SyncThread` as events: a sync has its effect at one moment and is told later.

    It calls the kernel's own `serve_syncs`, with one token and the token that ends it.
    """

    def __init__(self, log: Log, on_synced: Callable[[], None]) -> None:
        loop = World.loop
        assert loop is not None
        self._loop = loop
        self._log = log
        self._on_synced = on_synced
        self._asked = self._running = self._closed = self._broken = self._started = False
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        self._started = True
        self._go()

    def request(self) -> None:
        self._asked = True
        self._go()

    async def close(self) -> None:
        self._closed = True
        self._asked = False
        await self._idle.wait()

    def _go(self) -> None:
        if not self._asked or self._running or self._broken or not self._started or self._closed:
            return
        self._asked, self._running = False, True
        self._idle.clear()
        delay = self._loop.blocking_s(current.get())
        self._loop.at(self._loop.now + delay * 0.7, self._sync)

    def _sync(self) -> None:
        begin, end = os.pipe()
        done = os.eventfd(0, os.EFD_NONBLOCK)
        try:
            os.write(end, (1).to_bytes(8, "little") + _STOP_TOKEN.to_bytes(8, "little"))
            in_thread(lambda: self._log.serve_syncs(begin, done))
        finally:
            for descriptor in (begin, end, done):
                os.close(descriptor)
        self._loop.at(self._loop.now + self._loop.blocking_s(None) * 0.3, self._tell)

    def _tell(self) -> None:
        self._running = False
        self._broken = self._log.sync_failure() is not None
        self._idle.set()
        if not self._closed:
            self._on_synced()
            self._go()
