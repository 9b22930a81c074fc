"""The name of a queue in JSON: topic, broker, number."""

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
        """Raises ValueError if a part is missing or has another type."""
        topic, broker_name, queue_id = value.get("topic"), value.get("brokerName"), value.get("queueId")
        if not isinstance(topic, str) or not isinstance(broker_name, str) or type(queue_id) is not int:
            raise ValueError(f"not a message queue: {dict(value)!r:.200}")
        return cls(topic, broker_name, queue_id)

    def to_json(self) -> dict[str, Any]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    def key(self) -> JsonObjectKey:
        """As the key of a JSON map: fastjson writes the whole object in place of the key."""
        return JsonObjectKey(self.to_json())
