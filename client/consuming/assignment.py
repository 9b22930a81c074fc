"""The queues that a consumer has now: it takes queues over, and gives them up.

An ordered consumer gives a queue up only when the application has no message of it, and keeps its lock until then: the
next member begins behind the last message that was settled here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tallystick.client.consuming.locks import RENEW_S, Locks
from tallystick.client.consuming.progress import Progress
from tallystick.client.consuming.reader import Reader
from tallystick.client.consuming.window import Window
from tallystick.client.core.errors import ClientError, ClosedError
from tallystick.client.core.events import Event
from tallystick.client.core.queue import Queue
from tallystick.client.transport.session import Session


class Assignment:
    """`locks`: None for a consumer without order. `on_change` is called after queues were added or removed."""

    def __init__(
        self,
        session: Session,
        group: str,
        progress: Progress,
        locks: Locks | None,
        make_reader: Callable[[Window], Reader],
        *,
        ordered: bool,
        on_change: Callable[[], None],
    ) -> None:
        self._session = session
        self._group = group
        self._progress = progress
        self._locks = locks
        self._make_reader = make_reader
        self._ordered = ordered
        self._on_change = on_change
        self._leaving: dict[Queue, asyncio.Task[None]] = {}
        self._saving = asyncio.Lock()
        """Offsets are read and saved by one task at a time: an older offset must not be saved after a newer one."""
        self._renewing: asyncio.Task[None] | None = None
        self._stopped = False
        self.readers: dict[Queue, Reader] = {}

    async def apply(self, topic: str, wanted: list[Queue]) -> bool:
        """Takes over and gives up queues of a topic. Returns whether the consumer has exactly `wanted` now."""
        mine = {queue for queue in self.readers if queue.topic == topic}
        gone = {queue for queue in mine.difference(wanted) if queue not in self._leaving}
        new = [queue for queue in wanted if queue not in mine or queue in self._leaving]
        for queue in gone:
            self._leaving[queue] = self._session.spawn(self._give_up(queue), f"release of {queue}")
        if gone:
            self._on_change()
        complete = True
        if new:
            complete = all([await self._take_over(queue) for queue in new if queue not in self._leaving])
        return complete and not self._leaving

    async def seek(self, offsets: dict[Queue, int]) -> None:
        """Continues queues at other offsets. ClosedError: one of them is not here. ClientError: it is not committed."""
        for queue, offset in offsets.items():
            reader = self.readers.get(queue)
            if reader is None or queue in self._leaving:
                raise ClosedError(f"{queue} is not with this consumer")
            window = reader.window
            window.dropped = True
            await reader.stop()
            if self.readers.get(queue) is not reader:
                raise ClosedError(f"{queue} left this consumer meanwhile")
            self._start(queue, offset, window.usable_until_s, paused=window.paused)
            async with self._saving:
                failed = await self._progress.save({queue: offset})
            for error in failed.values():
                raise error

    async def commit(self) -> dict[Queue, ClientError]:
        """Commits what changed. Returns the errors."""
        async with self._saving:
            offsets = {
                queue: reader.window.committable
                for queue, reader in self.readers.items()
                if reader.window.committable != reader.saved
            }
            return await self._save(offsets)

    async def stop_reading(self) -> None:
        """Ends all pulls. What is ready is not handed out any longer, and nothing new is taken over."""
        self._stopped = True
        for reader in self.readers.values():
            reader.window.paused = True
        await asyncio.gather(*(reader.stop() for reader in self.readers.values()))

    async def release_all(self) -> None:
        """Gives up all queues now."""
        for reader in self.readers.values():
            reader.window.idle.set()  # nothing is waited for any longer
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)
        if self._renewing is not None:
            self._renewing.cancel()
        for queue, error in (await self.commit()).items():
            self._session.problem(str(queue), f"its last offset cannot be committed: {error}")
        if self._locks is not None:
            await self._locks.unlock(list(self.readers))
        for reader in self.readers.values():
            reader.window.dropped = True
        self.readers.clear()

    def has_space(self, window: Window) -> None:
        """Messages of this window were settled."""
        reader = self.readers.get(window.queue)
        if reader is not None and reader.window is window:
            reader.has_space()

    # --- coming and going ---

    async def _take_over(self, queue: Queue) -> bool:
        until_s = None
        try:
            if self._locks is not None:
                until_s = (await self._locks.lock([queue])).get(queue, -1)
                if until_s < 0:
                    return False  # another member still has it
            offset, saved = await self._progress.load(queue)
        except ClientError:
            return False
        if self._stopped:
            return True
        reader = self._start(queue, offset, until_s)
        if saved:  # the member before may commit after this: an offset is only committed when it has changed
            reader.saved = offset
        self._session.event(Event("assigned", self._group, f"{queue} from offset {offset}"))
        if self._locks is not None and self._renewing is None:
            self._renewing = self._session.spawn(self._renew(), f"locks of {self._group}")
        return True

    def _start(self, queue: Queue, offset: int, until_s: float | None, *, paused: bool = False) -> Reader:
        window = Window(queue, offset, ordered=self._ordered)
        window.usable_until_s = until_s
        window.paused = paused
        reader = self.readers[queue] = self._make_reader(window)
        self._on_change()
        return reader

    async def _give_up(self, queue: Queue) -> None:
        reader = self.readers[queue]
        window = reader.window
        try:
            window.paused = True
            await reader.stop()
            if self._locks is not None:
                await window.idle.wait()
            async with self._saving:
                await self._save({queue: window.committable})
            self._drop(queue, reader)  # before it is unlocked, so that its lock is not renewed afterwards
            if self._locks is not None:
                await self._locks.unlock([queue])
        finally:
            self._drop(queue, reader)
            del self._leaving[queue]
            self._session.event(Event("revoked", self._group, f"{queue} at offset {window.committable}"))
            self._on_change()

    def _drop(self, queue: Queue, reader: Reader) -> None:
        reader.window.dropped = True
        if self.readers.get(queue) is reader:
            del self.readers[queue]

    async def _save(self, offsets: dict[Queue, int]) -> dict[Queue, ClientError]:
        """The caller holds `_saving`."""
        if not offsets:
            return {}
        failed = await self._progress.save(offsets)
        for queue, offset in offsets.items():
            if queue not in failed and queue in self.readers:
                self.readers[queue].saved = offset
        return failed

    # --- locks ---

    async def _renew(self) -> None:
        assert self._locks is not None
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(RENEW_S)
            found = await self._locks.lock(list(self.readers))
            for queue, reader in list(self.readers.items()):
                until_s = found.get(queue)
                expired = (reader.window.usable_until_s or 0) <= loop.time()
                if until_s is None:
                    continue  # its broker does not answer: the lock is trusted until it runs out
                if until_s < 0 or expired:
                    await self._lose(queue, reader)
                else:
                    reader.window.usable_until_s = until_s
                    self._on_change()

    async def _lose(self, queue: Queue, reader: Reader) -> None:
        """Another member may have read the queue: its committed offset is right, this window's is not."""
        self._drop(queue, reader)
        await reader.stop()
        self._session.event(Event("revoked", self._group, f"{queue}: its lock was lost"))
        self._on_change()
