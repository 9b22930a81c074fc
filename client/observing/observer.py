"""Observers: what producers and consumers do, for a trace topic or for OpenTelemetry.

An observer never delays a message and never fails one: its methods do not wait, and their exceptions are logged.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from tallystick.client.core.message import Message, Stored
from tallystick.client.core.result import SendResult

_log = logging.getLogger("tallystick.client")
T = TypeVar("T")


class Processed(enum.Enum):
    """How the processing of messages ended."""

    SUCCESS = "success"
    """They are consumed."""
    FAILED = "failed"
    """The application sent them back, or to the dead letters."""
    EXCEPTION = "exception"
    """The application raised an exception, so they were sent back."""
    CANCELLED = "cancelled"
    """The processing was cancelled: they are handed out again."""


class Sending(NamedTuple):
    """What is sent: one message, or a batch. `half`: the half message of a transaction."""

    client_id: str
    group: str
    messages: Sequence[Message]
    half: bool = False


class Consuming(NamedTuple):
    """What is processed, and by which consumer."""

    client_id: str
    group: str
    messages: Sequence[Stored]
    broadcast: bool = False


class Ending(NamedTuple):
    """The end of a transaction. `checked`: the broker had asked; `address`: of the broker; `state`: COMMIT_MESSAGE,
    ROLLBACK_MESSAGE or UNKNOW."""

    client_id: str
    group: str
    topic: str
    tag: str | None
    keys: str
    unique_key: str
    address: str
    state: str
    checked: bool


SendEnd = Callable[[Sequence[SendResult], BaseException | None], None]
"""Gets the results of what was sent, or the error."""
ProcessEnd = Callable[[Processed, BaseException | None], None]


class Observer:
    """The base of observers. Its methods do nothing; an observer has those that it needs."""

    def sending(self, what: Sending) -> SendEnd | None:
        """Messages are about to be encoded: their properties can still be changed. Returns what gets the end."""
        return None

    def processing(self, what: Consuming) -> ProcessEnd | None:
        """The application begins to process messages. Returns what gets the end."""
        return None

    def ending(self, what: Ending) -> None:
        """A broker was told how a transaction ended."""

    async def close(self) -> None:
        """The producer or consumer was closed."""


class Observers:
    """The observers of one producer or consumer. False if there are none: nothing has to be told then."""

    __slots__ = ("_all",)

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._all = tuple(observers)

    def __bool__(self) -> bool:
        return bool(self._all)

    def sending(self, what: Sending) -> SendEnd:
        """Tells all that messages are sent. Returns what must get the end."""
        ends = [_call(observer.sending, what) for observer in self._all]

        def end(results: Sequence[SendResult], error: BaseException | None) -> None:
            for each in reversed(ends):
                if each is not None:
                    _call(each, results, error)

        return end

    def processing(self, what: Consuming) -> ProcessEnd:
        """Tells all that messages are processed. Returns what must get the end."""
        ends = [_call(observer.processing, what) for observer in self._all]

        def end(how: Processed, error: BaseException | None) -> None:
            for each in reversed(ends):
                if each is not None:
                    _call(each, how, error)

        return end

    def ending(self, what: Ending) -> None:
        """Tells all that a transaction ended."""
        for observer in self._all:
            _call(observer.ending, what)

    async def close(self) -> None:
        """Closes all."""
        for observer in self._all:
            await observer.close()


def _call(call: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return call(*arguments)
    except Exception:
        _log.exception("an observer of messages failed")
        return None
