"""The listing of an opened store: messages, fillers, queues, and the answers to queries by key, by time and by offset.

It has the form of `opened` in the golden data (one JSON object), so that a listing by RocketMQ's classes and one by
tallystick can be compared field by field. The answers are those of a slave, which does not correct offsets that are out
of range. Times are searched as in RocketMQ, by the files' modification times first.
"""

from __future__ import annotations

import ipaddress
import os
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from tallystick.store._kernel import Dispatch
from tallystick.store.engine.recovery import Recovered
from tallystick.store.formats import properties as property_text
from tallystick.store.formats.derive import index_hash, index_keys, tags_code
from tallystick.store.formats.log_walk import Step, StepKind, walk
from tallystick.store.formats.message import GetStatus, Host
from tallystick.store.formats.queue_format import MAX_EXT_ADDRESS
from tallystick.store.formats.record import BLANK_MAGIC, Record
from tallystick.store.formats.segment_files import SegmentFiles
from tallystick.store.settings import StoreSettings

_LONG_MAX = 2**63 - 1
_QUERY_ROUNDS = 3  # number of index lookups in RocketMQ's queryMessage
_GET_STATUSES = tuple(GetStatus)

Json = dict[str, Any]


class QueueRow(NamedTuple):
    """One row of the kernel's `Dispatch.queues()`."""

    topic: str
    queue: int
    min_offset: int
    max_offset: int
    min_logic_bytes: int
    max_physic: int

    @property
    def name(self) -> bytes:
        return self.topic.encode()


def queue_rows(dispatch: Dispatch) -> list[QueueRow]:
    return [QueueRow(topic.decode(), *numbers) for topic, *numbers in dispatch.queues()]


def after_load(dispatch: Dispatch, min_pos: int, visible_end: int) -> Json:
    """The state right after recovery, before the rest of the log is dispatched."""
    queues = {
        f"{row.topic}-{row.queue}": [row.min_offset, row.max_offset, row.max_physic] for row in queue_rows(dispatch)
    }
    return {"minPhyOffset": min_pos, "maxPhyOffset": visible_end, "queues": queues}


def _host(host: Host) -> str:
    """The text form of Java: IPv6 in eight groups."""
    if ":" not in host.ip:
        return str(host)
    groups = ipaddress.IPv6Address(host.ip).exploded.split(":")
    return f"[{':'.join(format(int(group, 16), 'x') for group in groups)}]:{host.port}"


