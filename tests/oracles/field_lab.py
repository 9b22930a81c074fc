"""Every field of every kind of file of a store: where an instance of it is, so that a test can change it.

And two small stores to change: one of this product's broker, and one with entries as RocketMQ's dledger writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from agreement import log_of, records_of
from engine_lab import HOST, PEER, filled_store, small

from tallystick.store._kernel import Door
from tallystick.store.engine.recovery import open_dispatch
from tallystick.store.formats.checkpoint import StoreCheckpoint
from tallystick.store.formats.ledger_format import (
    ENTRY_HEADER_BYTES,
    ENTRY_MAGIC,
    FILLER_MAGIC,
    UNIT_BYTES,
    EntryHeader,
    IndexUnit,
)
from tallystick.store.formats.log_walk import StepKind, walk
from tallystick.store.formats.mapped import ReadMap
from tallystick.store.formats.queue_format import (
    INDEX_ENTRY,
    INDEX_HEADER,
    MAX_EXT_ADDRESS,
    UNIT,
    IndexGeometry,
    IndexHeader,
)
from tallystick.store.formats.record import Record
from tallystick.store.formats.record_fields import fields_of
from tallystick.store.formats.segment_files import SegmentFiles, segment_name
from tallystick.store.tables import JsonTable

RECORD, FILLER, ENTRY = "log record", "filler", "dledger entry"
QUEUE, EXTENSION = "ConsumeQueue", "extension"
HEADER, SLOT, INDEX = "index header", "index slot", "index entry"
LEDGER_INDEX, CHECKPOINT, TABLES, PROGRESS = "dledger index", "checkpoint", "config table", "progress file"
COUNT = 90
SEGMENT = 4096
EARLIER, LATER = ", earlier", ", later"
_NAME = b'"topicName":"'


class Place(NamedTuple):
    """Bytes [at, at + size) of a file are the field `name`. `begin`, `end`: of the structure with the field; `pos`: of
    the record that it belongs to, -1 if there is none."""

    kind: str
    name: str
    path: Path
    at: int
    size: int
    begin: int
    end: int
    pos: int = -1

    @property
    def field(self) -> tuple[str, str]:
        return self.kind, self.name

    def changed(self) -> bytes:
        """The content of the file with the lowest bit of the field flipped, or with an earlier or later time."""
        data = bytearray(self.path.read_bytes())
        field = slice(self.at, self.at + self.size)
        value = int.from_bytes(data[field], "big")
        if self.name.endswith(EARLIER):
            value -= 60_000
        elif self.name.endswith(LATER):
            value += 1 << 40
        else:
            value ^= 1
        data[field] = value.to_bytes(self.size, "big")
        return bytes(data)


def _struct(kind: str, path: Path, begin: int, names: str, sizes: Sequence[int], pos: int = -1) -> Iterator[Place]:
    at = begin
    for name, size in zip(names.split(), sizes, strict=True):
        yield Place(kind, name.replace("-", " "), path, at, size, begin, begin + sum(sizes), pos)
        at += size


def log_places(root: Path) -> Iterator[Place]:
    """The fields of a record in the middle, of its entry, and of a filler."""
    folder, header = log_of(root)
    records = [each for each in records_of(root) if each.topic == "T"]
    record = records[len(records) // 2]
    with SegmentFiles(folder) as log:
        start = log.start_of(record.pos)
        assert start is not None
        begin, path = record.pos - header - start, folder / segment_name(start)
        data = path.read_bytes()[begin : begin + header + record.size]
        for name, low, high in fields_of(data, header):
            kind = ENTRY if high <= header else RECORD
            yield Place(kind, name, path, begin + low, high - low, begin, begin + len(data), record.pos)
        step = next(step for step in walk(log, entry_header_bytes=header) if step.kind is StepKind.FILLER)
        start = log.start_of(step.pos)
        assert start is not None
        at, path = step.pos - start, folder / segment_name(start)
        names = "magic size content" if header else "size magic content"
        yield from _struct(FILLER, path, at, names, (4, 4, step.size - 8), step.pos)


def queue_places(root: Path) -> Iterator[Place]:
    folder = next(iter(sorted(root.glob("consumequeue/T/0"))))
    path, number = folder / segment_name(0), 5
    unit = UNIT.unpack_from(path.read_bytes(), number * UNIT.size)
    yield from _struct(QUEUE, path, number * UNIT.size, "position size tagsCode", (8, 4, 8), unit[0])
    if unit[2] <= MAX_EXT_ADDRESS:
        extension = root / "consumequeue_ext" / folder.relative_to(root / "consumequeue") / segment_name(0)
        at = unit[2] + (1 << 63)
        size = int.from_bytes(extension.read_bytes()[at : at + 2], "big")
        names, sizes = "size tagsCode msgStoreTime bitMapSize", [2, 8, 8, 2]
        if size > sum(sizes):
            names, sizes = f"{names} bitMap", [*sizes, size - sum(sizes)]
        yield from _struct(EXTENSION, extension, at, names, sizes, unit[0])


def index_places(root: Path) -> Iterator[Place]:
    path = sorted(root.glob("index/*"))[0]
    data = path.read_bytes()
    with ReadMap(path) as mapped:
        geometry = IndexGeometry.of_file(mapped)
    assert geometry is not None
    header = IndexHeader(*INDEX_HEADER.unpack_from(data))
    names = "beginTimestamp endTimestamp beginPhyOffset endPhyOffset hashSlotCount indexCount"
    yield from _struct(HEADER, path, 0, names, (8, 8, 8, 8, 4, 4))
    number = header.next_entry // 2
    key_hash, pos, *_ = INDEX_ENTRY.unpack_from(data, geometry.entry_at(number))
    yield from _struct(SLOT, path, geometry.slot_at(key_hash % geometry.slots), "number", (4,))
    names = "keyHash phyOffset timeDiff previous"
    yield from _struct(INDEX, path, geometry.entry_at(number), names, (4, 8, 4, 4), pos)
    yield from _struct(INDEX, path, geometry.entry_at(0), "unused-entry-0", (20,))
    yield from _struct(INDEX, path, geometry.entry_at(1) + 12, "timeDiff-of-first", (4,))


def ledger_index_places(root: Path) -> Iterator[Place]:
    for path in sorted(root.glob("dledger-*/index/*"))[:1]:
        names = "magic pos size index term"
        yield from _struct(LEDGER_INDEX, path, 7 * UNIT_BYTES, names, (4, 8, 4, 8, 8))


def small_file_places(root: Path) -> Iterator[Place]:
    path = root / "checkpoint"
    names = "physicMsgTimestamp logicsMsgTimestamp indexMsgTimestamp masterFlushedOffset confirmPhyOffset rest"
    for place in _struct(CHECKPOINT, path, 0, names, (8, 8, 8, 8, 8, 4096 - 40)):
        if place.name.endswith("Timestamp"):
            yield place._replace(name=place.name + EARLIER)
            yield place._replace(name=place.name + LATER)
        else:
            yield place
    for path in sorted((root / "config").glob("topics.json*")):
        data = path.read_bytes()
        yield Place(TABLES, f"{path.name}:syntax", path, 0, 1, 0, len(data))
        yield Place(TABLES, f"{path.name}:value", path, data.index(_NAME) + len(_NAME), 1, 0, len(data))
    for name in ("tally-progress", "tally-queues", "tally-scrub"):
        if (root / name).exists():
            yield Place(PROGRESS, name, root / name, 20, 1, 0, (root / name).stat().st_size)
    for path in sorted(root.glob("dledger-*/c*")):
        yield Place(PROGRESS, f"dledger's {path.name}", path, 0, path.stat().st_size, 0, path.stat().st_size)


def plain_store(root: Path) -> Path:
    """Closed in order by a broker, with extension units, two index files, and a table."""
    changes = {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 404, "scrubBytesPerSecond": 0}
    filled_store(small(root, **changes), COUNT)
    table = JsonTable(Door(), root / "config" / "topics.json")
    for _ in range(2):
        table.save({"topicConfigTable": {"T": {"topicName": "T"}}})
    return root


def ledger_store(root: Path) -> Path:
    """Closed in order, with entries without CRCs of the chain, as RocketMQ's dledger writes them."""
    log, index = root / "dledger-n0" / "data", root / "dledger-n0" / "index"
    log.mkdir(parents=True)
    index.mkdir()
    pos, data, units = 0, b"", b""
    for number in range(COUNT):
        record = _record(number, pos)
        if pos % SEGMENT + ENTRY_HEADER_BYTES + len(record) + 8 > SEGMENT:
            left = SEGMENT - pos % SEGMENT
            data += struct.pack(">ii", FILLER_MAGIC, left) + bytes(left - 8)
            pos += left
            record = _record(number, pos)
        size = ENTRY_HEADER_BYTES + len(record)
        entry = EntryHeader(ENTRY_MAGIC, size, number, 3, pos, 0, 0, 0, len(record))
        data, units, pos = data + entry.encode() + record, units + IndexUnit.of(entry).encode(), pos + size
    data += bytes(-len(data) % SEGMENT)
    for at in range(0, len(data), SEGMENT):
        (log / segment_name(at)).write_bytes(data[at : at + SEGMENT])
    (index / segment_name(0)).write_bytes(units.ljust(4096, b"\0"))
    for name, text in (("checkpoint", f"committedIndex={COUNT - 1}\nendIndex={COUNT - 1}"), ("currterm", "currTerm=3")):
        (root / "dledger-n0" / name).write_text(text)
    dispatch = open_dispatch(Door(), root, log, small(root), ENTRY_HEADER_BYTES)
    dispatch.load()
    dispatch.start(0)
    assert dispatch.run(pos, 1 << 30).stopped is None
    dispatch.write_out()
    dispatch.sync()
    newest_ms = records_of(root)[-1].store_timestamp_ms
    (root / "checkpoint").write_bytes(StoreCheckpoint(newest_ms, newest_ms, newest_ms).encode())
    (root / "config").mkdir()
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_text('{"topicConfigTable":{"T":{"topicName":"T"}}}')
    return root


def _record(number: int, pos: int) -> bytes:
    return Record(
        topic="T",
        queue_id=number % 2,
        queue_offset=number // 2,
        body=b"body %d" % number * 8,
        properties=f"TAGS\x01a{number % 3}\x02KEYS\x01k{number}\x02",
        pos=pos + ENTRY_HEADER_BYTES,
        born_host=PEER,
        store_host=HOST,
        store_timestamp_ms=1_600_000_000_100 + number * 700,
    ).encode()


def places_of(root: Path) -> list[Place]:
    """An instance of each field of each kind of file of the store."""
    parts = (log_places, queue_places, index_places, ledger_index_places, small_file_places)
    return [place for part in parts for place in part(root)]
