"""Progress of consumer groups (208, 317), times (303), consumers of a topic (300), tables of offsets (43, 308, 314).

The topics of a group are those in which it committed an offset. While the group is connected, topics that it no longer
subscribes to do not count.

Source: AdminBrokerProcessor of RocketMQ 4.8.0; forms as in the recordings `admin` and `mqadmin`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.processors.answers import json_answer, refused
from tallystick.node.broker.services.stats import GROUP_GET_NUMS
from tallystick.node.broker.tables.consumer_groups import validate_group_name
from tallystick.node.broker.tables.message_queue import MessageQueue
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, need_bool, need_str, opt_bool, opt_str

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.tables.clients import Channel
    from tallystick.node.broker.tables.topics import TopicConfig
    from tallystick.node.remoting.endpoint import Handler

_LONG_MAX = 2**63 - 1


class ConsumptionProcessor:
    """Answers requests about the progress of consumer groups."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.consume_by_who,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
        }

    # --- progress ---

    def consume_stats(self, channel: Channel, command: Command) -> Command:
        """208: returns a group's offsets and the ends of its queues, in one topic or in all."""
        group, topic = need_str(command.ext, "consumerGroup"), opt_str(command.ext, "topic")
        table: dict[Any, Any] = {}
        tps = 0.0
        for config in self._topics(group, [topic] if topic.strip() else self._broker.offsets.topics_of(group)):
            table |= self._progress(group, config)
            tps += self._rate(group, config.topic_name)
        return json_answer(command, {"consumeTps": tps, "offsetTable": table})

    def broker_consume_stats(self, channel: Channel, command: Command) -> Command:
        """317: returns the same for every group of the broker, with a separate entry for each topic."""
        ordered_only = need_bool(command.ext, "isOrder")
        groups, total_diff = [], 0
        for group in sorted(self._broker.groups):
            rows = []
            for config in self._topics(group, self._broker.offsets.topics_of(group)):
                if ordered_only and not config.order:
                    continue
                table = self._progress(group, config)
                total_diff += sum(row["brokerOffset"] - row["consumerOffset"] for row in table.values())
                rows.append({"consumeTps": self._rate(group, config.topic_name), "offsetTable": table})
            groups.append({group: rows})
        body = {"brokerAddr": str(self._broker.host), "consumeStatsList": groups, "totalDiff": total_diff}
        return json_answer(command, body)

    def _topics(self, group: str, names: Iterable[str]) -> list[TopicConfig]:
        info = self._broker.consumers.get(group)
        subscribed = info.subscriptions if info is not None else {}
        configs = [self._broker.topics.get(name) for name in sorted(names) if not subscribed or name in subscribed]
        return [config for config in configs if config is not None]

    def _progress(self, group: str, config: TopicConfig) -> dict[Any, dict[str, int]]:
        store, topic, table = self._broker.store, config.topic_name, {}
        for queue_id in range(config.read_queue_nums):
            end = max(0, store.queues.max_offset(topic, queue_id))
            offset = max(0, self._broker.offsets.query(group, topic, queue_id))
            last_ms = max(0, store.reads.store_time(topic, queue_id, offset - 1)) if offset > 0 else 0
            table[self._queue(topic, queue_id).key()] = {
                "brokerOffset": end,
                "consumerOffset": offset,
                "lastTimestamp": last_ms,
            }
        return table

    def _rate(self, group: str, topic: str) -> float:
        return self._broker.stats.rate(GROUP_GET_NUMS, f"{topic}@{group}")

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker.settings.brokerName, queue_id)

    def time_span(self, channel: Channel, command: Command) -> Command:
        """303: returns for each queue the store times of its first and last message and of the group's next one, and
        how long ago that one was stored."""
        topic, group = need_str(command.ext, "topic"), need_str(command.ext, "group")
        config = self._broker.topics.get(topic)
        if config is None:
            raise refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        store, spans = self._broker.store, []
        for queue_id in range(config.write_queue_nums):
            end = store.queues.max_offset(topic, queue_id)
            offset = self._broker.offsets.query(group, topic, queue_id)
            first_ms = store.reads.earliest_store_time(topic, queue_id)
            span = {
                "minTimeStamp": first_ms,
                "maxTimeStamp": store.reads.store_time(topic, queue_id, end - 1),
                "consumeTimeStamp": store.reads.store_time(topic, queue_id, offset - 1) if offset > 0 else first_ms,
            }
            next_ms = store.reads.store_time(topic, queue_id, max(0, offset)) if offset < end else -1
            delay_ms = self._broker.now_ms() - next_ms if next_ms >= 0 else 0
            texts = {f"{name}Str": _human(value) for name, value in span.items()}
            spans.append(
                {"messageQueue": self._queue(topic, queue_id).to_json(), "delayTime": delay_ms, **span, **texts}
            )
        return json_answer(command, {"consumeTimeSpanSet": spans})

    def consume_by_who(self, channel: Channel, command: Command) -> Command:
        """300: returns the groups that subscribe to the topic now, or have committed an offset in it."""
        topic = need_str(command.ext, "topic")
        groups = self._broker.consumers.groups_of_topic(topic) | self._broker.offsets.groups_of(topic)
        return json_answer(command, {"groupList": sorted(groups)})

    # --- tables of offsets ---

    def all_offsets(self, channel: Channel, command: Command) -> Command:
        """43: returns the table of consumer offsets."""
        return json_answer(command, self._broker.offsets.to_json())

    def correction(self, channel: Channel, command: Command) -> Command:
        """308: returns for each queue the smallest offset of the topic's groups without `filterGroups`.

        Where `compareGroup` is behind that offset, it returns the largest 64-bit number.
        """
        topic, compare = need_str(command.ext, "topic"), need_str(command.ext, "compareGroup")
        without = [name.strip() for name in opt_str(command.ext, "filterGroups").split(",") if name.strip()]
        lowest = {
            queue_id: offset
            for queue_id, offset in self._broker.offsets.lowest(topic, without).items()
            if offset >= self._broker.store.queues.min_offset(topic, queue_id)
        }
        for queue_id, offset in self._broker.offsets.queues(compare, topic).items():
            if queue_id in lowest and lowest[queue_id] > offset:
                lowest[queue_id] = _LONG_MAX
        return json_answer(command, {"correctionOffsets": lowest})

    async def clone(self, channel: Channel, command: Command) -> Command:
        """314: copies the offsets of one group to another, in one topic or in all."""
        source, target = need_str(command.ext, "srcGroup"), need_str(command.ext, "destGroup")
        if problem := validate_group_name(target):
            raise refused(ResponseCode.SYSTEM_ERROR, problem)
        topic = opt_str(command.ext, "topic")
        names = [topic] if topic.strip() else sorted(self._broker.offsets.topics_of(source))
        info = self._broker.consumers.get(source)
        for name in names:
            if name not in self._broker.topics:
                continue
            if not opt_bool(command.ext, "offline") and info is not None and name not in info.subscriptions:
                continue  # the group is connected and no longer subscribes to this topic
            try:
                self._broker.offsets.clone(source, target, name)
            except ValueError as error:
                raise refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        await self._broker.offsets.saved()
        return command.reply()


def _human(timestamp_ms: int) -> str:
    """Returns a text such as `2026-11-20 23:30:00,000`, in local time, as Java prints these fields."""
    when = datetime.fromtimestamp(timestamp_ms / 1000)
    return f"{when:%Y-%m-%d %H:%M:%S},{timestamp_ms % 1000:03d}"
