"""Sends requests until a broker stored their messages, for a limited time.

A request whose answer did not come is in doubt: its messages may be stored. It is sent again, because a message that is
stored twice can be recognised by its unique key, and one that is lost cannot be found. If the time is up, the error is
`Unknown` for messages in doubt, and otherwise says that they are not stored.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from tallystick.client.core.errors import (
    AccessDenied,
    Busy,
    ClientError,
    ClosedError,
    ConnectionFailed,
    NoAnswer,
    NotFound,
    NotStored,
    Refused,
    Unknown,
    refused,
)
from tallystick.client.core.message import Message
from tallystick.client.core.queue import Queue
from tallystick.client.core.result import STORED, SendResult, SendStatus
from tallystick.client.producing.encoding import Outgoing, request
from tallystick.client.transport.routes import Route
from tallystick.client.transport.session import Session, not_supported
from tallystick.client.wire import properties as names
from tallystick.client.wire.codes import RequestCode, ResponseCode
from tallystick.client.wire.command import Command
from tallystick.client.wire.java_hash import string_hash

_ELSEWHERE = frozenset(
    (
        *(ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE),
        *(ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_BUYER_ID),
        *(ResponseCode.NOT_IN_CURRENT_UNIT, ResponseCode.FLOW_CONTROL, ResponseCode.NOT_LEADER_FOR_QUEUE),
    )
)
"""Refusals after which another broker, or the same one later, can store the message."""
_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
_SYSTEM_ERRORS = 3
"""Attempts that end with SYSTEM_ERROR. It has many causes, and most of them stay."""
_AVOIDED_S = 5.0


@dataclass(slots=True)
class _Attempts:
    """The history of one request. `in_doubt`: an earlier attempt may have stored it."""

    deadline_s: float
    count: int = 0
    failures: int = 0
    in_doubt: bool = False
    system_errors: int = 0
    failed: set[str] = field(default_factory=set)
    """The brokers that failed, by name."""


class Sender:
    """Sends for the producers of one group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._turns: dict[str, itertools.count[int]] = {}
        self._avoided: dict[str, float] = {}

    async def send(
        self,
        items: Sequence[Outgoing],
        timeout_s: float,
        *,
        queue: Queue | None = None,
        first_queue: Queue | None = None,
        code: int = RequestCode.SEND_MESSAGE_V2,
    ) -> list[SendResult]:
        """Sends one message, or several of one topic as a batch; `queue`: to this one only; `first_queue`: to this one
        at first. Returns a result for each.

        Refused, NotStored: none of them is stored. Unknown: they may be stored. ConnectionFailed: no name server.
        """
        first = items[0]
        attempts = _Attempts(asyncio.get_running_loop().time() + timeout_s)
        while True:
            try:
                if attempts.failures:
                    first_queue = None
                target = queue or first_queue or await self._choose(first.message, attempts)
                answer = await self._attempt(target, items, attempts, code)
            except ClientError as error:
                await self._after(error, first, attempts)
                continue
            return _results(items, target, answer, attempts.in_doubt)

    async def route(self, topic: str, timeout_s: float) -> Route:
        """Returns the route of a topic; of one that does not exist, where a send creates it.

        NotFound: it cannot be written, and a send does not create it. ConnectionFailed: no name server answers, or no
        broker of the topic has a master now; NoAnswer.
        """
        routes = self._session.routes
        kept = routes.kept(topic)
        if kept is not None and kept.write:
            return kept
        try:
            route = await routes.refresh(topic, timeout_s)
        except NotFound as missing:
            try:
                return await routes.to_create(topic, timeout_s)
            except NotFound:
                raise missing from None
        if not route.write:
            if any(0 not in addresses for addresses in route.brokers.values()):
                raise ConnectionFailed(f"topic {topic}", "none of its brokers has a master at present")
            raise NotFound(
                "name server", ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} has no queue that can be written"
            )
        return route

    async def queue_of(self, message: Message, timeout_s: float) -> Queue:
        """Returns the queue of a message with an order key or a queue number; of another one, the next in turn.

        NotFound: the topic has no such queue. NotStored: the time was up before its queues were known.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        for failures in itertools.count():
            try:
                return self._pick(message, await self.route(message.topic, deadline_s - loop.time()), frozenset())
            except (ConnectionFailed, NoAnswer) as error:
                pause_s = _PAUSES_S[min(failures + 1, len(_PAUSES_S) - 1)]
                if loop.time() + pause_s >= deadline_s:
                    raise NotStored(f"the queues of topic {message.topic} are not known: {error}") from error
                await asyncio.sleep(pause_s)
        raise AssertionError("the loop ends with a result or an error")

    def known_queue(self, message: Message) -> Queue | None:
        """The same without asking a name server; None: the route is not known."""
        route = self._session.routes.kept(message.topic)
        return None if route is None or not route.write else self._pick(message, route, frozenset())

    # --- one attempt ---

    async def _choose(self, message: Message, attempts: _Attempts) -> Queue:
        left_s = attempts.deadline_s - asyncio.get_running_loop().time()
        route = self._session.routes.kept(message.topic)
        if route is None or not route.write:
            route = await self.route(message.topic, max(0.001, left_s))
        return self._pick(message, route, attempts.failed)

    def _pick(self, message: Message, route: Route, failed: frozenset[str] | set[str]) -> Queue:
        queues = route.write
        if message.order_key is not None:
            return queues[abs(string_hash(message.order_key)) % len(queues)]
        if message.queue is not None:
            matching = [each for each in queues if each.id == message.queue]
            if not matching:
                remark = f"topic {message.topic} has no queue {message.queue}"
                raise NotFound("name server", ResponseCode.TOPIC_NOT_EXIST, remark)
            return next((each for each in matching if each.broker not in failed), matching[0])
        turn = self._turns.get(message.topic)
        if turn is None:
            turn = self._turns[message.topic] = itertools.count()
        first = next(turn)
        if not failed and not self._avoided:
            return queues[first % len(queues)]
        now_s = asyncio.get_running_loop().time()
        in_turn = [queues[(first + step) % len(queues)] for step in range(len(queues))]
        for avoided in (failed | {name for name, until_s in self._avoided.items() if until_s > now_s}, failed):
            found = next((each for each in in_turn if each.broker not in avoided), None)
            if found is not None:
                return found
        return in_turn[0]

    async def _attempt(self, queue: Queue, items: Sequence[Outgoing], attempts: _Attempts, code: int) -> Command:
        session = self._session
        left_s = attempts.deadline_s - asyncio.get_running_loop().time()
        address = session.routes.master(queue.broker) or await self._master(queue, left_s)
        if items[0].message.needs_timers and not await session.has_timers(address):
            raise not_supported(
                address, "this broker delivers messages only after a level, and at once with delay or deliver_at"
            )
        command = request(self._group, queue, items, code)
        timeout_s = max(0.001, min(session.timeout_s, left_s))
        attempts.count += 1
        try:
            # Its own pause: a broker that cannot be reached now is left for another one.
            answer = await session.connections.call(address, command, timeout_s, patient=False)
        except (ConnectionFailed, NoAnswer) as error:
            attempts.in_doubt |= isinstance(error, NoAnswer)
            self._failed(queue, attempts)
            raise
        if answer.code in STORED:
            self._avoided.pop(queue.broker, None)
            return answer
        refusal = refused(address, answer.code, answer.remark)
        if answer.code in _ELSEWHERE:
            self._failed(queue, attempts)
            if answer.code == ResponseCode.SYSTEM_ERROR and not isinstance(refusal, AccessDenied):
                attempts.in_doubt = True  # it can also be an error after the message was stored
                attempts.system_errors += 1
        raise refusal

    async def _master(self, queue: Queue, timeout_s: float) -> str:
        await self._session.routes.refresh(queue.topic, max(0.001, timeout_s))
        address = self._session.routes.master(queue.broker)
        if address is None:
            raise ConnectionFailed(f"broker {queue.broker}", "has no master at present")
        return address

    def _failed(self, queue: Queue, attempts: _Attempts) -> None:
        attempts.failed.add(queue.broker)
        self._avoided[queue.broker] = asyncio.get_running_loop().time() + _AVOIDED_S

    # --- after a failure ---

    async def _after(self, error: ClientError, item: Outgoing, attempts: _Attempts) -> None:
        """Returns when the next attempt may begin. Otherwise raises what became of the message."""
        final = self._is_final(error, item.message.topic, attempts)
        pause_s = _PAUSES_S[min(attempts.failures, len(_PAUSES_S) - 1)]
        attempts.failures += 1
        loop = asyncio.get_running_loop()
        if final or loop.time() + pause_s >= attempts.deadline_s:
            raise self._outcome(error, item, attempts, final) from error
        if isinstance(error, Busy) or not self._others(item.message.topic, attempts):
            await asyncio.sleep(pause_s)
        try:
            await self._session.routes.refresh(item.message.topic, max(0.001, attempts.deadline_s - loop.time()))
        except ClientError:
            pass  # the route that is known is used
        if loop.time() >= attempts.deadline_s:  # another attempt would only say that there was no time for it
            raise self._outcome(error, item, attempts, final) from error

    def _others(self, topic: str, attempts: _Attempts) -> bool:
        """Whether there are brokers that did not fail in this request."""
        route = self._session.routes.kept(topic)
        return route is not None and any(each.broker not in attempts.failed for each in route.write)

    def _is_final(self, error: ClientError, topic: str, attempts: _Attempts) -> bool:
        if isinstance(error, AccessDenied | ClosedError):
            return True
        if isinstance(error, Refused):
            if error.code == ResponseCode.SYSTEM_ERROR:
                return attempts.system_errors >= _SYSTEM_ERRORS
            if error.code in (ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST):
                return attempts.count == 0 or not self._others(topic, attempts)
            return error.code not in _ELSEWHERE
        return not isinstance(error, ConnectionFailed | NoAnswer)

    def _outcome(self, error: ClientError, item: Outgoing, attempts: _Attempts, final: bool) -> ClientError:
        if attempts.in_doubt:
            text = f"it is not known whether message {item.unique_key} is stored: {error}"
            return Unknown(text, item.unique_key, address=error.address)
        if final:
            return error
        text = f"message {item.unique_key} is not stored, after {attempts.count} attempts: {error}"
        return NotStored(text, address=error.address, code=error.code, remark=error.remark)


def _results(items: Sequence[Outgoing], queue: Queue, answer: Command, in_doubt: bool) -> list[SendResult]:
    fields = answer.ext or {}
    status = STORED.get(answer.code, SendStatus.OK)
    actual = Queue(queue.topic, queue.broker, int(fields.get("queueId", queue.id)))
    offset = int(fields.get("queueOffset", -1))
    region = None if fields.get(names.TRACE_ON) == "false" else fields.get(names.MSG_REGION, "DefaultRegion")
    ids = fields.get("msgId", "").split(",")
    return [
        SendResult(
            *(item.unique_key, ids[number] if number < len(ids) else "", actual, offset + number),
            *(status, in_doubt, region),
        )
        for number, item in enumerate(items)
    ]
