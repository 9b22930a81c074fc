"""The name of a queue as it travels in JSON: topic, broker, number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tallystick.store.fastjson import JsonObjectKey


class MessageQueue(NamedTuple):
    """One queue of one broker."""

    topic: str
    broker_name: str
    queue_id: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MessageQueue:
        """ValueError: a part is missing or of another type."""
        topic, broker_name, queue_id = value.get("topic"), value.get("brokerName"), value.get("queueId")
        if not isinstance(topic, str) or not isinstance(broker_name, str) or type(queue_id) is not int:
            raise ValueError(f"no message queue: {dict(value)!r:.200}")
        return cls(topic, broker_name, queue_id)

    def to_json(self) -> dict[str, Any]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    def key(self) -> JsonObjectKey:
        """As the key of a JSON map: fastjson writes the whole object in the key's place."""
        return JsonObjectKey(self.to_json())
