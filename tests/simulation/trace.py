"""What happened, in order: the last lines for people, and one number over all of them to compare two runs."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable


class Trace:
    """`listener` gets each line as it comes."""

    def __init__(self, keep: int = 60, listener: Callable[[str], None] | None = None) -> None:
        self.lines: deque[str] = deque(maxlen=keep)
        self.digest = 0
        self.root = ""
        self._root_bytes = b""
        self._listener = listener

    def leave_out(self, root: str) -> None:
        """The folder of this run, which is left out of every line."""
        self.root, self._root_bytes = root, root.encode()

    def note(self, now: float, text: str) -> None:
        """Something that a reader of the trace wants to know."""
        if self.root:
            text = text.replace(self.root, "")
        line = f"{now:12.6f}  {text}"
        self.digest = zlib.crc32(line.encode(errors="replace"), self.digest)
        self.lines.append(line)
        if self._listener is not None:
            self._listener(line)

    def close(self) -> None:
        """The run has ended: later notes are dropped."""
        self._listener = None

    def mix(self, now: float, data: bytes) -> None:
        """Bytes that went over the network: only for the digest."""
        data = data.replace(self._root_bytes, b"")
        self.digest = zlib.crc32(data, zlib.crc32(b"%f" % now, self.digest))
