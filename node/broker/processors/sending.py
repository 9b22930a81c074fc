"""The common parts of all kinds of sends: the request's header, the checks before the store, the answer.

SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324) have full names of fields; the V2 codes (310, 325) and batches (320) have
names of one letter. The order of the checks is RocketMQ's, so a request that fails two of them gets RocketMQ's code.

Source: AbstractSendMessageProcessor, SendMessageProcessor, SendMessageRequestHeaderV2 of RocketMQ 4.8.0.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.node.access.access_log import AUDIT_TOPIC
from tallystick.node.broker.tables.topics import (
    CHECK_MAX_TOPIC,
    HALF_TOPIC,
    OPERATION_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYS_FLAG_UNIT,
    SYS_FLAG_UNIT_SUB,
    TIMER_TOPIC,
    TopicConfig,
    validate_topic_name,
)
from tallystick.node.core.settings import PERMISSION_WRITE
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import (
    Command,
    ResponseError,
    need_int,
    need_long,
    need_str,
    opt_bool,
    opt_int,
    opt_str,
)
from tallystick.store.formats import properties
from tallystick.store.formats.message import Host, PutResult, PutStatus

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext

SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
VERSION_WITH_MAX_RECONSUME = 121  # V3_4_9: since then clients send the maximum number of attempts
_LONG_NAMES = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE))
_FULL = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}
_SHORT = {letter: letter for letter in _FULL}

FORBIDDEN_TOPICS = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OPERATION_TOPIC, CHECK_MAX_TOPIC, AUDIT_TOPIC))
"""Topics that only the broker writes: their records move or end messages of other topics, or say who changed what."""


@dataclass(frozen=True, slots=True)
class SendRequest:
    """The header of a send, with long or short names. `max_reconsume_times` is None if the client does not send it.
    `user`: see `Command`."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp_ms: int
    flag: int
    properties: str
    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    batch: bool
    user: str = ""

    @classmethod
    def read(cls, command: Command) -> SendRequest:
        """Parses the header. ResponseError 1: a field is missing or is not a number."""
        ext, name = command.ext, _FULL if command.code in _LONG_NAMES else _SHORT
        limited = ext is not None and name["l"] in ext
        return cls(
            producer_group=need_str(ext, name["a"]),
            topic=need_str(ext, name["b"]),
            default_topic=need_str(ext, name["c"]),
            default_topic_queue_nums=need_int(ext, name["d"]),
            queue_id=need_int(ext, name["e"]),
            sys_flag=need_int(ext, name["f"]),
            born_timestamp_ms=need_long(ext, name["g"]),
            flag=need_int(ext, name["h"]),
            properties=opt_str(ext, name["i"]),
            reconsume_times=opt_int(ext, name["j"]),
            unit_mode=opt_bool(ext, name["k"]),
            max_reconsume_times=need_int(ext, name["l"]) if limited else None,
            batch=opt_bool(ext, name["m"]),
            user=command.user,
        )


def admit(broker: BrokerContext, request: SendRequest, producer: Host) -> TopicConfig:
    """Checks a send and returns its topic, which it creates if that is permitted. ResponseError: the send is
    refused."""
    settings = broker.settings
    if broker.now_ms() < settings.startAcceptSendRequestTimeStamp:
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            f"broker unable to service, until {settings.startAcceptSendRequestTimeStamp} ms since 1970",
        )
    known = broker.topics.get(request.topic)
    if not settings.brokerPermission & PERMISSION_WRITE and known is not None and known.order:
        raise ResponseError(
            ResponseCode.NO_PERMISSION, f"the broker[{settings.brokerIP1}] sending message is forbidden"
        )
    if (problem := validate_topic_name(request.topic)) is not None:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, problem)
    if request.topic in FORBIDDEN_TOPICS:
        raise ResponseError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{request.topic}] is forbidden.")
    config = known or _create(broker, request)
    if config is None:
        raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{request.topic}] not exist, apply first please!")
    if request.queue_id >= max(config.read_queue_nums, config.write_queue_nums):
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{request.queue_id}] is illegal, topic[{config.topic_name}] has "
            f"{config.read_queue_nums} read and {config.write_queue_nums} write queues, producer: {producer}",
        )
    return config