class Listing:
    """`committed`: in dledger's layout, the commit position when the log was opened."""

    def __init__(
        self,
        settings: StoreSettings,
        dispatch: Dispatch,
        found: Recovered,
        log: SegmentFiles,
        entry_header_bytes: int,
        committed: int | None,
    ) -> None:
        self.settings = settings
        self.dispatch = dispatch
        self.found = found
        self.log = log
        self.entry_header_bytes = entry_header_bytes
        self.committed = committed
        self.delays_ms = settings.delay_levels_ms()
        self.keys: dict[str, dict[str, None]] = {}  # of each topic, in the log's order
        self.times: dict[tuple[str, int], set[int]] = {}  # store times of each queue
        self.queues = queue_rows(dispatch)

    def opened(self, after_load: Json) -> Json:
        messages, blanks = self._log()
        return {
            "loaded": True,
            "afterLoad": after_load,
            "caughtUp": self.dispatch.position >= self.found.end_pos,
            "minPhyOffset": self.found.min_pos,
            "maxPhyOffset": self.found.end_pos,
            "topicQueueTable": {f"{row.topic}-{row.queue}": self._next_offset(row) for row in self.queues},
            "messageCount": len(messages),
            "messages": messages,
            "blanks": blanks,
            "queues": [self._queue(row) for row in self.queues],
            "keys": list(self._queries()),
            "times": [self._times(row) for row in self.queues],
            "gets": [get for row in self.queues for get in self._gets(row)],
        }

    # -- the log -------------------------------------------------------------------------------------------------------

    def _log(self) -> tuple[list[Json], list[Json]]:
        messages, blanks = [], []
        for step in walk(self.log, self.found.min_pos, entry_header_bytes=self.entry_header_bytes):
            if step.pos >= self.found.end_pos:
                break
            if step.kind is StepKind.FILLER:
                magic = -1 if self.entry_header_bytes else BLANK_MAGIC
                blanks.append({"offset": step.pos, "size": step.size, "magic": magic})
            elif step.kind is StepKind.RECORD:
                messages.append(self._message(step))
        return messages, blanks

    def _message(self, step: Step) -> Json:
        record = step.record
        assert record is not None, "a RECORD step has one"
        properties = record.property_table()
        keys = self.keys.setdefault(record.topic, {})
        # the listing asks for all keys, also those of rolled-back records, which the index does not have
        keys.update(dict.fromkeys(index_keys(record._replace(sys_flag=0), properties)))
        self.times.setdefault((record.topic, record.queue_id), set()).add(record.store_timestamp_ms)
        size = step.size - (self.entry_header_bytes if step.entry is not None else 0)
        raw = self.log.read(record.pos, size)
        assert raw is not None, "the record was read from there"
        return {
            "offset": record.pos,
            "entryOffset": step.pos,
            "size": size,
            "entrySize": step.size,
            "magic": record.magic,
            "bodyCRC": int.from_bytes(raw[8:12], "big", signed=True),
            "queueId": record.queue_id,
            "flag": record.flag,
            "queueOffset": record.queue_offset,
            "physicalOffset": record.pos,
            "sysFlag": record.sys_flag,
            "bornTimestamp": record.born_timestamp_ms,
            "bornHost": _host(record.born_host),
            "storeTimestamp": record.store_timestamp_ms,
            "storeHost": _host(record.store_host),
            "reconsumeTimes": record.reconsume_times,
            "preparedTransactionOffset": record.prepared_transaction_offset,
            "bodyLength": len(record.body),
            "bodyCrc32": zlib.crc32(record.body) & 0x7FFFFFFF,
            "topic": record.topic,
            "propertiesRaw": record.properties,
            "properties": properties,
            "msgId": record.message_id,
            "tagsCode": tags_code(record, properties, self.delays_ms),
            # Java's field keeps its first value if there are no properties at all.
            "keys": properties.get(property_text.KEYS) if record.properties else "",
            "uniqKey": properties.get(property_text.UNIQ_KEY),
            "dispatchQueueOffset": record.queue_offset,
            "recordCrc32": zlib.crc32(raw) & 0x7FFFFFFF,
        }

    def _next_offset(self, row: QueueRow) -> int:
        """The offset of the next message at the start of the store: RocketMQ determines it only then, and a queue has
        no uncommitted records."""
        offset = row.max_offset
        while self.committed is not None and offset > row.min_offset:
            ((pos, size, _),) = self.dispatch.units(row.name, row.queue, offset - 1, 1)
            if pos + size <= self.committed:
                break
            offset -= 1
        return offset

    # -- queues --------------------------------------------------------------------------------------------------------

    def _queue(self, row: QueueRow) -> Json:
        units = self.dispatch.units(row.name, row.queue, row.min_offset, row.max_offset - row.min_offset)
        listed: Json = {
            "topic": row.topic,
            "queueId": row.queue,
            "minOffset": row.min_offset,
            "maxOffset": row.max_offset,
            "minLogicOffset": row.min_logic_bytes,
            "maxPhysicOffset": row.max_physic,
            "entries": [list(unit) for unit in units],
        }
        extension = [
            self._extension_unit(row, row.min_offset + number, code)
            for number, (_, _, code) in enumerate(units)
            if code <= MAX_EXT_ADDRESS
        ]
        return listed | ({"ext": extension} if extension else {})

    def _extension_unit(self, row: QueueRow, offset: int, address: int) -> Json:
        found = self.dispatch.ext_unit(row.name, row.queue, address)
        place = {"queueOffset": offset, "address": address}
        if found is None:
            return place
        unit = {"size": found.size, "tagsCode": found.tags_code}
        return place | unit | {"msgStoreTime": found.store_ms, "bitMap": found.bit_map.hex()}

    def _gets(self, row: QueueRow) -> Iterator[Json]:
        low, high = row.min_offset, row.max_offset
        middle = int((low + high) / 2)  # towards zero, as Java divides
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        chosen = self.settings
        limits = (
            chosen.maxTransferBytesOnMessageInMemory,
            chosen.maxTransferCountOnMessageInMemory,
            chosen.maxTransferBytesOnMessageInDisk,
            chosen.maxTransferCountOnMessageInDisk,
        )
        in_memory = memory * chosen.accessMessageInMemoryMaxRatio // 100
        for offset in sorted({-1, 0, low, low + 1, middle, high - 1, high, high + 1, high + 100}):
            status, next_offset, min_offset, max_offset, count, body, *_ = self.dispatch.get(
                row.name, row.queue, offset, 32, None, self.found.end_pos, in_memory, limits, False
            )
            yield {
                "topic": row.topic,
                "queueId": row.queue,
                "offset": offset,
                "max": 32,
                "status": _GET_STATUSES[status].name,
                "nextBeginOffset": next_offset,
                "minOffset": min_offset,
                "maxOffset": max_offset,
                "count": count,
                "bytes": len(body),
            }

    # -- queries -------------------------------------------------------------------------------------------------------

    def _queries(self) -> Iterator[Json]:
        """Queries for every key, for an unknown one, and for some keys with limits in number and time."""
        if not self.settings.messageIndexEnable:
            return
        for topic, keys in sorted(self.keys.items()):
            for key in dict.fromkeys((*keys, "no-such-key")):
                yield self._query(topic, key, 64, 0, _LONG_MAX)
            for key in list(keys)[::17]:
                yield self._query(topic, key, 3, 0, _LONG_MAX)
                positions, _, _ = self.dispatch.lookup(index_hash(topic, key), 64, 0, _LONG_MAX)
                newest = self._record(positions[0]) if positions else None
                middle = newest.store_timestamp_ms if newest is not None else 0
                yield self._query(topic, key, 64, middle, middle + 1000)
                yield self._query(topic, key, 64, middle + 1000, middle + 100000)
                yield self._query(topic, key, 64, 0, middle - 1000)

    def _query(self, topic: str, key: str, most: int, begin_ms: int, end_ms: int) -> Json:
        key_hash = index_hash(topic, key)
        positions, updated_ms, updated_pos = self.dispatch.lookup(key_hash, most, begin_ms, end_ms)
        returned: list[int] = []
        until_ms = end_ms
        for _ in range(_QUERY_ROUNDS):
            found, _, _ = self.dispatch.lookup(key_hash, most, begin_ms, until_ms)
            if not found:
                break
            records = [self._record(pos) for pos in sorted(found)]
            returned = [record.pos for record in records if record is not None]
            if records[0] is not None:
                until_ms = records[0].store_timestamp_ms
            if returned or until_ms < begin_ms:
                break
        return {
            "topic": topic,
            "key": key,
            "max": most,
            "begin": begin_ms,
            "end": end_ms,
            "phyOffsets": positions,
            "indexLastUpdateTimestamp": updated_ms,
            "indexLastUpdatePhyoffset": updated_pos,
            "returned": returned,
        }

    def _record(self, pos: int) -> Record | None:
        data = self.dispatch.record_at(pos, self.found.end_pos)
        return None if data is None else Record.decode(data, check_crc=False)

    def _times(self, row: QueueRow) -> Json:
        known = sorted(self.times.get((row.topic, row.queue), ()))
        asked: set[int] = set()
        for time in known[:: max(1, len(known) // 12)]:
            asked |= {time - 1, time, time + 1}
        if known:
            asked |= {known[0] - 100000, known[-1] + 100000, (known[0] + known[-1]) // 2}
        units = self.dispatch.units(row.name, row.queue, row.min_offset, 1)
        first = self._record(units[0][0]) if units else None
        return {
            "topic": row.topic,
            "queueId": row.queue,
            "earliest": -1 if first is None else first.store_timestamp_ms,
            "asked": [
                [time, self.dispatch.offset_by_time(row.name, row.queue, time, True)[0]] for time in sorted(asked)
            ],
        }
