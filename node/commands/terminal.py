"""What commands show to a person: a progress line that rewrites itself, colours where a terminal can show them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TextIO

_RED, _GREEN, _RESET = "\x1b[31m", "\x1b[32m", "\x1b[0m"
# Nobody reads faster, and a line a message would be slower than the work.
_INTERVAL_S = 0.1


def _colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def good(text: str, stream: TextIO = sys.stdout) -> str:
    """`text` in green on a terminal, as it is elsewhere."""
    return f"{_GREEN}{text}{_RESET}" if _colours(stream) else text


def bad(text: str, stream: TextIO = sys.stdout) -> str:
    """`text` in red on a terminal, as it is elsewhere."""
    return f"{_RED}{text}{_RESET}" if _colours(stream) else text


class Progress:
    """A line on standard error that tells how far long work is; nothing at all where that is no terminal."""

    def __init__(self, what: str, total: int | None = None, stream: TextIO = sys.stderr) -> None:
        self._what = what
        self._total = total
        self._stream = stream
        self._shown = stream.isatty()
        self._begin = self._last = time.monotonic()

    def at(self, done: int) -> None:
        """`done` of the total are done."""
        now = time.monotonic()
        if not self._shown or now - self._last < _INTERVAL_S:
            return
        self._last = now
        rate = done / max(now - self._begin, 1e-9)
        of_total = f" of {self._total:,} ({done * 100 // max(self._total, 1)} %)" if self._total else ""
        self._stream.write(f"\r\x1b[K{self._what}: {done:,}{of_total}, {rate:,.0f} a second")
        self._stream.flush()

    def clear(self) -> None:
        """Takes the line away, so that the result stands alone."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def table(rows: Sequence[tuple[str, ...]], heads: tuple[str, ...]) -> str:
    """Columns as wide as their widest cell; numbers to the right."""
    every = [heads, *rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(heads))]
    right = [bool(rows) and all(row[column].lstrip("-").isdigit() for row in rows) for column in range(len(heads))]
    lines = []
    for row in every:
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
