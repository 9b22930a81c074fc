"""Transactions: a message that consumers see only if the application's own work succeeded.

The broker stores the message as a half message. After the work the producer commits it or rolls it back. If the broker
hears neither, because of a failure at any place, it asks a producer of the group, which answers from the application's
own data (`check`).
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, Unpack

from tallystick.client.core.errors import ClientError, ClosedError, ConfigurationError, ConnectionFailed
from tallystick.client.core.message import Message, Stored, decode_stored
from tallystick.client.core.result import SendResult
from tallystick.client.observing.observer import Ending, SendEnd, Sending
from tallystick.client.producing.encoding import Outgoing
from tallystick.client.producing.producer import Producer, ProducerOptions
from tallystick.client.transport.connection import Served
from tallystick.client.transport.session import Session
from tallystick.client.wire import properties as names
from tallystick.client.wire.codes import RequestCode
from tallystick.client.wire.command import Command
from tallystick.client.wire.message_id import decode_message_id
from tallystick.client.wire.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

_ATTEMPTS = 3


class Outcome(enum.Enum):
    """How a transaction ends."""

    COMMIT = TRANSACTION_COMMIT
    """Consumers get the message."""
    ROLLBACK = TRANSACTION_ROLLBACK
    """No consumer gets it."""
    UNKNOWN = 0
    """It is not known yet: the broker asks later."""


_STATES = {
    Outcome.COMMIT: "COMMIT_MESSAGE",
    Outcome.ROLLBACK: "ROLLBACK_MESSAGE",
    Outcome.UNKNOWN: "UNKNOW",
}
"""The names of outcomes in traces."""
Check = Callable[[Stored], Awaitable[Outcome]]
"""Tells how the transaction of a message ended. It may be called for a transaction that another process of the group
began, also long ago, and more than once."""


class TransactionalProducer:
    """Made by `Client.transactional`; an asynchronous context manager. It must run for as long as transactions of its
    group can be open: brokers ask it."""

    def __init__(self, session: Session, group: str, check: Check, **options: Unpack[ProducerOptions]) -> None:
        self.group = group
        self._session = session
        self._check = check
        self._producer = Producer(session, group, **options)
        self._running = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.close()

    async def start(self) -> None:
        """Announces the producer, so that brokers can ask it."""
        if not self._running:
            self._running = True
            await self._session.add_producer(self.group, self._asked)

    async def close(self) -> None:
        """Takes the producer back. Open transactions stay open until a producer of the group runs again."""
        if self._running:
            self._running = False
            await self._producer.close()
            await self._session.remove_producer(self.group)

    def begin(self, message: Message | str, body: Any = None, **fields: Any) -> Transaction:
        """Returns a transaction, an asynchronous context manager: it sends the half message at its begin. At the end it
        commits; after an exception in the block it rolls back. If the block is cancelled, the broker asks `check`.

        ConfigurationError: the message cannot be sent. At the begin: errors as in `Producer.send`; after `Unknown` a
        half message may be stored, about which the broker asks.
        """
        made = self._producer.message(message, body, fields)
        if made.has_delay:
            raise ConfigurationError("a message of a transaction cannot have a delay")
        end = self._producer.observers.sending(Sending(self._session.client_id, self.group, [made], half=True))
        try:
            half = self._producer.encode(made, extra={names.TRAN_MSG: "true", names.PGROUP: self.group})
        except ClientError as error:
            end((), error)
            raise
        half.sys_flag |= TRANSACTION_PREPARED
        return Transaction(self, half, end)

    async def send_half(self, item: Outgoing) -> SendResult:
        """Sends the half message of a transaction."""
        if not self._running:
            raise ClosedError("enter the producer before a transaction begins: brokers must be able to ask it")
        return await self._producer.send_encoded(item)

    async def end(self, message: Message, result: SendResult, outcome: Outcome) -> None:
        """Tells the broker of a half message how its transaction ended. ClientError: it did not hear it."""
        problem: ClientError | None = None
        _, position = decode_message_id(result.message_id)
        for _attempt in range(_ATTEMPTS):
            address = self._session.routes.master(result.queue.broker)
            if address is None:
                problem = ConnectionFailed(f"broker {result.queue.broker}", "has no master at present")
            else:
                command = _end(self.group, result.offset, position, result.unique_key, outcome)
                try:
                    await self._session.connections.ask(address, command, self._session.timeout_s)
                    self._tell(message, result.unique_key, address, outcome, checked=False)
                    return
                except ClientError as error:
                    problem = error
            try:
                await self._session.routes.refresh(result.queue.topic)
            except ClientError:
                pass  # the route that is known is used
        assert problem is not None
        raise problem

    def problem(self, text: str) -> None:
        """Reports what a person should know."""
        self._session.problem(self.group, text)

    def _asked(self, address: str, request: Command) -> Served:
        """Answers a broker that asks about a half message. None: it is one of another group."""
        (message,) = decode_stored(request.body, "", Stored)
        if message.properties.get(names.PGROUP) != self.group:
            return None
        self._session.spawn(self._answer(address, request, message), f"check of {message}")
        return None

    async def _answer(self, address: str, request: Command, message: Stored) -> None:
        outcome = await self._check(message)
        if outcome is Outcome.UNKNOWN:
            return  # the broker asks again
        ext = request.ext or {}
        offset, position = int(ext["tranStateTableOffset"]), int(ext["commitLogOffset"])
        command = _end(self.group, offset, position, message.unique_key or "", outcome, checked=True)
        await self._session.connections.oneway(address, command, self._session.timeout_s)
        self._tell(message, message.unique_key or "", address, outcome, checked=True)

    def _tell(
        self, message: Message | Stored, unique_key: str, address: str, outcome: Outcome, *, checked: bool
    ) -> None:
        keys = message.keys if isinstance(message.keys, str) else names.KEY_SEPARATOR.join(message.keys)
        self._producer.observers.ending(
            Ending(
                *(self._session.client_id, self.group, message.topic, message.tag, keys, unique_key, address),
                *(_STATES[outcome], checked),
            )
        )


class Transaction:
    """See `TransactionalProducer.begin`. `result` has the place of the half message. `outcome` can be set in the block:
    to ROLLBACK without an exception, or to UNKNOWN."""

    def __init__(self, producer: TransactionalProducer, item: Outgoing, sent: SendEnd) -> None:
        self._producer = producer
        self._item = item
        self._sent = sent
        self.outcome = Outcome.COMMIT
        self.result: SendResult | None = None

    @property
    def unique_key(self) -> str:
        """The key of the message, which `check` gets: keep it with the work."""
        return self._item.unique_key

    async def __aenter__(self) -> Self:
        try:
            self.result = await self._producer.send_half(self._item)
        except BaseException as error:
            self._sent((), error)
            raise
        self._sent((self.result,), None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.result is not None
        outcome = self.outcome
        if error is not None:
            outcome = Outcome.ROLLBACK if isinstance(error, Exception) else Outcome.UNKNOWN
        if outcome is Outcome.UNKNOWN:
            return
        try:
            await self._producer.end(self._item.message, self.result, outcome)
        except ClientError as problem:  # the work is done; the broker asks
            self._producer.problem(f"the end of transaction {self.unique_key} did not reach the broker: {problem}")


def _end(
    group: str, offset: int, position: int, unique_key: str, outcome: Outcome, *, checked: bool = False
) -> Command:
    ext = {
        "producerGroup": group,
        "tranStateTableOffset": str(offset),
        "commitLogOffset": str(position),
        "commitOrRollback": str(outcome.value),
        "fromTransactionCheck": str(checked).lower(),
        "msgId": unique_key,
        "transactionId": unique_key,
    }
    return Command(RequestCode.END_TRANSACTION, ext=ext)
