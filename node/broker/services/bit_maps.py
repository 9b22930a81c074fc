"""Bit maps of SQL92 filters (`enableCalcFilterBitMap`): dispatch evaluates the filters of a topic for each new message,
and pulls skip messages by the result before they read the log.

The kernel asks for the bit maps of the messages of one run in one call (`calculate`), stores them in the extension
units of the ConsumeQueues, and tests the bits of a group's filter when the group pulls.

RocketMQ uses the bits of a message if it was stored after the filter was registered, by the clock. Here a filter's bits
are valid from the position in the log where dispatch was when the filter was registered with this process. The log
orders the two, whatever the clocks say, and a bit map of an unknown origin excludes no message. So it does not matter
that filters are no part of the log: members of a group may know different filters at a position, and a restarted broker
other ones than before.

Source: CommitLogDispatcherCalcBitMap and ExpressionMessageFilter of RocketMQ 4.8.0.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tallystick.store._kernel import BitTest

if TYPE_CHECKING:
    from tallystick.node.broker.tables.filters import ConsumerFilterTable, FilterData
    from tallystick.store.engine.message_store import MessageStore

_logger = logging.getLogger("tallystick.broker.filters")

A = TypeVar("A")
R = TypeVar("R")


class BitMaps:
    """Keeps the kernel's filters equal to those of the table."""

    def __init__(self, filters: ConsumerFilterTable, store: MessageStore) -> None:
        self._filters = filters
        self._store = store
        self._open = False

    def start(self, *, wanted: bool) -> None:
        """Registers all filters of the table. Without `wanted`, or without extensions, does nothing."""
        if not wanted:
            return
        if not self._store.settings.enableConsumeQueueExt:
            _logger.warning("enableCalcFilterBitMap=true has no effect without enableConsumeQueueExt=true")
            return
        self._open = True
        self._filters.on_change = self._changed
        self._register([data for topic in self._filters.topics() for data in self._filters.of_topic(topic)])

    def stop(self) -> None:
        """Dispatch stores no more bit maps."""
        if self._open:
            self._open = False
            self._filters.on_change = lambda added: None
            self._set([])

    def _changed(self, added: FilterData | None) -> None:
        self._register([] if added is None else [added])

    def _register(self, added: list[FilterData]) -> None:
        topics = [topic.encode(errors="surrogatepass") for topic in self._filters.topics()]
        position = self._set(topics)
        for data in added:
            data.valid_from = position
            test = BitTest(data.bloom_positions, self._filters.bloom.bits // 8, position)
            data.filter = data.filter._replace(bits=test)

    def _set(self, topics: list[bytes]) -> int:
        # The collector does not see what the kernel holds: the store would never be freed.
        return self._store.queues.set_filters(topics, _weak(self.calculate), _weak(self.require))

    def calculate(self, records: list[tuple[bytes, bytes]]) -> list[bytes]:
        """The bit map of each (topic, stored properties); b"" if no group has a filter for the topic.

        Called on the thread of dispatch. Filters of dead groups count, as in RocketMQ."""
        size_bytes = self._filters.bloom.bits // 8
        known: dict[bytes, list[FilterData]] = {}
        maps = []
        for topic, stored in records:
            if topic not in known:
                known[topic] = self._filters.of_topic(topic.decode(errors="surrogatepass"))
            filters = known[topic]
            maps.append(_bits(filters, stored).to_bytes(size_bytes, "little") if filters else b"")
        return maps

    def require(self, records: list[tuple[bytes, bytes, int]]) -> list[bytes]:
        """The bits that the map of each (topic, stored properties, position) must have if this process made it."""
        size_bytes = self._filters.bloom.bits // 8
        maps = []
        for topic, stored, pos in records:
            filters = self._filters.of_topic(topic.decode(errors="surrogatepass"))
            valid = [data for data in filters if 0 <= data.valid_from <= pos]
            maps.append(_bits(valid, stored).to_bytes(size_bytes, "little"))
        return maps


def _weak(method: Callable[[A], R]) -> Callable[[A], R]:
    """Calls the method, and does not keep its object alive."""
    reference = weakref.WeakMethod(method)

    def call(argument: A) -> R:
        found = reference()
        if found is None:
            raise RuntimeError("the broker of this store is gone")
        return found(argument)

    return call


def _bits(filters: list[FilterData], stored: bytes) -> int:
    bits = 0
    for data in filters:
        accept = data.filter.accept
        if accept is not None and accept(0, stored):
            bits |= data.bloom_mask
    return bits
