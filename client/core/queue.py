"""A queue of a topic."""

from __future__ import annotations

from typing import NamedTuple


class Queue(NamedTuple):
    """One queue of a topic at one broker. The order is that of RocketMQ's clients, who share queues by it."""

    topic: str
    broker: str
    id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.id}"
