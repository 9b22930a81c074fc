"""Holds what depends on a row of a table until that row is durable, and releases it in order of arrival.

A send to a new topic creates the topic's row. A kill after the acknowledgement must not lose the row, because the
message cannot be read without it. The broker therefore appends the message only after the row is durable:

    send ── row changes ──▶ gate closed: sends wait ──▶ file saved ──▶ gate releases them ──▶ gate open: topic is hot
                                    └── save failed ──▶ sends are refused, the row is saved again later

A released send appends when its task runs next. The gate stays closed until these tasks have run; a later send waits
behind them. The messages of one queue therefore keep their order, also when the kernel takes over the topic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable


class RowGate:
    """The gates of one table's rows. All methods run on the event loop's thread."""

    def __init__(self, durable: Callable[[str], bool], save: Callable[[], None]) -> None:
        """`durable` returns whether a row is; `save` starts to save all rows, which ends in `release` or `fail`."""
        self._durable = durable
        self._save = save
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self.on_open: list[Callable[[str], None]] = []
        """Called with the name of each row whose gate was closed and is open again."""

    def is_open(self, row: str) -> bool:
        """Whether the row is durable and no earlier caller is still on the way."""
        return row not in self._waiting and self._durable(row)

    async def passed(self, row: str) -> None:
        """Waits until the row is durable and all earlier callers have passed. OSError: the row cannot be saved now."""
        if self.is_open(row):
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(row, deque()).append(future)
        self._save()
        await future

    @property
    def waiting(self) -> int:
        """How many callers wait at all gates together."""
        return sum(len(queue) for queue in self._waiting.values())

    def release(self, rows: Iterable[str]) -> None:
        """These rows may be durable now: callers that wait for a durable one pass."""
        for row in list(rows):
            if not self._durable(row):
                continue
            if row in self._waiting:
                self._let_pass(row)
            else:
                self._tell(row)

    def _let_pass(self, row: str) -> None:
        queue = self._waiting[row]
        while queue:
            future = queue.popleft()
            if not future.done():  # its task may be cancelled
                future.set_result(None)
        # Behind the tasks that were just woken: the event loop runs callbacks in order.
        asyncio.get_running_loop().call_soon(self._open, row)

    def _open(self, row: str) -> None:
        queue = self._waiting.get(row)
        if queue is None:
            return
        if queue and self._durable(row):
            self._let_pass(row)
        elif not queue:
            del self._waiting[row]
            self._tell(row)

    def _tell(self, row: str) -> None:
        for listener in self.on_open:
            listener(row)

    def fail(self, error: OSError) -> None:
        """The rows could not be saved: callers that wait for a row that is not durable get the error."""
        for row, queue in list(self._waiting.items()):
            if self._durable(row):
                continue
            while queue:
                future = queue.popleft()
                if not future.done():
                    future.set_exception(type(error)(*error.args))
            del self._waiting[row]
