"""Topics over HTTP, at `/topics`: see `admin_api` for the requests, and `docs/operation.md` for the fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from tallystick.node.broker.tables.administration import delete_topic, update_topics
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.http.admin_api import Table, flag
from tallystick.node.http.json_api import ApiError

_QUEUES = 8
_PERM_MAX = 7


class TopicsApi(Table):
    """`perm` is a sum of 4 (read), 2 (write) and 1 (new topics may inherit it). `retentionHours` 0: messages stay as
    long as the log keeps them."""

    path = "/topics"
    plural = "topics"
    what = "topic"
    fields: ClassVar = {
        "readQueues": ("read_queue_nums", int),
        "writeQueues": ("write_queue_nums", int),
        "perm": ("perm", int),
        "order": ("order", bool),
        "retentionHours": ("retention_hours", int),
    }

    def names(self) -> Iterable[str]:
        return self.broker.topics

    def get(self, name: str) -> TopicConfig | None:
        return self.broker.topics.get(name)

    def fresh(self, name: str) -> TopicConfig:
        return TopicConfig(name, _QUEUES, _QUEUES)

    def problem(self, row: TopicConfig) -> str | None:
        # Other interfaces accept 0 queues, as RocketMQ does; here it is an error.
        if min(row.read_queue_nums, row.write_queue_nums) < 1:
            return "a topic needs at least one queue to read and one to write"
        if not 0 <= row.perm <= _PERM_MAX:
            return f"perm must be a sum of 4 (read), 2 (write) and 1 (inherit), not {row.perm}"
        return row.problem()

    def is_system(self, name: str) -> bool:
        return self.broker.topics.is_system(name)

    def version(self) -> dict[str, int]:
        return self.broker.topics.data_version.to_json()

    def figures(self, name: str, row: TopicConfig) -> dict[str, Any]:
        ranges = self._ranges(name, row)
        return {
            "messages": sum(high - low for low, high in ranges),
            "queues": [{"queue": queue, "min": low, "max": high} for queue, (low, high) in enumerate(ranges)],
        }

    async def update(self, rows: list[TopicConfig]) -> None:
        await update_topics(self.broker, *rows)

    async def delete(self, name: str, query: Mapping[str, str]) -> bool:
        row = self.get(name)
        if flag(query, "ifEmpty") and row is not None:
            messages = sum(high - low for low, high in self._ranges(name, row))
            if messages:
                raise ApiError(412, f"{name} has {messages} messages", messages=messages)
        return await delete_topic(self.broker, name)

    def _ranges(self, name: str, row: TopicConfig) -> list[tuple[int, int]]:
        store = self.broker.store
        ranges = []
        for queue in range(max(row.read_queue_nums, row.write_queue_nums)):
            low = max(0, store.queues.min_offset(name, queue))
            ranges.append((low, max(low, store.queues.max_offset(name, queue))))
        return ranges
