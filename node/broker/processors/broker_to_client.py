"""Connections of groups (203, 204), and requests of administrators to clients (222, 223, 307, 309).

Only the broker has a connection to the client: it passes the request on, and the client's answer back. For a reset of
offsets (222) the broker computes the offsets and sends them to all clients of the group (220). Each client stops, takes
the new offsets and commits them; the broker does not change its table of offsets.

Source: AdminBrokerProcessor, Broker2Client of RocketMQ 4.8.0; forms as in the recording `admin`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.processors.answers import has_expired, json_answer, refused
from tallystick.node.broker.tables.clients import Channel, Client
from tallystick.node.broker.tables.message_queue import MessageQueue
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, need_bool, need_long, need_str, opt_str
from tallystick.node.remoting.errors import RemotingError, RemotingTimeout
from tallystick.store import fastjson
from tallystick.store.fastjson import JsonObjectKey
from tallystick.store.formats.message_id import MessageIdError, decode_message_id

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.remoting.endpoint import Handler

_logger = logging.getLogger("tallystick.broker")

CALL_TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 5.0
VERSION_RESET = 28  # V3_0_7_SNAPSHOT: from there on clients know 220 and 221
VERSION_RUNNING_INFO = 62  # V3_1_8_SNAPSHOT: from there on they know 307 and 309


class RelayProcessor:
    """Lists connections, and passes requests on to clients."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
        }

    # --- connections ---

    def consumer_connections(self, channel: Channel, command: Command) -> Command:
        """203: returns the clients of a consumer group, and the group's properties and subscriptions.

        `subscriptionsOfClients` is tallystick's: RocketMQ's brokers know only the subscriptions of the group."""
        name = need_str(command.ext, "consumerGroup")
        group = self._broker.consumers.get(name)
        if group is None:
            raise refused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        members = self._broker.consumers.members(name)
        body = {
            "connectionSet": [client.to_json() for client in members],
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {topic: data.to_json() for topic, data in group.subscriptions.items()},
            "subscriptionsOfClients": {
                client.client_id: [data.to_json() for data in group.of_channel.get(client.channel, ())]
                for client in members
            },
        }
        return json_answer(command, body)

    def producer_connections(self, channel: Channel, command: Command) -> Command:
        """204: returns the clients of a producer group."""
        name = need_str(command.ext, "producerGroup")
        members = self._broker.producers.members(name)
        if not members:
            raise refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return json_answer(command, {"connectionSet": [client.to_json() for client in members]})

    # --- requests to one client ---

    async def running_info(self, channel: Channel, command: Command) -> Command:
        """307: returns the running information of a consumer, as the consumer answers it."""
        request = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext=dict(command.ext or {}))
        return await self._ask(command, request)

    async def consume_directly(self, channel: Channel, command: Command) -> Command:
        """309: lets a consumer consume one message now. Returns the consumer's answer."""
        text = need_str(command.ext, "msgId")
        try:
            _, pos = decode_message_id(text)
        except MessageIdError as error:
            raise refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        record = self._broker.store.reads.message_at(pos)
        if record is None or has_expired(self._broker, record):
            raise refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {pos}")
        ext = {**(command.ext or {}), "brokerName": self._broker.settings.brokerName}
        return await self._ask(command, Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext=ext, body=record))

    async def _ask(self, command: Command, request: Command) -> Command:
        group, client_id = need_str(command.ext, "consumerGroup"), need_str(command.ext, "clientId")
        client = self._broker.consumers.find(group, client_id)
        if client is None:
            raise refused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if client.version < VERSION_RUNNING_INFO:
            raise refused(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{client.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        try:
            answer = await client.channel.call(request, CALL_TIMEOUT_S)
        except RemotingTimeout as error:
            raise refused(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: {error}"
            ) from error
        except RemotingError as error:
            raise refused(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}> Exception: {error}"
            ) from error
        return command.reply(answer.code, ext=answer.ext, body=answer.body, remark=answer.remark)

    # --- offsets that clients hold ---

    def reset_offset(self, channel: Channel, command: Command) -> Command:
        """222: resets the offsets of all clients to a time (-1: the end). Offsets only go back, unless it is forced."""
        ext = command.ext
        topic, group = need_str(ext, "topic"), need_str(ext, "group")
        timestamp_ms, forced = need_long(ext, "timestamp"), need_bool(ext, "isForce")
        table = self._reset_table(topic, group, timestamp_ms, forced)
        members = self._broker.consumers.members(group)
        if not members:
            raise refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset. Group: {group} Topic: {topic} "
                f"Timestamp: {timestamp_ms}",
            )
        self._need_version(members)
        for client in members:
            if not client.channel.closed:
                client.channel.oneway(_reset_command(topic, group, timestamp_ms, table, client.language))
        return json_answer(command, {"offsetTable": {queue.key(): offset for queue, offset in table.items()}})

    def _reset_table(self, topic: str, group: str, timestamp_ms: int, forced: bool) -> dict[MessageQueue, int]:
        config = self._broker.topics.get(topic)
        if config is None:
            raise refused(
                ResponseCode.SYSTEM_ERROR, f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
            )
        store, table = self._broker.store, {}
        for queue_id in range(config.write_queue_nums):
            committed = self._broker.offsets.query(group, topic, queue_id)
            if committed < 0:
                raise refused(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group}> not exist")
            if timestamp_ms == -1:
                wanted = store.queues.max_offset(topic, queue_id)
            else:
                wanted = store.reads.offset_by_time(topic, queue_id, timestamp_ms)
            queue = MessageQueue(topic, self._broker.settings.brokerName, queue_id)
            table[queue] = max(0, wanted) if forced or wanted < committed else committed
        return table

    @staticmethod
    def _need_version(members: list[Client]) -> None:
        for client in members:
            if client.version < VERSION_RESET:
                raise refused(
                    ResponseCode.SYSTEM_ERROR, f"the client does not support this feature. version={client.version}"
                )

    async def consumer_status(self, channel: Channel, command: Command) -> Command:
        """223: returns the offsets that clients hold now, of one client (`clientAddr` is its id) or of all."""
        topic, group = need_str(command.ext, "topic"), need_str(command.ext, "group")
        only = opt_str(command.ext, "clientAddr")
        members = self._broker.consumers.members(group)
        if not members:
            raise refused(ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{group}]")
        self._need_version(members)
        asked = [client for client in members if not only.strip() or client.client_id == only]
        answers = await asyncio.gather(*(_status(client.channel, topic, group) for client in asked))
        # A client that does not answer is left out.
        table = {client.client_id: status for client, status in zip(asked, answers, strict=True) if status is not None}
        return json_answer(command, {"consumerTable": table, "messageQueueTable": {}})


