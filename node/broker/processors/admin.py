"""Requests of administrators about topics, groups, settings and state.

`consumption.py` and `broker_to_client.py` have the others.

The broker answers a change when it is on disk. It refuses changes of system topics, and of settings that need a
restart; the answer names the setting and the reason.

Source: AdminBrokerProcessor of RocketMQ 4.8.0; forms as in the recordings `admin` and `mqadmin`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.processors.answers import json_answer, read_body, refused
from tallystick.node.broker.services.runtime import runtime_info
from tallystick.node.broker.tables.administration import (
    delete_group,
    delete_topic,
    retention_note,
    update_groups,
    update_topics,
)
from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup
from tallystick.node.broker.tables.message_queue import MessageQueue
from tallystick.node.broker.tables.topic_attributes import parse_changes as parse_attributes
from tallystick.node.broker.tables.topic_attributes import retention_after
from tallystick.node.broker.tables.topics import TopicConfig, validate_topic_name
from tallystick.node.core.java_properties import parse_properties
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, need_int, need_str, opt_bool, opt_int, opt_str
from tallystick.store import fastjson
from tallystick.store.tables import DataVersion

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.tables.clients import Channel
    from tallystick.node.remoting.endpoint import Handler

_logger = logging.getLogger("tallystick.broker")
_MAX_NAMED = 20
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


class AdminProcessor:
    """Serves mqadmin and the admin API of RocketMQ's clients."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._config_version = DataVersion(0, broker.now_ms())

    def routes(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
            RequestCode.GET_BROKER_CONFIG: self.config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
        }

    # --- topics ---

    async def update_topic(self, channel: Channel, command: Command) -> Command:
        """17: creates or changes a topic. `order` of the request has no effect, as in RocketMQ 4.8. Attributes that the
        request does not name stay."""
        ext = command.ext
        name = need_str(ext, "topic")
        check_topic(self._broker, name)
        filter_type = need_str(ext, "topicFilterType")
        if filter_type not in _FILTER_TYPES:
            raise refused(ResponseCode.SYSTEM_ERROR, f"topicFilterType {filter_type!r} must be one of {_FILTER_TYPES}")
        config = TopicConfig(
            name,
            need_int(ext, "readQueueNums"),
            need_int(ext, "writeQueueNums"),
            need_int(ext, "perm"),
            filter_type,
            opt_int(ext, "topicSysFlag"),
        )
        if known := self._broker.topics.get(name):
            config = replace(config, order=known.order)
        config = with_attributes(self._broker, config, lambda: parse_attributes(opt_str(ext, "attributes")))
        await update_topics_of_request(self._broker, command.user, config)
        return command.reply(remark=retention_note(self._broker, config))

    async def delete_topic(self, channel: Channel, command: Command) -> Command:
        """215: deletes a topic. It succeeds if the topic does not exist, because mqadmin asks every broker."""
        name = need_str(command.ext, "topic")
        check_topic(self._broker, name)
        await delete_topic(self._broker, name)
        return command.reply()

    def all_topics(self, channel: Channel, command: Command) -> Command:
        """21: returns all topics."""
        answer = json_answer(command, self._broker.topics.to_json())
        answer.ext = {}
        return answer

    def topic_stats(self, channel: Channel, command: Command) -> Command:
        """202: returns begin, end and last store time of each queue."""
        name = need_str(command.ext, "topic")
        config = self._broker.topics.get(name)
        if config is None:
            raise refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        store, table = self._broker.store, {}
        for queue_id in range(config.write_queue_nums):
            low, high = max(0, store.queues.min_offset(name, queue_id)), max(0, store.queues.max_offset(name, queue_id))
            last_ms = store.reads.store_time(name, queue_id, high - 1) if high > low else 0
            queue = MessageQueue(name, self._broker.settings.brokerName, queue_id)
            table[queue.key()] = {"lastUpdateTimestamp": max(0, last_ms), "maxOffset": high, "minOffset": low}
        return json_answer(command, {"offsetTable": table})

    def system_topics(self, channel: Channel, command: Command) -> Command:
        """305: returns the names of the system topics."""
        return json_answer(command, {"topicList": self._broker.topics.system_names()})

    def clean_expired_queues(self, channel: Channel, command: Command) -> Command:
        """306: deletes ConsumeQueue and index files that only name records before the begin of the log."""
        self._broker.store.queues.clean_expired_queues()
        return command.reply()

    def clean_unused_topics(self, channel: Channel, command: Command) -> Command:
        """316: deletes the queues of topics that are not in the table of topics.

        Queues with messages in the log stay: the table may have lost the topic, and no request deleted the messages.
        """
        stay = self._broker.store.queues.clean_unused_topics(
            set(self._broker.topics) | set(self._broker.topics.system_names())
        )
        if not stay:
            return command.reply()
        names = ", ".join(f"{topic} ({count} messages)" for topic, count in sorted(stay.items())[:_MAX_NAMED])
        remark = (
            f"{len(stay)} topics are in no table and have messages, their queues stay: {names}. Create such a topic"
            " with updateTopic to read its messages, or delete it with deleteTopic"
        )
        _logger.warning("did not clean unused topics: %s", remark)
        return command.reply(remark=remark)

    # --- groups ---

    async def update_group(self, channel: Channel, command: Command) -> Command:
        """200: creates or changes a consumer group."""
        try:
            await update_groups(self._broker, SubscriptionGroup.from_json(read_body(command)))
        except (ValueError, TypeError) as error:
            raise refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return command.reply()

    async def delete_group(self, channel: Channel, command: Command) -> Command:
        """207: deletes a consumer group. Its offsets stay, unless the request has `cleanOffset` (5.x)."""
        name = need_str(command.ext, "groupName")
        await delete_group(self._broker, name, with_offsets=opt_bool(command.ext, "cleanOffset"))
        return command.reply()

    def all_groups(self, channel: Channel, command: Command) -> Command:
        """201: returns all consumer groups."""
        return json_answer(command, self._broker.groups.to_json())

    # --- the broker itself ---

    def update_config(self, channel: Channel, command: Command) -> Command:
        """25: changes settings of the running broker; either all of the request or none."""
        changes = parse_changes(command.body)
        if changes:
            try:
                self._broker.change_settings(changes)
            except ValueError as error:  # ConfigurationError, which names the key
                raise refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
            self._config_version = self._config_version.next(self._broker.now_ms())
            if "brokerPermission" in changes:
                self._broker.register_soon()
        return command.reply()

    def config(self, channel: Channel, command: Command) -> Command:
        """26: returns all settings, one per line."""
        lines = [f"{key}={value}\n" for key, value in sorted(self._broker.configuration().items())]
        version = fastjson.dumps(self._config_version.to_json()).decode()
        return command.reply(ext={"version": version}, body="".join(lines).encode())

    def runtime(self, channel: Channel, command: Command) -> Command:
        """28: returns the runtime information, with RocketMQ's keys."""
        return json_answer(command, {"table": runtime_info(self._broker)})

    def stats(self, channel: Channel, command: Command) -> Command:
        """315: returns one counter over a minute, an hour and a day."""
        name, key = need_str(command.ext, "statsName"), need_str(command.ext, "statsKey")
        self._broker.count_puts()
        view = self._broker.stats.view(name, key)
        if view is None:
            raise refused(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        return json_answer(command, view)

    def delay_offsets(self, channel: Channel, command: Command) -> Command:
        """45: returns the offset of the next message to deliver, by delay level."""
        return json_answer(command, {"offsetTable": dict(self._broker.schedule.offsets.offsets)})


def with_attributes(
    broker: BrokerContext, config: TopicConfig, changes: Callable[[], Mapping[Any, Any]]
) -> TopicConfig:
    """The topic with the attributes that it has now, after these changes. ResponseError 1: they are invalid."""
    known = broker.topics.get(config.topic_name) or config
    try:
        hours = retention_after(known.retention_hours, changes())
    except ValueError as error:
        raise refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
    return replace(config, retention_hours=hours, attributes=known.attributes)


def check_topic(broker: BrokerContext, name: str) -> None:
    """ResponseError 1: clients cannot create, change or delete a topic with this name."""
    if problem := validate_topic_name(name):
        raise refused(ResponseCode.SYSTEM_ERROR, problem)
    if broker.topics.is_system(name):
        raise refused(ResponseCode.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic.")


async def update_topics_of_request(broker: BrokerContext, user: str, *configs: TopicConfig) -> None:
    """Creates or changes all topics, or none. `user`: who creates those that are new. ResponseError 1: one of them is
    invalid; 16: the user may not create as many."""
    broker.quotas.check_new_topics(user, [config.topic_name for config in configs])
    owned = [replace(config, owner=_owner(broker, config.topic_name, user)) for config in configs]
    try:
        await update_topics(broker, *owned)
    except ValueError as error:
        raise refused(ResponseCode.SYSTEM_ERROR, str(error)) from error


def _owner(broker: BrokerContext, topic: str, user: str) -> str:
    known = broker.topics.get(topic)
    return user if known is None else known.owner


def parse_changes(body: bytes) -> dict[str, str]:
    """Parses the settings that mqadmin sends, in Java's form. ResponseError 1: they cannot be parsed."""
    try:
        return parse_properties(body)
    except ValueError as error:
        raise refused(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from error
