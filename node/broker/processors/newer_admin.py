"""Administration requests that RocketMQ 4.8 does not have, and the tools of 4.9 and 5.x send.

    18, 225     several topics or consumer groups in one request: all of them are changed, or none
    328         all producers
    329         delete expired segments of the log now
    343, 345    topics and subscription of a consumer group
    351, 352    one topic, one consumer group
    907         the copies of the log: slaves, or in a group its members

Source: the request and response classes of RocketMQ 4.9.7 and 5.5.0.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.processors.admin import check_topic, update_topics_of_request, with_attributes
from tallystick.node.broker.processors.answers import json_answer, objects, read_body, refused
from tallystick.node.broker.tables.administration import update_groups
from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, need_str

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext, GroupView
    from tallystick.node.broker.tables.clients import Channel
    from tallystick.node.remoting.endpoint import Handler


class NewerAdminProcessor:
    """Serves what newer tools ask in addition to `AdminProcessor`."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_groups,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            RequestCode.GET_TOPIC_CONFIG: self.topic,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group,
            RequestCode.GET_BROKER_HA_STATUS: self.copies,
        }

    async def update_topics(self, channel: Channel, command: Command) -> Command:
        """18: creates or changes topics."""
        rows = objects(read_body(command).get("topicConfigList"), "topicConfigList")
        try:
            configs = [TopicConfig.from_json(row) for row in rows]
        except (ValueError, TypeError) as error:
            raise refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        for config in configs:
            check_topic(self._broker, config.topic_name)
        configs = [
            with_attributes(self._broker, config, partial(_changes_of, row.get("attributes")))
            for config, row in zip(configs, rows, strict=True)
        ]
        await update_topics_of_request(self._broker, command.user, *configs)
        return command.reply()

    async def update_groups(self, channel: Channel, command: Command) -> Command:
        """225: creates or changes consumer groups."""
        rows = objects(read_body(command).get("groupConfigList"), "groupConfigList")
        try:
            await update_groups(self._broker, *(SubscriptionGroup.from_json(row) for row in rows))
        except (ValueError, TypeError) as error:
            raise refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return command.reply()

    def topic(self, channel: Channel, command: Command) -> Command:
        """351: returns one topic."""
        name = need_str(command.ext, "topic")
        config = self._broker.topics.get(name)
        if config is None:
            raise refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        return json_answer(command, config.to_json())

    def group(self, channel: Channel, command: Command) -> Command:
        """352: returns one consumer group."""
        name = need_str(command.ext, "group")
        group = self._broker.groups.find(name)
        if group is None:
            raise refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name}")
        return json_answer(command, group.to_json())

    def all_producers(self, channel: Channel, command: Command) -> Command:
        """328: returns the clients of all producer groups."""
        producers = self._broker.producers
        table = {
            name: [
                {
                    "clientId": client.client_id,
                    "language": client.language,
                    "lastUpdateTimestamp": client.last_update_ms,
                    "remoteIP": str(client.channel.remote),
                    "version": client.version,
                }
                for client in producers.members(name)
            ]
            for name in producers.groups()
        }
        return json_answer(command, {"data": table})

    def topics_of_group(self, channel: Channel, command: Command) -> Command:
        """343: returns the topics for which a consumer group has committed offsets."""
        name = need_str(command.ext, "group")
        return json_answer(command, {"topicList": sorted(self._broker.offsets.topics_of(name))})

    def subscription(self, channel: Channel, command: Command) -> Command:
        """345: returns the subscription of a connected consumer group to a topic."""
        group, topic = need_str(command.ext, "group"), need_str(command.ext, "topic")
        found = self._broker.consumers.subscription(group, topic)
        body = {"group": group, "subscriptionData": None if found is None else found.to_json(), "topic": topic}
        return json_answer(command, body)

    def delete_expired(self, channel: Channel, command: Command) -> Command:
        """329: deletes segments of the log that have expired, at any hour."""
        self._broker.store.queues.delete_expired_segments()
        return command.reply()

    def copies(self, channel: Channel, command: Command) -> Command:
        """907: returns how far the copies of the log are. Only the leader of a group knows it of the other members."""
        group, end = self._broker.group, self._broker.store.max_pos
        rows = self._slaves(end) if group is None else self._members(group, end)
        body = {
            "haClientRuntimeInfo": {"activated": False, "masterFlushOffset": 0, "maxOffset": end},
            "haConnectionInfo": rows,
            "inSyncSlaveNums": sum(row["inSync"] is True for row in rows),
            "master": group is None or group.leads,
            "masterCommitLogMaxOffset": end,
        }
        return json_answer(command, body)

    def _slaves(self, end: int) -> list[dict[str, Any]]:
        slaves = self._broker.slaves
        if slaves is None:
            return []
        furthest = self._broker.store.settings.haSlaveFallbehindMax
        return [
            {
                "addr": each.address,
                "diff": end - each.stored_pos,
                "inSync": end - each.stored_pos < furthest,
                "slaveAckOffset": each.stored_pos,
                "transferFromWhere": each.sent_pos,
                "transferredByteInSecond": each.bytes_a_second,
            }
            for each in slaves.states()
        ]

    def _members(self, group: GroupView, end: int) -> list[dict[str, Any]]:
        return [
            {
                "addr": "" if peer.address is None else "{}:{}".format(*peer.address),
                "diff": peer.lag_bytes,
                "inSync": peer.connected and peer.state == "pipeline",
                "slaveAckOffset": end - peer.lag_bytes,
                "transferFromWhere": end - peer.lag_bytes,
                "transferredByteInSecond": 0,
            }
            for peer in group.peers()
            if peer.lag_bytes is not None
        ]


def _changes_of(attributes: Any) -> dict[Any, Any]:
    """The changes of attributes in a row of request 18. Raises ValueError."""
    if attributes is None or isinstance(attributes, dict):
        return attributes or {}
    raise ValueError(f"attributes of a topic are an object, not {attributes!r:.100}")
