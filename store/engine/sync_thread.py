"""The thread that syncs a log: one sync answers all requests that came before it began (group commit).

    request ── token ──▶ eventfd ──▶ thread: fdatasync ──▶ eventfd ── token ──▶ event loop: on_synced

Python owns the thread, but the thread runs in the kernel without the GIL between two syncs. A request that comes while
a sync runs causes one more sync, which covers everything that was written in the meantime. A failed sync ends the
thread: `Log.sync_failure` then says why.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.store._kernel import Log

_STOP_TOKEN = 1 << 62  # the kernel's `serve_syncs` defines it


class SyncThread:
    """Syncs one log. All methods run on the event loop that made the object; `on_synced()` is called there as well."""

    def __init__(self, log: Log, on_synced: Callable[[], None]) -> None:
        self._on_synced = on_synced
        self._loop = asyncio.get_running_loop()
        self._requests = os.eventfd(0, os.EFD_CLOEXEC)
        self._done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(
            target=log.serve_syncs, args=(self._requests, self._done), name="log-sync", daemon=True
        )

    def start(self) -> None:
        """Starts the thread. Requests made earlier are served now."""
        self._thread.start()
        self._loop.add_reader(self._done, self._tell)

    def request(self) -> None:
        """Asks for a sync of everything that is written now. Returns at once; `on_synced` follows, also after an
        error."""
        os.eventfd_write(self._requests, 1)

    async def close(self) -> None:
        """Waits for the sync that runs, then ends the thread. `on_synced` is no longer called."""
        self._loop.remove_reader(self._done)
        os.eventfd_write(self._requests, _STOP_TOKEN)
        await asyncio.to_thread(self._thread.join)
        os.close(self._requests)
        os.close(self._done)

    def _tell(self) -> None:
        os.eventfd_read(self._done)
        self._on_synced()
