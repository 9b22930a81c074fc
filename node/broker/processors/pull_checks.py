"""The checks of a pull before it reads, in RocketMQ's order: broker, group, topic and subscription.

Each check raises ResponseError with RocketMQ's code and text: clients act on the code, and people search for the text.
24, 25, 27 and 28 are temporary: the pull arrived before the heartbeat with its subscription, and the client retries.

Source: PullMessageProcessor of RocketMQ 4.8.0.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from tallystick.node.broker.processors.pull_request import SUBSCRIPTION
from tallystick.node.broker.tables.clients import BROADCASTING
from tallystick.node.broker.tables.filters import MessageFilter, filter_of, tag_filter
from tallystick.node.broker.tables.subscriptions import SubscriptionData, is_tag_type
from tallystick.node.broker.tables.topics import RETRY_PREFIX
from tallystick.node.core.settings import PERMISSION_READ
from tallystick.node.remoting.codes import ResponseCode
from tallystick.node.remoting.command import ResponseError
from tallystick.store.limited_log import LimitedLog

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.processors.pull_request import PullRequest
    from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup
    from tallystick.node.remoting.server import Connection

_FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


class PullChecks:
    """Checks the pulls of one broker."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._log = LimitedLog(logging.getLogger("tallystick.broker.pull"), time.monotonic)

    def group(self, name: str) -> SubscriptionGroup:
        """Returns the consumer group, if it may consume from this broker. ResponseError otherwise."""
        broker = self._broker
        if not broker.settings.brokerPermission & PERMISSION_READ:
            raise ResponseError(
                ResponseCode.NO_PERMISSION, f"the broker[{broker.settings.brokerIP1}] pulling message is forbidden"
            )
        group = broker.groups.get(name)
        if group is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist, {_FAQ}"
            )
        if not group.consume_enable:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")
        return group

    def queue(self, connection: Connection, topic: str, queue_id: int) -> None:
        """Checks that the topic exists, may be read, and has this queue. ResponseError otherwise."""
        config = self._broker.topics.get(topic)
        if config is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {_FAQ}")
        if not config.readable:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
        if not 0 <= queue_id < config.read_queue_nums:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{config.read_queue_nums}] consumer:[/{connection.id}]",
            )

    def filter(self, group: SubscriptionGroup, request: PullRequest) -> MessageFilter:
        """Returns the filter of the subscription in the pull or, without one, of the group's registered
        subscription."""
        broker, topic, sub_version, ext = self._broker, request.topic, request.sub_version, request.ext
        if request.sys_flag & SUBSCRIPTION:
            expression_type = ext.get("expressionType")
            try:
                wanted = filter_of(ext.get("subscription"), expression_type)
            except ValueError as error:
                self._log.warning(
                    "subscription", "refused the subscription of %s to %s: %s", group.group_name, topic, error
                )
                raise ResponseError(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
                ) from None
        else:
            subscription = self._subscription(group, topic, sub_version)
            expression_type = subscription.expression_type
            if is_tag_type(expression_type):
                wanted = tag_filter(subscription)
            else:
                wanted = self._kept_filter(group, topic, sub_version)
        if wanted.accept is not None and not broker.settings.enablePropertyFilter:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {expression_type}",
            )
        if broker.settings.filterSupportRetry and topic.startswith(RETRY_PREFIX):
            return broker.filters.retry_filter(topic)._replace(codes=wanted.codes)
        return wanted

    def _subscription(self, group: SubscriptionGroup, topic: str, sub_version: int) -> SubscriptionData:
        info = self._broker.consumers.get(group.group_name)
        if info is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{_FAQ}")
        if not group.consume_broadcast_enable and info.message_model == BROADCASTING:
            raise ResponseError(
                ResponseCode.NO_PERMISSION, f"the consumer group[{group.group_name}] can not consume by broadcast way"
            )
        subscription = info.subscriptions.get(topic)
        if subscription is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{_FAQ}")
        if subscription.sub_version < sub_version:
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return subscription

    def _kept_filter(self, group: SubscriptionGroup, topic: str, sub_version: int) -> MessageFilter:
        data = self._broker.filters.get(topic, group.group_name)
        if data is None:
            raise ResponseError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if data.client_version < sub_version:
            raise ResponseError(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
        return data.filter
