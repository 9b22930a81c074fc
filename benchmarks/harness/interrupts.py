"""Signals that end the benchmark. They are delayed where an exception would lose track of a process.

A signal raises Interrupted at any place. Between the start of a process and the line that records it, or while a
process is being ended, that would leave the process running. There the signal waits until the end of the block.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal ended the benchmark. It is not an Exception, so that no handler treats it as a failed turn."""


class _Interrupts:
    """The state of the process: how many blocks delay signals, and whether a signal waits."""

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
        """Ignores signals from now on, while the benchmark stops its processes."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A signal inside the block raises at the end of the block."""
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
