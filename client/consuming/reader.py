"""Pulls the messages of one queue into its window, until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tallystick.client.consuming.delivery import Delivery
from tallystick.client.consuming.filters import Filter, Tags
from tallystick.client.consuming.pulling import Pulled, Queues
from tallystick.client.consuming.window import Window
from tallystick.client.core.errors import ClientError, ConnectionFailed, NoAnswer, NotFound, Refused
from tallystick.client.transport.session import Session
from tallystick.client.wire.codes import ResponseCode

_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0)
_UNKNOWN_GROUP = frozenset(
    (
        *(ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST),
        *(ResponseCode.FILTER_DATA_NOT_EXIST, ResponseCode.FILTER_DATA_NOT_LATEST),
    )
)
"""Refusals of a broker that has not received the newest heartbeat."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reader may hold: messages and bytes of one queue that are not settled. `count`: messages of a pull;
    `wait_s`: how long a broker waits for the first one."""

    messages: int
    bytes: int
    count: int
    wait_s: float


class Reader:
    """Reads one queue. `on_messages` is called after each pull with messages."""

    def __init__(
        self,
        session: Session,
        queues: Queues,
        window: Window,
        where: Filter,
        version: int,
        limits: Limits,
        on_messages: Callable[[Window, list[Delivery]], None],
    ) -> None:
        self.window = window
        self._session = session
        self._queues = queues
        self._where = where
        self._version = version
        self._limits = limits
        self._on_messages = on_messages
        self._space = asyncio.Event()
        self._broker_id = 0
        self._failures = 0
        self.saved = -1
        """The offset that was committed last; -1: none by this reader."""
        self.pulled_ms = 0
        self._task = session.spawn(self._run(), f"reader of {window.queue}")

    def has_space(self) -> None:
        """Messages were settled, or the queue is not paused any longer: pulls may continue."""
        if self._may_pull():
            self._space.set()

    async def stop(self) -> None:
        """Ends pulling. What is ready is not handed out any longer."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _may_pull(self) -> bool:
        window = self.window
        return not window.paused and len(window) < self._limits.messages and window.bytes < self._limits.bytes

    async def _run(self) -> None:
        while True:
            while not self._may_pull():
                self._space.clear()
                await self._space.wait()
            window = self.window
            try:
                pulled = await self._queues.pull(
                    window.queue,
                    window.next_offset,
                    self._where,
                    self._version,
                    Delivery,
                    count=self._limits.count,
                    wait_s=self._limits.wait_s,
                    broker_id=self._broker_id,
                )
            except ClientError as error:
                await self._after(error)
                continue
            self._failures = 0
            self._take(pulled)

    def _take(self, pulled: Pulled[Delivery]) -> None:
        window = self.window
        self._broker_id = pulled.broker_id
        if pulled.moved and pulled.next_offset != window.next_offset:
            self._session.problem(
                str(window.queue),
                f"offset {window.next_offset} is not in the queue ({pulled.min_offset} to {pulled.max_offset}); "
                f"reading continues at {pulled.next_offset}",
            )
        wanted = pulled.messages
        if isinstance(self._where, Tags) and self._where.tags:
            wanted = [message for message in wanted if self._where.matches(message.tag)]
        window.add(wanted, pulled.next_offset)
        if wanted:
            self._on_messages(window, wanted)

    async def _after(self, error: ClientError) -> None:
        pause_s = _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
        self._failures += 1
        self._broker_id = 0
        if isinstance(error, Refused) and error.code in _UNKNOWN_GROUP:
            await self._session.heartbeat()
        elif isinstance(error, ConnectionFailed | NoAnswer | NotFound):
            await asyncio.gather(self._session.routes.refresh(self.window.queue.topic), return_exceptions=True)
        else:
            self._session.problem(str(self.window.queue), f"a pull failed: {error}")
        await asyncio.sleep(pause_s)
