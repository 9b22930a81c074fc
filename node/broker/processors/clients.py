"""Requests of clients: heartbeat (34), unregister (35), members of a group (38), check of a subscription (46).

A heartbeat creates the consumer groups that it names and their retry topics, and registers the client with its
subscriptions. When the members of a group change, the broker informs each of them (40), so that they rebalance the
queues.

Source: ClientManageProcessor, ConsumerManageProcessor, DefaultConsumerIdsChangeListener of RocketMQ 4.8.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tallystick.node.broker import sql92
from tallystick.node.broker.processors.answers import json_answer, objects, read_body, refused, text
from tallystick.node.broker.tables.clients import CLUSTERING, FROM_LAST, PUSH, Channel, Client
from tallystick.node.broker.tables.subscriptions import SQL92, SubscriptionData, is_tag_type
from tallystick.node.broker.tables.topics import READ_WRITE, SYS_FLAG_UNIT_SUB, retry_topic
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, need_str, opt_str

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup
    from tallystick.node.remoting.endpoint import Handler

MAX_GROUPS = 1024  # consumer and producer groups in one heartbeat; RocketMQ has no limit. Each creates a topic


class ClientProcessor:
    """Registers clients, and informs the members of groups that changed."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        broker.consumers.on_members_changed.append(self._tell_members)

    def routes(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.RELAYED_HEART_BEAT: self.relayed_heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }

    def _tell_members(self, group: str, channels: list[Channel]) -> None:
        if not self._broker.settings.notifyConsumerIdsChangedEnable:
            return
        for channel in channels:
            if not channel.closed:
                channel.oneway(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext={"consumerGroup": group}))

    def heartbeat(self, channel: Channel, command: Command) -> Command | None:
        """34: registers the client with its groups, or renews its registration."""
        client, parsed, producer_groups = self._parse(channel, command)
        self._broker.quotas.identified(channel, command.user, client.client_id)
        for data, group, subscriptions in parsed:
            self._consumer(group, client, data, subscriptions)
        for group in producer_groups:
            self._broker.producers.register(group, client)
        return None if command.is_oneway else command.reply()

    def relayed_heartbeat(self, channel: Channel, command: Command) -> Command | None:
        """31004: a heartbeat that another member passes on.

        The broker reaches the client's producers through that member. A client with consumers also sends heartbeats to
        the leader itself: then this one only creates the groups of the consumers and their retry topics, and the member
        does not keep the client's connection for requests of the leader.
        """
        client, parsed, producer_groups = self._parse(channel, command)
        for data, group, _ in parsed:
            self._group(group, data)
        for group in producer_groups if not parsed else ():
            self._broker.producers.register(group, client)
        return None if command.is_oneway else command.reply()

    def _parse(
        self, channel: Channel, command: Command
    ) -> tuple[Client, list[tuple[dict[Any, Any], str, list[SubscriptionData]]], list[str]]:
        """Returns the client, its consumers (data, group, subscriptions), and its producer groups."""
        body = read_body(command)
        client_id = text(body.get("clientID"), "clientID of a heartbeat")
        consumers = objects(body.get("consumerDataSet"), "consumerDataSet of a heartbeat")
        producers = objects(body.get("producerDataSet"), "producerDataSet of a heartbeat")
        if max(len(consumers), len(producers)) > MAX_GROUPS:
            raise refused(ResponseCode.SYSTEM_ERROR, f"a heartbeat with more than {MAX_GROUPS} groups")
        # The whole body is parsed before anything changes: a heartbeat with an error changes nothing.
        parsed = [(data, _group_name(data), _subscriptions(data)) for data in consumers]
        producer_groups = [_group_name(data) for data in producers]
        client = Client(channel, client_id, command.language, command.version, self._broker.steady_ms())
        return client, parsed, producer_groups

    def _consumer(
        self, group: str, client: Client, data: dict[Any, Any], subscriptions: list[SubscriptionData]
    ) -> None:
        config = self._group(group, data)
        notify = config is None or config.notify_consumer_ids_changed_enable
        self._broker.consumers.register(
            group,
            client,
            consume_type=str(data.get("consumeType") or PUSH),
            message_model=str(data.get("messageModel") or CLUSTERING),
            consume_from_where=str(data.get("consumeFromWhere") or FROM_LAST),
            subscriptions=subscriptions,
            notify=notify,
        )

    def _group(self, group: str, data: dict[Any, Any]) -> SubscriptionGroup | None:
        """Returns the group, and creates it and its retry topic if necessary. None: it must not be created."""
        config = self._broker.groups.get(group)
        if config is not None:
            self._broker.topics.create_on_send_back(
                retry_topic(group),
                config.retry_queue_nums,
                READ_WRITE,
                SYS_FLAG_UNIT_SUB if data.get("unitMode") else 0,
            )
        return config

    def unregister(self, channel: Channel, command: Command) -> Command | None:
        """35: removes the client from a consumer group, a producer group, or both."""
        need_str(command.ext, "clientID")
        consumer_group, producer_group = opt_str(command.ext, "consumerGroup"), opt_str(command.ext, "producerGroup")
        if producer_group:
            self._broker.producers.unregister(producer_group, channel)
        if consumer_group:
            config = self._broker.groups.find(consumer_group)
            notify = config is None or config.notify_consumer_ids_changed_enable
            self._broker.consumers.unregister(consumer_group, channel, notify=notify)
        return None if command.is_oneway else command.reply(ext={})

    def consumer_list(self, channel: Channel, command: Command) -> Command:
        """38: returns the client ids of a consumer group, among which its clients divide the queues."""
        group = need_str(command.ext, "consumerGroup")
        client_ids = self._broker.consumers.client_ids(group)
        if not client_ids:
            raise refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        answer = json_answer(command, {"consumerIdList": client_ids})
        answer.ext = {}
        return answer

    def check_config(self, channel: Channel, command: Command) -> Command:
        """46: checks a subscription. Clients ask before their first heartbeat."""
        data = read_body(command).get("subscriptionData")
        if not isinstance(data, dict):
            return command.reply()
        kind = data.get("expressionType")
        if is_tag_type(kind):
            return command.reply()
        if not self._broker.settings.enablePropertyFilter:
            raise refused(
                ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
            )
        if kind != SQL92:
            raise refused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"there is no filter of type {kind}, only TAG and {SQL92}"
            )
        try:
            sql92.compile(str(data.get("subString") or ""))
        except sql92.Sql92Error as error:
            raise refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        return command.reply()


def _group_name(data: dict[Any, Any]) -> str:
    return text(data.get("groupName"), "groupName in a heartbeat")


def _subscriptions(data: dict[Any, Any]) -> list[SubscriptionData]:
    values = objects(data.get("subscriptionDataSet"), "subscriptionDataSet of a heartbeat")
    try:
        return [SubscriptionData.from_json(value) for value in values]
    except (ValueError, TypeError) as error:
        raise refused(ResponseCode.SYSTEM_ERROR, f"subscriptionDataSet of a heartbeat: {error}") from error