async def rows_durable(broker: BrokerContext, topic: str, queue_id: int, group: str | None = None) -> None:
    """Returns when a message in this queue can be read after a kill: the rows of its topic and group are durable.

    It gives up the event loop only if they are not, which is the case for the first sends to a topic. Sends that wait
    continue in the order in which they arrived. ResponseError 14: a row cannot be saved now; 17: the topic was deleted
    meanwhile.
    """
    try:
        if group is not None:
            await broker.groups.gate.passed(group)
        if (
            queue_id < broker.topics.open_queues(topic) or broker.topics.follows
        ):  # the store of a follower refuses the message
            return
        await broker.topics.gate.passed(topic)
    except OSError as error:
        raise ResponseError(
            ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now. topic[{topic}] is not saved: {error}"
        ) from error
    if topic not in broker.topics:
        raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, it was deleted just now")


def _create(broker: BrokerContext, request: SendRequest) -> TopicConfig | None:
    retry = request.topic.startswith(RETRY_PREFIX)
    if not retry:
        broker.quotas.check_new_topics(request.user, (request.topic,))
    unit = 0
    if request.unit_mode:
        unit = SYS_FLAG_UNIT_SUB if retry else SYS_FLAG_UNIT
    config = broker.topics.create_on_send(
        request.topic, request.default_topic, request.default_topic_queue_nums, unit, request.user
    )
    if config is None and retry:
        config = broker.topics.create_on_send_back(request.topic, 1, topic_sys_flag=unit)
    return config


def choose_queue(request: SendRequest, config: TopicConfig) -> int:
    """Returns the queue of the request, or a random writable one if the request has a negative queue id."""
    if request.queue_id >= 0:
        return request.queue_id
    if config.write_queue_nums <= 0:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"topic[{config.topic_name}] has no queue to write to")
    return random.randrange(config.write_queue_nums)


def with_cluster(text: str, cluster: str) -> dict[str, str]:
    """Returns the properties of a request and, last, the cluster's name. It drops parts without a name and a value."""
    names = properties.decode(text)
    names.pop(properties.CLUSTER, None)  # a message that a client sends again has it from its first delivery
    names[properties.CLUSTER] = cluster
    return names


_CODES: dict[PutStatus, tuple[ResponseCode, str]] = {
    PutStatus.PUT_OK: (ResponseCode.SUCCESS, ""),
    PutStatus.FLUSH_DISK_TIMEOUT: (ResponseCode.FLUSH_DISK_TIMEOUT, ""),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (ResponseCode.FLUSH_SLAVE_TIMEOUT, ""),
    PutStatus.SLAVE_NOT_AVAILABLE: (ResponseCode.SLAVE_NOT_AVAILABLE, ""),
    PutStatus.CREATE_MAPEDFILE_FAILED: (
        ResponseCode.SYSTEM_ERROR,
        "create mapped file failed, server is busy or broken.",
    ),
    PutStatus.MESSAGE_ILLEGAL: (
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal, maybe msg body or properties length not matched.",
    ),
    PutStatus.PROPERTIES_SIZE_EXCEEDED: (
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal, its properties are too long.",
    ),
    PutStatus.SERVICE_NOT_AVAILABLE: (ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now."),
    PutStatus.OS_PAGECACHE_BUSY: (
        ResponseCode.SYSTEM_ERROR,
        "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    ),
    PutStatus.NO_BUFFER: (
        ResponseCode.SYSTEM_BUSY,
        "[REJECTREQUEST]system busy, start flow control for a while",
    ),
    PutStatus.UNKNOWN_ERROR: (ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR"),
}
assert set(_CODES) == set(PutStatus)


def region(broker: BrokerContext) -> dict[str, str]:
    """Returns the fields that every answer to a send has: a 4.8 client fails if an answer has no fields."""
    return {
        properties.TRACE_ON: "true" if broker.settings.traceOn else "false",
        properties.MSG_REGION: broker.settings.regionId,
    }


def put_answer(broker: BrokerContext, command: Command, result: PutResult, queue_id: int) -> Command:
    """Returns the answer for the result of a put. It has the ids if the message was stored, flushed or not.

    `queue_id` is that of the request, also for delayed and half messages; the queue offset is that of the record.
    """
    status = result.status
    code, remark = _CODES[status]
    ext = region(broker)
    acknowledged = status is PutStatus.PUT_OK
    if not acknowledged and code is not ResponseCode.MESSAGE_ILLEGAL:
        broker.stats.send_failures += 1
    if acknowledged or status.stored:
        ext = {
            "queueId": str(queue_id),
            **ext,
            "msgId": result.message_id,
            "queueOffset": str(result.queue_offset),
        }
    elif result.detail:
        remark = f"{remark} {result.detail}"
    return command.reply(code, ext=ext, remark=remark or None)
