"""Which client may consume a queue in order: one at a time, for 60 s unless it renews the lock.

An ordered consumer locks its queues (41) every 20 s. A lock that was not renewed for 60 s is free for the next client.
A connection that closes frees no lock: its client may still process a message, and keeps its remaining time.

Pure: the time is an argument. Source: RebalanceLockManager of RocketMQ 4.8.0.
"""

from __future__ import annotations

from collections.abc import Iterable

from tallystick.node.broker.tables.message_queue import MessageQueue

LOCK_LIVE_MS = 60_000
MAX_LOCKS = 100_000
"""Limit for the locks of all groups, chosen by tallystick (30 MiB). At the limit, a queue without a lock is not
granted: clients ask again every 20 s, and locks that are not renewed expire."""


class QueueLocks:
    """Owner and time of each lock, by group and queue."""

    def __init__(self) -> None:
        self._locks: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        self._count = 0

    def try_lock_batch(
        self, group: str, queues: Iterable[MessageQueue], client_id: str, now_ms: int
    ) -> list[MessageQueue]:
        """The queues of `queues` that `client_id` holds from now on; each is decided separately."""
        table = self._locks.setdefault(group, {})
        locked = []
        for queue in dict.fromkeys(queues):
            owner = self._owner(table, queue, now_ms)
            if queue not in table:
                if self._count >= MAX_LOCKS:
                    continue
                self._count += 1
            if owner is None or owner == client_id:
                table[queue] = (client_id, now_ms)
                locked.append(queue)
        if not table:
            del self._locks[group]
        return locked

    def unlock_batch(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Frees those of `queues` that `client_id` holds. Other clients' locks stay."""
        table = self._locks.get(group)
        if table is None:
            return
        for queue in queues:
            if (lock := table.get(queue)) is not None and lock[0] == client_id:
                del table[queue]
                self._count -= 1
        if not table:
            del self._locks[group]

    def owner(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        """The client that holds the queue's lock; None if it is free."""
        return self._owner(self._locks.get(group, {}), queue, now_ms)

    @staticmethod
    def _owner(table: dict[MessageQueue, tuple[str, int]], queue: MessageQueue, now_ms: int) -> str | None:
        lock = table.get(queue)
        return None if lock is None or now_ms - lock[1] > LOCK_LIVE_MS else lock[0]

    def expire(self, now_ms: int) -> None:
        """Removes expired locks, so that deleted queues use no memory."""
        for group in list(self._locks):
            table = self._locks[group]
            for queue in [queue for queue, (_, since) in table.items() if now_ms - since > LOCK_LIVE_MS]:
                del table[queue]
                self._count -= 1
            if not table:
                del self._locks[group]

    def __len__(self) -> int:
        return self._count
