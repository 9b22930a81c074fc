"""Request and reply: delivers the answer to a request message to the client that waits for it.

A client that calls `request()` sends a plain message with the properties CORRELATION_ID, TTL and REPLY_TO_CLIENT (its
own client id). Its consumer answers with a message that has the same properties. The broker pushes this message (326)
on the connection on which the waiting client sends heartbeats, and waits for the client's confirmation.

Source: ReplyMessageProcessor of RocketMQ 4.8.0; fields as in the recording `transaction`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingError
from tallystick.store.formats import properties
from tallystick.store.formats.message import Host, Message

if TYPE_CHECKING:
    from tallystick.node.broker.processors.sending import SendRequest
    from tallystick.node.broker.tables.clients import ProducerTable

PUSH_TIMEOUT_S = 3.0


def push_command(request: SendRequest, message: Message, store_host: Host, now_ms: int) -> Command:
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326) for a reply that is being sent. Hosts have the slash that Java prints."""
    names = properties.decode(message.properties)
    names[properties.PUSH_REPLY_TIME] = str(now_ms)
    ext = {
        "producerGroup": request.producer_group,
        "topic": request.topic,
        "defaultTopic": request.default_topic,
        "defaultTopicQueueNums": str(request.default_topic_queue_nums),
        "queueId": str(message.queue_id),
        "sysFlag": str(request.sys_flag),
        "bornTimestamp": str(request.born_timestamp_ms),
        "bornHost": f"/{message.born_host}",
        "storeHost": f"/{store_host}",
        "storeTimestamp": str(now_ms),
        "flag": str(request.flag),
        "properties": properties.encode(names),
        "reconsumeTimes": str(request.reconsume_times),
        "unitMode": "true" if request.unit_mode else "false",
    }
    return Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=ext, body=message.body)


async def push_reply(producers: ProducerTable, client_id: str | None, command: Command) -> str | None:
    """Sends the reply to the waiting client. None if the client accepted it; otherwise the reason."""
    if not client_id:
        return f"the reply has no property {properties.REPLY_TO_CLIENT}"
    channel = producers.find(client_id)
    if channel is None or channel.closed:
        return f"push reply message fail, channel of <{client_id}> not found."
    try:
        answer = await channel.call(command, PUSH_TIMEOUT_S)
    except RemotingError as error:
        return f"push reply message to {client_id} fail: {error}"
    if answer.code != ResponseCode.SUCCESS:
        return f"push reply message to {client_id} fail: code {answer.code} {answer.remark or ''}".rstrip()
    return None
