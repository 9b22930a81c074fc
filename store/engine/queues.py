"""The ConsumeQueues of a store as a whole: which exist, where they begin and end, who watches them, which go."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.store.engine.timers import TOPIC as TIMER_TOPIC

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, Log
    from tallystick.store.engine.appender import Appender
    from tallystick.store.engine.dispatcher import Dispatcher
    from tallystick.store.engine.upkeep import Upkeep

_OWN_TOPICS = frozenset({"SCHEDULE_TOPIC_XXXX", TIMER_TOPIC})
"""Topics whose messages are delivered to other topics."""


class Queues:
    """Administers the queues. Owns nothing but the order of steps: a removal comes after all pending records."""

    def __init__(
        self, log: Log, dispatch: Dispatch, dispatcher: Dispatcher, appender: Appender, upkeep: Upkeep
    ) -> None:
        self._log = log
        self._dispatch = dispatch
        self._dispatcher = dispatcher
        self._appender = appender
        self._upkeep = upkeep

    def names(self) -> list[tuple[str, int]]:
        """Every (topic, queue id) that has a ConsumeQueue."""
        return [(topic.decode(), queue_id) for topic, queue_id, *_ in self._dispatch.queues()]

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the next message of the queue; 0 if there is no such queue."""
        self._dispatcher.catch_up()
        return self._dispatch.offsets(topic.encode(), queue_id)[1]

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the oldest message that is not deleted; 0 if there is no such queue."""
        return self._dispatch.offsets(topic.encode(), queue_id)[0]

    def continue_all(self) -> None:
        """The next put to each queue follows its last record. All records must be dispatched."""
        for topic, queue_id, _, max_offset, _, _ in self._dispatch.queues():
            if max_offset > 0:
                self._log.set_next_offset(topic, queue_id, max_offset)

    def set_filters(
        self,
        topics: list[bytes],
        calculate: Callable[[list[tuple[bytes, bytes]]], list[bytes]],
        require: Callable[[list[tuple[bytes, bytes, int]]], list[bytes]],
    ) -> int:
        """See `Dispatch.set_filters`."""
        return self._dispatch.set_filters(topics, calculate, require)

    # -- arrivals ------------------------------------------------------------------------------------------------------

    @property
    def on_arrival(self) -> Callable[[list[tuple[str, int]]], None] | None:
        """The callback that gets the watched queues that grew, after dispatch."""
        return self._dispatcher.on_arrival

    @on_arrival.setter
    def on_arrival(self, call: Callable[[list[tuple[str, int]]], None] | None) -> None:
        self._dispatcher.on_arrival = call

    def watch(self, topic: str, queue_id: int) -> None:
        """Reports arrivals in this queue from now on."""
        self._dispatch.watch(topic.encode(), queue_id)

    def unwatch(self, topic: str, queue_id: int) -> None:
        """Stops reporting arrivals in this queue."""
        self._dispatch.unwatch(topic.encode(), queue_id)

    # -- removal -------------------------------------------------------------------------------------------------------

    def remove_topic(self, topic: str) -> None:
        """Deletes the topic's ConsumeQueues. Its records stay in the log until their segments are deleted."""
        # Dispatching a pending record would create the queue again, with an offset that a new topic must not use.
        self._appender.write()
        self._dispatcher.finish()
        self._log.forget_topic(topic.encode())
        self._dispatch.remove_topic(topic.encode())
        self._upkeep.save_soon()

    async def save_progress(self) -> None:
        """Returns when removed ConsumeQueues stay removed after a kill. A failure is logged."""
        await self._upkeep.save_now()

    def clean_unused_topics(self, keep: set[str]) -> dict[str, int]:
        """Deletes the ConsumeQueues of topics that are not in `keep` and have no message left in the log.

        Returns the other topics with their number of messages. The topics of delayed messages always stay.
        """
        self._appender.write()
        self._dispatcher.finish()
        stay = self.unknown_topics(keep)
        for topic in {topic for topic, _ in self.names()} - keep - stay.keys() - _OWN_TOPICS:
            self.remove_topic(topic)
        return stay

    def unknown_topics(self, known: set[str]) -> dict[str, int]:
        """Topics not in `known` with their number of messages in the log, if they have any. Without the topics
        of delayed messages."""
        found: dict[str, int] = {}
        for name, _, min_offset, max_offset, _, max_pos in self._dispatch.queues():
            topic = name.decode()
            if (
                topic not in known
                and topic not in _OWN_TOPICS
                and max_offset > min_offset
                and max_pos > self._upkeep.min_pos
            ):
                found[topic] = found.get(topic, 0) + max_offset - min_offset
        return found

    def delete_expired_segments(self) -> None:
        """Deletes expired segments of the log and their units soon, at any hour."""
        self._upkeep.delete_expired_soon()

    def clean_expired_queues(self) -> int:
        """Deletes ConsumeQueue and index files for records before the log's start. Returns the number of files."""
        removed = self._dispatch.delete_below(self._upkeep.min_pos)
        self._upkeep.save_soon()
        return removed
