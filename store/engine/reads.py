"""The reads of a store: from queue, time, key or position to the records of the log, copied once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.store._kernel import key_hash as index_key_hash
from tallystick.store.clock import steady_ms
from tallystick.store.engine.put_times import GetCounts
from tallystick.store.formats.message import UNLIMITED, GetResult, GetStatus, QueryResult
from tallystick.store.formats.record import store_timestamp
from tallystick.store.settings import BrokerRole

if TYPE_CHECKING:
    from tallystick.store._kernel import BitTest, Dispatch, ExtensionUnit, Log
    from tallystick.store.engine.dispatcher import Dispatcher
    from tallystick.store.engine.durability import Durability
    from tallystick.store.engine.index_repair import IndexRepair
    from tallystick.store.engine.log_repair import LogRepair
    from tallystick.store.engine.media import MediaWatch
    from tallystick.store.engine.queue_repair import QueueRepair
    from tallystick.store.settings import StoreSettings

# One read compares at most so many wrong places with the log; the reader returns for the rest.
_MOST_LOOKS = 256
_PLACED_BYTES = 36
"""Size of the head of a record, up to and including its position."""
_TIMED_BYTES = 76
"""Size of the head of a record, up to and including its store time, with the longest addresses."""
_GET_STATUSES = tuple(GetStatus)


class Reads:
    """Owns the limits of one answer, and the number of damaged records that reads have met."""

    def __init__(
        self,
        settings: StoreSettings,
        log: Log,
        dispatch: Dispatch,
        dispatcher: Dispatcher,
        durability: Durability,
        *,
        media: MediaWatch,
        queue_repair: QueueRepair,
        index_repair: IndexRepair,
        log_repair: LogRepair,
        entry_header_bytes: int,
        min_pos: Callable[[], int],
    ) -> None:
        """`entry_header_bytes`: size of what precedes each record in the log. `min_pos`: where the log begins."""
        self._settings = settings
        self._log = log
        self._dispatch = dispatch
        self._dispatcher = dispatcher
        self._durability = durability
        self._media = media
        self._queue_repair = queue_repair
        self._index_repair = index_repair
        self._log_repair = log_repair
        self._entry_header_bytes = entry_header_bytes
        self._min_pos = min_pos
        self._damaged = 0
        self.counts = GetCounts(steady_ms())
        self.settings_changed()

    def settings_changed(self) -> None:
        """Limits answers by the present settings from now on."""
        settings = self._settings
        self._correct_offsets = settings.brokerRole is not BrokerRole.SLAVE or settings.offsetCheckInSlave
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._memory_bytes = memory * settings.accessMessageInMemoryMaxRatio // 100
        self._limits = (
            settings.maxTransferBytesOnMessageInMemory,
            settings.maxTransferCountOnMessageInMemory,
            settings.maxTransferBytesOnMessageInDisk,
            settings.maxTransferCountOnMessageInDisk,
        )

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        codes: frozenset[int] | None = None,
        accept: Callable[[int, bytes], bool] | None = None,
        bits: BitTest | None = None,
        most_accepts: int = UNLIMITED,
    ) -> GetResult:
        """Records of a queue from `offset` on, as many as RocketMQ returns in one answer.

        `codes`: accepted tag hashes (None: all). `accept(tags_code, properties)` makes the final decision per record,
        for `most_accepts` records at most: the next pull continues behind them.
        `bits`: records that their bit map excludes are skipped before that, unread.
        """
        begin_ms = steady_ms()
        name = topic.encode(errors="surrogatepass")
        found = self._get(name, queue_id, offset, max_messages, codes, accept, bits, most_accepts)
        if found[0] != 0 and offset >= found[3] and self._dispatcher.catch_up():
            # Acknowledged messages can be read, even if they were not dispatched yet.
            found = self._get(name, queue_id, offset, max_messages, codes, accept, bits, most_accepts)
        looks = 0
        while found[7] >= 0 and looks < _MOST_LOOKS and self._queue_repair.look_at(name, queue_id, found[7]):
            looks += 1
            found = self._get(name, queue_id, offset, max_messages, codes, accept, bits, most_accepts)
        if self._dispatch.damaged > self._damaged:
            self._damaged = self._dispatch.damaged
            met = self._dispatch.take_damaged()
            for pos, size in met:
                self._media.met(pos, size)
            if any(self._media.is_being_repaired(pos) for pos, _ in met):
                # The copy of another member will replace it soon: the reader waits before it.
                self._log_repair.wait_for(topic, queue_id)
                found = self._get(
                    name, queue_id, offset, max_messages, codes, accept, bits, most_accepts, stop_at_damage=True
                )
                self._damaged = self._dispatch.damaged
                self._dispatch.take_damaged()
        status, next_offset, minimum, maximum, count, body, behind, _ = found
        self.counts.add(count, steady_ms() - begin_ms)
        return GetResult(_GET_STATUSES[status], next_offset, minimum, maximum, count, body, behind)

    def get_frame(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        codes: frozenset[int] | None,
        opaque: int,
        suggested: int,
    ) -> tuple[bytes, int, int, int] | None:
        """The result of `get_message` as the frame that answers a pull, with the number and bytes of its records, and
        the offset that follows.

        None unless all records are sound and in memory: then use `get_message`.
        `opaque`: the pull's; `suggested`: the broker id from which to pull next.
        """
        begin_ms = steady_ms()
        found = self._dispatch.get_frame(
            topic.encode(errors="surrogatepass"),
            queue_id,
            offset,
            max_messages,
            codes,
            self._durability.readable_end,
            self._memory_bytes,
            self._limits,
            opaque,
            suggested,
        )
        if found is not None:  # otherwise `get_message` counts it
            self.counts.add(found[1], steady_ms() - begin_ms)
        return found

    def _get(
        self,
        topic: bytes,
        queue_id: int,
        offset: int,
        max_messages: int,
        codes: frozenset[int] | None,
        accept: Callable[[int, bytes], bool] | None,
        bits: BitTest | None,
        most_accepts: int,
        *,
        stop_at_damage: bool = False,
    ) -> tuple[int, int, int, int, int, bytes, bool, int]:
        readable_end, knows_offsets = self._durability.read_limits()
        return self._dispatch.get(
            topic,
            queue_id,
            offset,
            max_messages,
            codes,
            readable_end,
            self._memory_bytes,
            self._limits,
            self._correct_offsets and knows_offsets,
            accept,
            stop_at_damage,
            stop_at_wrong=not stop_at_damage,
            bits=bits,
            most_accepts=most_accepts,
        )

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The offset of the message stored at that time, or nearest to it.

        Each unit that the search meets is compared with the record that it leads to, and a wrong one with the log. A
        unit that is still being compared, and a message that is lost or damaged, is passed over: then the offset may
        be an earlier one, never a later one.
        """
        self._dispatcher.catch_up()
        name = topic.encode()
        for _ in range(_MOST_LOOKS):
            offset, wrong = self._dispatch.offset_by_time(name, queue_id, timestamp_ms, stop_at_wrong=True)
            if wrong < 0:
                return offset
            # Has it compared and written again, and reports the record if that is damaged.
            if not self.usable_units(topic, queue_id, wrong, 1):
                break
        return self._dispatch.offset_by_time(name, queue_id, timestamp_ms)[0]

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time (ms) of one message; -1 if there is none."""
        units = self.usable_units(topic, queue_id, offset, 1)
        record = self.message_at(units[0][0]) if units else None
        return -1 if record is None else store_timestamp(record)

    def stored_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Like `store_time`, for figures: reads only the head of the record, and repairs nothing. -1 also for a message
        whose place in the log has no record."""
        units = self._dispatch.units(topic.encode(), queue_id, offset, 1)
        if not units or not self._begins_at(units[0][0]):
            return -1
        head = self._dispatch.log_bytes(units[0][0], min(_TIMED_BYTES, units[0][1]))
        return -1 if head is None or len(head) < _TIMED_BYTES else store_timestamp(head)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Store time (ms) of a queue's oldest message; -1 if there is none."""
        return self.store_time(topic, queue_id, self._dispatch.offsets(topic.encode(), queue_id)[0])

    def message_at(self, pos: int) -> bytes | None:
        """The record that begins at byte `pos` of the log; None if no sound record begins there. A damaged one is
        reported, and a group repairs it."""
        record = self._dispatch.record_at(pos, self._durability.readable_end) if pos >= 0 else None
        if record is None and (size := self._damaged_at(pos)):
            self._media.met(pos, size)
        return record

    def _damaged_at(self, pos: int) -> int:
        """Returns the bytes to report of a damaged record at `pos`; 0 if no record states that it begins there.

        Clients choose the positions in message ids, so the place itself must say that a record begins there. The size
        in the record may be damaged, too: it counts only if another record begins behind it, or the log ends.
        """
        if not self._min_pos() <= pos or not self._begins_at(pos):
            return 0
        head = self._dispatch.log_bytes(pos, 4)
        size = 0 if head is None else int.from_bytes(head)
        header = self._entry_header_bytes
        is_sound = pos + size == self._durability.readable_end or self._begins_at(pos + size + header)
        return size if size > _PLACED_BYTES and is_sound else _PLACED_BYTES

    def _begins_at(self, pos: int) -> bool:
        """Whether the bytes at `pos` are those of a record that states this position."""
        if pos > self._durability.readable_end - _PLACED_BYTES:
            return False
        head = self._dispatch.log_bytes(pos, _PLACED_BYTES)
        return head is not None and int.from_bytes(head[-8:]) == pos

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Records stored in [begin_ms, end_ms] whose key may be `key`: by hash, ascending by position."""
        self._dispatcher.catch_up()
        hashed = index_key_hash(f"{topic}#{key}".encode(errors="surrogatepass"))
        limit = min(max_count, self._settings.maxMsgsNumBatch)
        positions, updated_ms, updated_pos = self._dispatch.lookup(hashed, limit, begin_ms, end_ms)
        return QueryResult(updated_ms, updated_pos, self._index_repair.records(hashed, positions))

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """ConsumeQueue units (pos, size, tags_code) from `offset` on, fewer at the end."""
        self._dispatcher.catch_up()
        return self._dispatch.units(topic.encode(), queue_id, offset, count)

    def extension_unit(self, topic: str, queue_id: int, address: int) -> ExtensionUnit | None:
        """The extension of a unit whose tags code is this address; None if there is none."""
        return self._dispatch.ext_unit(topic.encode(), queue_id, address)

    def usable_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Like `units`, but each is compared with its record, for callers that read the records.

        Ends before a unit that is being compared with the log, or whose record a group repairs: call it again later. A
        message that is lost or permanently damaged is (-1, 0, 0).
        """
        self._dispatcher.catch_up()
        name = topic.encode()
        units, wrong, damaged = self._dispatch.usable_units(name, queue_id, offset, count)
        looks = 0
        while wrong >= 0 and looks < _MOST_LOOKS and self._queue_repair.look_at(name, queue_id, wrong):
            looks += 1
            units, wrong, damaged = self._dispatch.usable_units(name, queue_id, offset, count)
        for at, pos, size in damaged:
            self._media.met(pos, size)
            if self._media.is_being_repaired(pos):
                return units[: at - offset]
        return units

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the message is so near to the log's end that it is probably still in the page cache."""
        units = self.units(topic, queue_id, offset, 1)
        return bool(units) and self._log.written - units[0][0] <= self._memory_bytes
