"""The messages of one queue between the broker and the application.

A window has messages that were pulled, in the order of their offsets: some are ready, some are out (the application has
them), some are settled. The offset to commit is that of the first message that is not settled, so a message behind it
can be delivered again after a failure, and none is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tallystick.client.core.queue import Queue

if TYPE_CHECKING:
    from tallystick.client.consuming.delivery import Delivery


class Window:
    """`offset`: where the next pull begins. With `ordered`, messages are out one after the other."""

    def __init__(self, queue: Queue, offset: int, *, ordered: bool) -> None:
        self.queue = queue
        self.next_offset = offset
        self.ordered = ordered
        self.ready: deque[Delivery] = deque()
        self.out = 0
        self.bytes = 0
        """Bytes of the messages that are not settled."""
        self.paused = False
        self.dropped = False
        """Whether the queue belongs to another member now. What is still out is settled without effect."""
        self.usable_until_s: float | None = None
        """Until when messages may be handed out, by the loop's clock; None: without limit."""
        self.idle = asyncio.Event()
        """Set while the application has no message of this window."""
        self.idle.set()
        self._open: deque[int] = deque()
        self._settled: set[int] = set()

    def __len__(self) -> int:
        """The number of messages that are not settled."""
        return len(self._open) - len(self._settled)

    def add(self, messages: Iterable[Delivery], next_offset: int) -> None:
        """Adds the result of a pull."""
        for message in messages:
            message.window = self
            self.ready.append(message)
            self._open.append(message.offset)
            self.bytes += message.size
        self.next_offset = next_offset

    def can_take(self, now_s: float) -> bool:
        """Whether a message can be handed out now."""
        return not (
            not self.ready
            or self.paused
            or self.dropped
            or (self.ordered and self.out)
            or (self.usable_until_s is not None and now_s >= self.usable_until_s)
        )

    def take(self, count: int) -> list[Delivery]:
        """Hands out messages, the oldest first."""
        taken = [self.ready.popleft() for _ in range(min(count, len(self.ready)))]
        self.out += len(taken)
        if taken:
            self.idle.clear()
        return taken

    def settle(self, message: Delivery) -> None:
        """The application has finished a message that was out."""
        self._returned()
        self.bytes -= message.size
        self._settled.add(message.offset)
        while self._open and self._open[0] in self._settled:
            self._settled.remove(self._open.popleft())

    def put_back(self, message: Delivery) -> None:
        """A message that was out will be handed out again, before all that are ready and follow it."""
        self._returned()
        later: list[Delivery] = []
        while self.ready and self.ready[0].offset < message.offset:
            later.append(self.ready.popleft())
        self.ready.appendleft(message)
        self.ready.extendleft(reversed(later))

    def _returned(self) -> None:
        self.out -= 1
        if not self.out:
            self.idle.set()

    @property
    def committable(self) -> int:
        """The offset to commit: all messages before it are settled."""
        return self._open[0] if self._open else self.next_offset