async def _status(channel: Channel, topic: str, group: str) -> dict[JsonObjectKey, Any] | None:
    """221: returns the offsets that one client holds. None: it did not answer with them."""
    request = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext={"topic": topic, "group": group})
    try:
        answer = await channel.call(request, STATUS_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return None
        status = fastjson.loads(answer.body)
        table = status.get("messageQueueTable") if isinstance(status, dict) else None
        return fastjson.object_keys(table) if isinstance(table, dict) else None
    except (RemotingError, ValueError) as error:  # FastjsonError is a ValueError
        _logger.info("got no status from a consumer of %s: %s", group, error)
        return None


def _reset_command(
    topic: str, group: str, timestamp_ms: int, table: dict[MessageQueue, int], language: str | None
) -> Command:
    """Returns request 220. Clients in C++ get a list, because their JSON parser does not support objects as keys."""
    body: dict[str, Any]
    if language == "CPP":
        body = {"offsetTable": [{**queue.to_json(), "offset": offset} for queue, offset in table.items()]}
    else:
        body = {"offsetTable": {queue.key(): offset for queue, offset in table.items()}}
    ext = {"topic": topic, "group": group, "timestamp": str(timestamp_ms), "isForce": "false"}
    return Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext=ext, body=fastjson.dumps(body))
