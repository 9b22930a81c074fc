"""Callers that wait for an index to be committed, in the order in which that happens."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count


class Waiters:
    """Futures by index. A future that was cancelled meanwhile is ignored."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, index: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._heap, (index, next(self._numbers), future))
        return future

    def resolve(self, index: int) -> None:
        """Completes all futures up to `index`."""
        heap = self._heap
        while heap and heap[0][0] <= index:
            future = heapq.heappop(heap)[2]
            if not future.done():
                future.set_result(None)

    def fail_above(self, index: int, error: Exception) -> None:
        """Fails all futures above `index` with the error."""
        kept = [item for item in self._heap if item[0] <= index]
        for item in self._heap:
            if item[0] > index and not item[2].done():
                item[2].set_exception(error)
                item[2].exception()  # the caller may be gone: then nothing reads the exception
        heapq.heapify(kept)
        self._heap = kept
