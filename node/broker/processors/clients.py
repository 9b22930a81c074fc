"""Clients come, stay and go: heartbeats (34), farewells (35), members of a group (38), a subscription tried out (46).

A heartbeat creates what its groups need (the group, its retry topic) and adds the client with its subscriptions. When
the members of a group change, each is informed (40), so that they rebalance the queues.

Source: ClientManageProcessor, ConsumerManageProcessor, DefaultConsumerIdsChangeListener of RocketMQ 4.8.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tallystick.node.broker import sql92
from tallystick.node.broker.clients import CLUSTERING, FROM_LAST, PUSH, Channel, Client
from tallystick.node.broker.processors.answers import json_answer, objects, read_body, refused, text
from tallystick.node.broker.subscriptions import SQL92, SubscriptionData, is_tag_type
from tallystick.node.broker.topics import READ_WRITE, SYS_FLAG_UNIT_SUB, retry_topic
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, need_str, opt_str

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.groups import SubscriptionGroup
    from tallystick.node.remoting.endpoint import Handler

MAX_GROUPS = 1024  # of consumers and of producers in one heartbeat; a limit of ours, each makes a topic


class ClientProcessor:
    """Enters clients into the tables, and tells members of changed groups."""

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
        """34: the client is alive, and these are its groups."""
        client, parsed, producer_groups = self._parse(channel, command)
        for data, group, subscriptions in parsed:
            self._consumer(group, client, data, subscriptions)
        for group in producer_groups:
            self._broker.producers.register(group, client)
        return None if command.is_oneway else command.reply()

    def relayed_heartbeat(self, channel: Channel, command: Command) -> Command | None:
        """31004: a client of another member is alive. Its producers are reached by that member; consumers heartbeat
        here themselves, but what they need is made if it is not there."""
        client, parsed, producer_groups = self._parse(channel, command)
        for data, group, _ in parsed:
            self._group(group, data)
        for group in producer_groups:
            self._broker.producers.register(group, client)
        return None if command.is_oneway else command.reply()

    def _parse(
        self, channel: Channel, command: Command
    ) -> tuple[Client, list[tuple[dict[Any, Any], str, list[SubscriptionData]]], list[str]]:
        """The client, its consumers (what they say, group, subscriptions), and its groups of producers."""
        body = read_body(command)
        client_id = text(body.get("clientID"), "clientID of a heartbeat")
        consumers = objects(body.get("consumerDataSet"), "consumerDataSet of a heartbeat")
        producers = objects(body.get("producerDataSet"), "producerDataSet of a heartbeat")
        if max(len(consumers), len(producers)) > MAX_GROUPS:
            raise refused(ResponseCode.SYSTEM_ERROR, f"a heartbeat with more than {MAX_GROUPS} groups")
        # All of it is read before any of it counts: a heartbeat with a mistake changes nothing.
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
        """The group and its retry topic, made if need be. None: it may not be made."""
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
        """35: the client leaves a group of consumers, of producers, or of both."""
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
        """38: the client ids of a group, for sharing out its queues."""
        group = need_str(command.ext, "consumerGroup")
        client_ids = self._broker.consumers.client_ids(group)
        if not client_ids:
            raise refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        answer = json_answer(command, {"consumerIdList": client_ids})
        answer.ext = {}
        return answer

    def check_config(self, channel: Channel, command: Command) -> Command:
        """46: would this subscription work here? Asked before the first heartbeat."""
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
            raise refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"no filter of type {kind}, only TAG and {SQL92}")
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
