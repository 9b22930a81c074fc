"""Where a connection's bytes arrive: one buffer, read into directly, frames taken from it without a copy.

    |  taken  |  pending: a frame, or a part of one  |  room: what the next read may fill  |
    0       start                                   end                             capacity

A frame is always contiguous. Between frames the room offered is small (`_READ_AHEAD_BYTES`), so that what has to be
moved to the front when the next frame does not fit is small too; once the size of a large frame is known, exactly its
rest is offered, and its payload arrives where it will be used.

A payload is lent: it is a view into this buffer. Whoever got one may keep it as long as he likes: before the buffer is
written to again, `room` asks whether anybody still looks into it. If so the buffer stays his and a new one takes its
place. So there is nothing to give back, and nothing changes under anybody's eyes; to keep payloads only costs memory.
"""

from __future__ import annotations

_READ_AHEAD_BYTES = 64 << 10


class ReceiveBuffer:
    """Bytes of one connection. Grows to the largest frame that came, never beyond what `expect` was told."""

    def __init__(self) -> None:
        self._bytes = bytearray(_READ_AHEAD_BYTES)
        self._view = memoryview(self._bytes)
        self._start = 0
        self._end = 0
        self._wanted = 0
        self._lent = False

    @property
    def pending(self) -> int:
        """Bytes that came and were not taken."""
        return self._end - self._start

    @property
    def capacity(self) -> int:
        """Bytes of memory held."""
        return len(self._bytes)

    def room(self) -> memoryview:
        """Where the next bytes go; never empty. No frame that was taken may be looked at in this buffer afterwards,
        except through its payload."""
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
        """The first `count` bytes of the room were filled."""
        self._end += count
        assert self._end <= len(self._bytes)

    def peek(self, count: int) -> memoryview | None:
        """The first `count` pending bytes; None: they are not there yet, and `expect` should be told of them."""
        if self._end - self._start < count:
            return None
        return self._view[self._start : self._start + count]

    def expect(self, count: int) -> None:
        """The frame that is pending will have `count` bytes altogether."""
        self._wanted = count

    def take(self, count: int, *, lent: bool) -> None:
        """The first `count` pending bytes are done with; `lent`: somebody was given a view into them."""
        self._start += count
        assert self._start <= self._end
        self._wanted = 0
        self._lent = self._lent or lent

    def _is_looked_at(self) -> bool:
        """A bytearray refuses to change its size while views of it exist. Ours is given up for the question."""
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
