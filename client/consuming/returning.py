"""Messages that go back to a broker after a failure, to be delivered later."""

from __future__ import annotations

from tallystick.client.consuming.pulling import Queues, retry_topic
from tallystick.client.core.errors import ClientError
from tallystick.client.core.message import Stored
from tallystick.client.transport.session import Session
from tallystick.client.wire import properties as names
from tallystick.client.wire.codes import RequestCode
from tallystick.client.wire.command import Command
from tallystick.client.wire.sending import send_fields

_FIRST_LEVEL = 3
"""The delay of the first repetition: brokers and clients add the attempts to it."""


class Returning:
    """Sends messages of one group back. `max_retries`: the attempts after which a message becomes a dead letter."""

    def __init__(self, session: Session, queues: Queues, group: str, max_retries: int) -> None:
        self._session = session
        self._queues = queues
        self._group = group
        self._max_retries = max_retries

    async def send_back(self, message: Stored, delay_level: int) -> None:
        """Returns when a broker has the message. If its own broker does not take it, any broker of the group's topic of
        repetitions stores a copy. ClientError: no broker took it."""
        try:
            await self._queues.send_back(message, delay_level, self._max_retries)
        except ClientError as error:
            if delay_level < 0:
                raise  # a copy would be delivered again
            try:
                await self._copy(message, delay_level)
            except ClientError:
                raise error from None

    async def _copy(self, message: Stored, delay_level: int) -> None:
        topic = retry_topic(self._group)
        route = await self._session.routes.get(topic)
        attempts = message.attempts + 1
        pairs = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
        pairs |= {
            names.RETRY_TOPIC: message.topic,
            names.RECONSUME_TIME: str(attempts),
            names.MAX_RECONSUME_TIMES: str(self._max_retries),
            names.DELAY: str(delay_level or _FIRST_LEVEL + message.attempts),
            names.ORIGIN_MESSAGE_ID: message.properties.get(names.ORIGIN_MESSAGE_ID, message.message_id),
        }
        problem: ClientError = ClientError(f"topic {topic} has no broker at present")
        for queue in route.write:
            fields = send_fields(
                self._group, topic, queue.id, names.encode(pairs), message.born_ms, sys_flag=0, flag=message.flag
            )
            fields |= {"j": str(attempts), "l": str(self._max_retries)}
            command = Command(RequestCode.SEND_MESSAGE_V2, ext=fields, body=message.body)
            address = self._session.routes.master(queue.broker)
            if address is None:
                continue
            try:
                await self._session.connections.ask(address, command, self._session.timeout_s)
            except ClientError as error:
                problem = error
            else:
                return
        raise problem


_NOT_COPIED = frozenset(
    (names.MIN_OFFSET, names.MAX_OFFSET, names.CLUSTER, names.TRAN_MSG, names.PGROUP, names.REAL_TOPIC, names.REAL_QID)
)
