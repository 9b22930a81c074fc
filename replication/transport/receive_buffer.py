"""The receive buffer of a connection: the socket reads directly into it, and frames are taken without a copy.

    |  taken  |  pending: a frame, or a part of one  |  room: what the next read may fill  |
    0       start                                   end                             capacity

A frame is always contiguous. Between frames the free part that is offered is small (`_READ_AHEAD_BYTES`), so that
little must be moved to the front when the next frame does not fit. Once the size of a large frame is known, exactly its
rest is offered, and its payload arrives where it will be used.

A payload is lent: it is a view into this buffer, and its user can keep it for any time. Before the buffer is written to
again, `room` checks whether a view of it exists. If so, a new buffer replaces this one, and the views keep the old one.
Views therefore need not be returned, and their bytes never change; to keep payloads only costs memory.
"""

from __future__ import annotations

_READ_AHEAD_BYTES = 64 << 10


class ReceiveBuffer:
    """Bytes of one connection. It grows to the largest frame that was announced to `expect`."""

    def __init__(self) -> None:
        self._bytes = bytearray(_READ_AHEAD_BYTES)
        self._view = memoryview(self._bytes)
        self._start = 0
        self._end = 0
        self._wanted = 0
        self._lent = False

    @property
    def pending(self) -> int:
        """Bytes that were received and not taken."""
        return self._end - self._start

    @property
    def capacity(self) -> int:
        """Size of the buffer in bytes."""
        return len(self._bytes)

    def room(self) -> memoryview:
        """Where the next bytes go; never empty. Afterwards, frames that were taken from this buffer may be read only
        through their payload."""
        if self._lent:
            self._lent = False
            if self._is_looked_at():
                self._replace(len(self._bytes))
        pending = self._end - self._start
        if not pending:
            self._start = self._end = 0
        need = max(self._wanted, _READ_AHEAD_BYTES)
        if self._start + need > len(self._bytes):
            if need > len(self._bytes):
                self._replace(need)
            else:
                self._view[:pending] = self._view[self._start : self._end]
                self._start, self._end = 0, pending
        if self._wanted - pending > _READ_AHEAD_BYTES:
            return self._view[self._end : self._start + self._wanted]
        return self._view[self._end : self._end + _READ_AHEAD_BYTES]

    def received(self, count: int) -> None:
        """The first `count` bytes of the offered part were filled."""
        self._end += count
        assert self._end <= len(self._bytes)

    def peek(self, count: int) -> memoryview | None:
        """The first `count` pending bytes; None if they are not complete yet: then call `expect`."""
        if self._end - self._start < count:
            return None
        return self._view[self._start : self._start + count]

    def expect(self, count: int) -> None:
        """States that the pending frame will have `count` bytes in total."""
        self._wanted = count

    def take(self, count: int, *, lent: bool) -> None:
        """Removes the first `count` pending bytes; `lent`: a view of them was passed on."""
        self._start += count
        assert self._start <= self._end
        self._wanted = 0
        self._lent = self._lent or lent

    def _is_looked_at(self) -> bool:
        """Whether views exist: a bytearray with views refuses to change its size. Our own view is released for this."""
        self._view.release()
        try:
            self._bytes.append(self._bytes.pop())
        except BufferError:
            return True
        finally:
            self._view = memoryview(self._bytes)
        return False

    def _replace(self, capacity: int) -> None:
        fresh = bytearray(capacity)
        view = memoryview(fresh)
        pending = self._end - self._start
        view[:pending] = self._view[self._start : self._end]
        self._bytes, self._view = fresh, view
        self._start, self._end = 0, pending
