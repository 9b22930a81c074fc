"""Signals that ask us to end, held back where an exception would lose track of a process.

A signal raises Interrupted wherever the program is. Between the start of a process and the line that remembers it, or
in the middle of ending one, that would leave it running; there the signal waits until the block is over.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked us to end. Not an Exception: no handler on the way may take it for a failed turn."""


class _Interrupts:
    """The one state of the process: how deep in held blocks we are, and whether a signal waits."""

    def __init__(self) -> None:
        self._depth = 0
        self._waiting = False

    def install(self) -> None:
        """From now on signals raise Interrupted."""
        for number in _SIGNALS:
            signal.signal(number, self._arrived)

    def _arrived(self, _number: int, _frame: FrameType | None) -> None:
        self.ignore()  # one is enough: a second Ctrl-C must not stop the stopping
        if self._depth > 0:
            self._waiting = True
        else:
            raise Interrupted

    def ignore(self) -> None:
        """From now on signals do nothing: what is left to do is to end, and to leave nothing behind."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A signal that comes inside raises at the end of the block."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if self._waiting and self._depth == 0:
            self._waiting = False
            raise Interrupted


_interrupts = _Interrupts()
install = _interrupts.install
ignore = _interrupts.ignore
held = _interrupts.held
