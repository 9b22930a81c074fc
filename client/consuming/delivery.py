"""A message that a consumer received, and what the application can do with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from tallystick.client.core.message import Stored
from tallystick.client.observing.observer import Processed, ProcessEnd

if TYPE_CHECKING:
    from tallystick.client.consuming.window import Window

_log = logging.getLogger("tallystick.client")
_OUT, _SETTLED, _SENT_BACK = 0, 1, 2


class Settler(Protocol):
    """The consumer of a delivery."""

    def settled(self, message: Delivery) -> None:
        """The message is finished."""

    def released(self, message: Delivery, delay_s: float) -> None:
        """The message will be handed out again."""

    async def sent_back(self, message: Delivery, delay_level: int) -> None:
        """The message goes back to its broker."""

    def decoded(self, body: bytes) -> Any:
        """Returns the value of a body."""

    def processing(self, change: int) -> None:
        """Counts the deliveries that are being processed."""

    def observe(self, messages: Sequence[Delivery]) -> ProcessEnd | None:
        """Tells observers, if there are any, that messages are processed. Returns what gets the end."""


class Delivery(Stored):
    """A received message. It is settled once: by `ack`, `retry` or `dead_letter`, or at the end of `process`.

    `attempts` is the number of deliveries before this one. A message that is not settled is delivered again, to this
    consumer or to another member of its group.
    """

    __slots__ = ("_in_process", "_state", "consumer", "window")

    window: Window
    consumer: Settler
    _state: int
    _in_process: bool

    def hand_out(self, consumer: Settler) -> None:
        """The application gets the message."""
        self.consumer = consumer
        self._state = _OUT
        self._in_process = False

    @property
    def value(self) -> Any:
        """The body, decoded by the codec of the consumer. What the codec raises; ProtocolError as for `body`."""
        return self.consumer.decoded(self.body)

    @property
    def is_settled(self) -> bool:
        """Whether it is finished."""
        return self._state != _OUT

    @property
    def was_sent_back(self) -> bool:
        """Whether it was settled by `retry` or `dead_letter`."""
        return self._state == _SENT_BACK

    async def ack(self) -> None:
        """The message is consumed. Its offset is committed with the next commit, at the latest when the consumer is
        closed."""
        if self._state == _OUT:
            self._state = _SETTLED
            if not self._in_process:
                self._settled_alone(Processed.SUCCESS)
            self.consumer.settled(self)

    async def retry(self, delay_level: int = 0) -> None:
        """Delivers the message later again: after a delay that grows with its attempts, or that of a level. After the
        attempts that the consumer allows, it becomes a dead letter. In an ordered consumer it is delivered again before
        all that follow it in its queue."""
        if self._state == _OUT:
            self._state = _SENT_BACK
            if not self._in_process:
                self._settled_alone(Processed.FAILED)
            await self.consumer.sent_back(self, delay_level)

    async def dead_letter(self) -> None:
        """Stores the message in the group's topic of dead letters, and delivers it no longer."""
        if self._state == _OUT:
            self._state = _SENT_BACK
            if not self._in_process:
                self._settled_alone(Processed.FAILED)
            await self.consumer.sent_back(self, -1)

    def _settled_alone(self, how: Processed) -> None:
        """Observers see a message that is settled without `process` as one whose processing took no time."""
        end = self.consumer.observe((self,))
        if end is not None:
            end(how, None)

    def enter(self) -> None:
        """The message is processed within `process`, which tells observers."""
        self._in_process = True

    def release(self, delay_s: float = 0.0) -> None:
        """Gives the message back unfinished: this consumer hands it out again."""
        if self._state == _OUT:
            self._state = _SETTLED
            self.consumer.released(self, delay_s)

    def process(self, *, reraise: bool = False) -> Processing:
        """Returns an asynchronous context manager. If its block succeeds, the message is consumed. If it raises an
        exception, the exception is logged and the message is delivered later again, then becomes a dead letter.
        If it is cancelled, the message is handed out again. `reraise`: whether the exception reaches the caller."""
        return Processing((self,), reraise)


class Processing:
    """See `Delivery.process` and `Batch.process`."""

    __slots__ = ("_end", "_messages", "_reraise")

    def __init__(self, messages: Sequence[Delivery], reraise: bool) -> None:
        self._messages = messages
        self._reraise = reraise
        self._end: ProcessEnd | None = None

    async def __aenter__(self) -> None:
        if self._messages:
            consumer = self._messages[0].consumer
            consumer.processing(1)
            self._end = consumer.observe(self._messages)
            for message in self._messages:
                message.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            if self._end is not None:
                self._end(self._outcome(error), error)
            if error is None:
                for message in self._messages:
                    await message.ack()
                return False
            if not isinstance(error, Exception):
                for message in self._messages:
                    message.release()
                return False
            _log.warning("processing %s failed", _name(self._messages), exc_info=error)
            for message in self._messages:
                await message.retry()
            return not self._reraise
        finally:
            if self._messages:
                self._messages[0].consumer.processing(-1)

    def _outcome(self, error: BaseException | None) -> Processed:
        if error is not None:
            return Processed.EXCEPTION if isinstance(error, Exception) else Processed.CANCELLED
        failed = any(message.was_sent_back for message in self._messages)
        return Processed.FAILED if failed else Processed.SUCCESS


class Batch(Sequence[Delivery]):
    """Messages that were received together. In an ordered consumer they are of one queue."""

    def __init__(self, messages: Sequence[Delivery]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: Any) -> Any:
        return self._messages[index]

    def process(self, *, reraise: bool = False) -> Processing:
        """Like `Delivery.process`, for all messages that are not settled in the block."""
        return Processing(self._messages, reraise)


def _name(messages: Sequence[Delivery]) -> str:
    return repr(messages[0]) if len(messages) == 1 else f"a batch of {len(messages)} messages"
