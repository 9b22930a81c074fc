"""Consumer groups over HTTP, at `/consumergroups`: see `admin_api`, and `docs/operation.md` for the fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from tallystick.node.broker.tables.administration import delete_group, update_groups
from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup
from tallystick.node.http.admin_api import Table, flag
from tallystick.node.http.json_api import ApiError


class ConsumerGroupsApi(Table):
    """The names of fields are RocketMQ's."""

    path = "/consumergroups"
    plural = "consumergroups"
    what = "consumer group"
    fields: ClassVar = {
        "consumeEnable": ("consume_enable", bool),
        "consumeFromMinEnable": ("consume_from_min_enable", bool),
        "consumeBroadcastEnable": ("consume_broadcast_enable", bool),
        "retryQueueNums": ("retry_queue_nums", int),
        "retryMaxTimes": ("retry_max_times", int),
        "brokerId": ("broker_id", int),
        "whichBrokerWhenConsumeSlowly": ("which_broker_when_consume_slowly", int),
        "notifyConsumerIdsChangedEnable": ("notify_consumer_ids_changed_enable", bool),
    }

    def names(self) -> Iterable[str]:
        return self.broker.groups

    def get(self, name: str) -> SubscriptionGroup | None:
        return self.broker.groups.find(name)

    def fresh(self, name: str) -> SubscriptionGroup:
        return SubscriptionGroup(name)

    def problem(self, row: SubscriptionGroup) -> str | None:
        if min(row.broker_id, row.which_broker_when_consume_slowly) < 0:
            return "a broker id must be a number from 0"
        return row.problem()

    def is_system(self, name: str) -> bool:
        return self.broker.groups.is_system(name)

    def version(self) -> dict[str, int]:
        return self.broker.groups.data_version.to_json()

    def figures(self, name: str, row: SubscriptionGroup) -> dict[str, Any]:
        store, offsets = self.broker.store, self.broker.offsets
        topics = [
            {
                "topic": topic,
                "lag": sum(
                    max(0, store.queues.max_offset(topic, queue) - offset)
                    for queue, offset in offsets.queues(name, topic).items()
                ),
            }
            for topic in sorted(offsets.topics_of(name))
        ]
        lag = sum(int(str(topic["lag"])) for topic in topics)
        return {"clients": self._clients(name), "lag": lag, "topics": topics}

    async def update(self, rows: list[SubscriptionGroup]) -> None:
        await update_groups(self.broker, *rows)

    async def delete(self, name: str, query: Mapping[str, str]) -> bool:
        with_offsets = flag(query, "offsets")
        if flag(query, "ifEmpty") and (clients := self._clients(name)):
            raise ApiError(412, f"{name} has {clients} clients here", clients=clients)
        return await delete_group(self.broker, name, with_offsets=with_offsets)

    def _clients(self, name: str) -> int:
        return len(self.broker.consumers.members(name))
