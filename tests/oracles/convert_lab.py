"""Stores for tests of conversions: random ones, written by a slow twin in both layouts, and what a store contains.

A record names another one by its position. Its twin names it by its number, so that two logs can be compared.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ledger_twin import TwinLedger

from tallystick.store._kernel import Door
from tallystick.store.convert.conversion import Conversion, Options, Summary
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES, GROUP_LOG_TOPIC, EntryKind
from tallystick.store.formats.log_walk import StepKind, walk
from tallystick.store.formats.message import Host
from tallystick.store.formats.record import BLANK_MAGIC, Record
from tallystick.store.formats.segment_files import SegmentFiles, segment_name

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
COMMITTED, ROLLED_BACK, PREPARED = 8, 12, 4
NOW_MS = 1_700_000_000_000
INDEX_BYTES = 32 * 64
SMALL = {"mappedFileSizeConsumeQueue": "320", "maxHashSlotNum": "32", "maxIndexNum": "64"}


class Sent(NamedTuple):
    """A record, and the number of the record that it names; -1: none."""

    record: Record
    names: int = -1


@dataclass
class PlainTwin:
    """The slow twin of a plain log that begins at `first`."""

    segment_bytes: int
    first: int = 0
    bytes: bytearray = field(default_factory=bytearray)

    @property
    def end(self) -> int:
        return self.first + len(self.bytes)

    def append(self, record: Record) -> int:
        """The position of the record."""
        left = self.segment_bytes - self.end % self.segment_bytes
        if record.size + 8 > left:
            self.bytes += struct.pack(">iI", left, BLANK_MAGIC & 0xFFFFFFFF).ljust(left, b"\0")
        pos = self.end
        self.bytes += record._replace(pos=pos).encode()
        return pos

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for at in range(0, len(self.bytes), self.segment_bytes):
            data = bytes(self.bytes[at : at + self.segment_bytes]).ljust(self.segment_bytes, b"\0")
            (folder / segment_name(self.first + at)).write_bytes(data)


def random_log(dice: random.Random, count: int, largest: int = 300) -> list[Sent]:
    """So many records: topics and queues, all kinds of fields, transactions that end at once or late."""
    offsets: dict[tuple[str, int], int] = {}
    open_halves: list[int] = []
    sent: list[Sent] = []

    def host() -> Host:
        port = dice.randrange(65536)
        return Host("2001:db8::1", port) if dice.random() < 0.2 else Host(f"10.0.0.{dice.randrange(256)}", port)

    def add(topic: str, queue: int, flag: int = 0, names: int = -1) -> None:
        key = topic, queue
        # Only records outside of a transaction, and committed ones, have a place in a queue.
        offset = offsets.get(key, 0) if flag in (0, COMMITTED) else 0
        if flag in (0, COMMITTED):
            offsets[key] = offset + 1
        properties = f"KEYS\x01k{len(sent)} shared\x02UNIQ_KEY\x01u{len(sent)}\x02"
        properties += dice.choice(
            ("", "TAGS\x01a\x02", "naïve\x01ünïcode ☂\x02", "x\x01" + "y" * dice.randrange(200) + "\x02")
        )
        record = Record(
            topic, queue, dice.randbytes(dice.randrange(largest)), properties, dice.randrange(-5, 5), flag, offset,
            born_timestamp_ms=NOW_MS - dice.randrange(10**6), born_host=host(), store_timestamp_ms=NOW_MS + len(sent),
            store_host=host(), reconsume_times=dice.randrange(3),
        )  # fmt: skip
        sent.append(Sent(record, names))

    while len(sent) < count:
        what = dice.random()
        if what < 0.15:
            add(HALF, 0)
            open_halves.append(len(sent) - 1)
        elif what < 0.3 and open_halves:
            half = open_halves.pop(dice.randrange(len(open_halves)))
            add(f"T{dice.randrange(3)}", dice.randrange(2), dice.choice((COMMITTED, ROLLED_BACK)), half)
        elif what < 0.33:
            add("Old", 0, PREPARED)
            open_halves.append(len(sent) - 1)
        else:
            add(f"T{dice.randrange(3)}", dice.randrange(4))
    return sent


def plain_store(root: Path, sent: list[Sent], segment_bytes: int, first: int = 0) -> list[int]:
    """Writes a plain store with only a log; the positions of its records."""
    twin, places = PlainTwin(segment_bytes, first), list[int]()
    for record, names in sent:
        named = places[names] if names >= 0 else 0
        places.append(twin.append(record._replace(prepared_transaction_offset=named)))
    twin.write(root / "commitlog")
    return places


def ledger_store(root: Path, sent: list[Sent], segment_bytes: int, *, crc: bool = True) -> None:
    """Writes a store in dledger's layout with only a log. Without `crc`, as dledger writes it."""
    twin = TwinLedger(segment_bytes)
    for record, names in sent:
        named = twin.entries[names][0].pos + ENTRY_HEADER_BYTES if names >= 0 else 0
        kind = EntryKind.NO_OP if record.topic == GROUP_LOG_TOPIC else EntryKind.MESSAGE
        twin.append([record._replace(prepared_transaction_offset=named)], 1, kind, crc=crc)
    folder = root / "dledger-n0"
    for part, data, size in (("data", twin.data(), segment_bytes), ("index", twin.index(), INDEX_BYTES)):
        (folder / part).mkdir(parents=True)
        for at in range(0, len(data), size):
            (folder / part / segment_name(at)).write_bytes(data[at : at + size].ljust(size, b"\0"))


def content_of(root: Path, *, own: bool = False) -> list[Sent]:
    """What a store contains, in order, without positions. `own`: also entries of a group that are no messages."""
    ledgers = sorted(root.glob("dledger-*/data"))
    folder, header = (ledgers[0], ENTRY_HEADER_BYTES) if ledgers else (root / "commitlog", 0)
    numbers: dict[int, int] = {}
    found: list[Sent] = []
    with SegmentFiles(folder) as log:
        for step in walk(log, entry_header_bytes=header):
            if step.kind is StepKind.RECORD:
                record = step.record
                assert record is not None
                if step.entry is not None and step.entry.channel and not own:
                    continue
                numbers[record.pos] = len(found)
                names = record.prepared_transaction_offset
                number = numbers.get(names, -1) if record.sys_flag & COMMITTED else -1
                kept = record._replace(pos=0, prepared_transaction_offset=0 if number >= 0 else names)
                found.append(Sent(kept, number))
            else:
                assert step.kind in (StepKind.FILLER, StepKind.END), step
    return found


def without_places(sent: list[Sent]) -> list[Sent]:
    return [Sent(Record.decode(record.encode())._replace(pos=0), names) for record, names in sent]


def convert(source: Path, target: Path, layout: str, door: Door | None = None, **options: Any) -> Summary:
    """A conversion with small files, which has something to do."""
    chosen: dict[str, Any] = {
        "index_segment_bytes": INDEX_BYTES,
        "overrides": SMALL,
        "turn_bytes": 2000,
        "save_bytes": 6000,
    }
    summary = Conversion(source, target, Options(layout=layout, **(chosen | options)), door or Door()).run()
    assert summary is not None
    return summary
