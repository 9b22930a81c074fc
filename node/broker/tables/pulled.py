"""How far consumers have pulled each queue: what was delivered to a group and is not committed yet.

The offsets are those of this process: after a start nothing was pulled. They serve figures only.

Source: ConsumerOffsetManager.pullOffsetTable of RocketMQ 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_PULLED = 100_000
"""Limit for the groups and topics together. Only existing groups pull existing topics, but clients can combine them."""


class PulledOffsets:
    """By topic and group: the offset behind the last message that a pull returned, by queue."""

    def __init__(self) -> None:
        self._pulled: dict[tuple[str, str], dict[int, int]] = {}

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A pull returned messages up to `offset` (exclusive)."""
        queues = self._pulled.get((topic, group))
        if queues is None:
            if len(self._pulled) >= MAX_PULLED:
                del self._pulled[next(iter(self._pulled))]  # the oldest one: it appears again with its next pull
            queues = self._pulled[topic, group] = {}
        queues[queue_id] = offset

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Offset by queue id; empty if the group has pulled nothing from this topic."""
        return self._pulled.get((topic, group), {})

    def remove_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self._remove([key for key in self._pulled if key[0] == topic])

    def remove_group(self, group: str) -> None:
        """The group was deleted."""
        self._remove([key for key in self._pulled if key[1] == group])

    def _remove(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self._pulled[key]
