"""A log to measure with: real records in whole segments, in the plain layout or in dledger's.

Bodies of 100 to 1000 bytes or of one size, properties as a Java producer and its broker write them, 8 topics of 4
queues (or more, see `topics_of`), 5 tags. The records of all queues are mixed.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

from tallystick.store._kernel import Door
from tallystick.store.engine.recovery import open_dispatch
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES, FILLER_MAGIC, EntryHeader, IndexUnit
from tallystick.store.formats.message import Host
from tallystick.store.formats.record import BLANK_MAGIC, Record
from tallystick.store.settings import StoreSettings

BORN_MS = 1_700_000_000_000
QUEUES_A_TOPIC = 4
TOPICS = tuple(f"BenchmarkTopic{number}" for number in range(8))
_TEMPLATES = 512
_TEMPLATES_A_QUEUE = 2
_SPARE_BYTES = 8
"""Every segment ends with a filler, which has this many bytes at least."""


def topics_of(queues: int) -> tuple[str, ...]:
    """Topics that have together that many queues, a multiple of `QUEUES_A_TOPIC`."""
    return tuple(f"BenchmarkTopic{number}" for number in range(queues // QUEUES_A_TOPIC))


def make_log(
    root: Path,
    total_bytes: int,
    segment_bytes: int,
    body_bytes: int | None = None,
    seed: int = 1,
    *,
    topics: tuple[str, ...] = TOPICS,
    ledger: bool = False,
) -> int:
    """Writes a log of full segments of `segment_bytes`; returns the number of records. It is in `root`/commitlog, or in
    `root`/dledger-n0/data with the index of its entries beside it. `body_bytes` None: of different sizes."""
    header_bytes = ENTRY_HEADER_BYTES if ledger else 0
    folder = _folder(root, ledger)
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    templates = _templates(chance, topics, body_bytes)
    offsets: dict[tuple[str, int], int] = {}
    units = bytearray()
    records = 0
    for start in range(0, total_bytes, segment_bytes):
        segment = bytearray(segment_bytes)
        at = 0
        while True:
            template, topic, queue = templates[chance.randrange(len(templates))]
            size = header_bytes + len(template)
            if at + size + _SPARE_BYTES > segment_bytes:
                break
            offset = offsets.get((topic, queue), 0)
            offsets[topic, queue] = offset + 1
            if ledger:
                entry = EntryHeader(1, size, records, 1, start + at, 0, 0, 0, len(template))
                segment[at : at + header_bytes] = entry.encode()
                units += IndexUnit.of(entry).encode()
            at += header_bytes
            segment[at : at + len(template)] = template
            segment[at + 20 : at + 36] = offset.to_bytes(8, "big") + (start + at).to_bytes(8, "big")
            segment[at + 56 : at + 64] = (BORN_MS + records // 10).to_bytes(8, "big")
            at += len(template)
            records += 1
        left = segment_bytes - at
        segment[at : at + 8] = struct.pack(">ii", *((FILLER_MAGIC, left) if ledger else (left, BLANK_MAGIC)))
        (folder / f"{start:020d}").write_bytes(segment)
    if ledger:
        (folder.parent / "index").mkdir()
        (folder.parent / "index" / f"{0:020d}").write_bytes(units)
    return records


def derive(root: Path, segment_bytes: int, *, ledger: bool = False) -> None:
    """Creates ConsumeQueues and index of the log as a broker does, and a checkpoint as if it had stopped in order."""
    settings = StoreSettings(storePathRootDir=str(root), mappedFileSizeCommitLog=segment_bytes)
    header_bytes = ENTRY_HEADER_BYTES if ledger else 0
    dispatch = open_dispatch(Door(), root, _folder(root, ledger), settings, header_bytes)
    dispatch.load()
    dispatch.start(0)
    dispatch.run(1 << 60, 1 << 40)
    dispatch.write_out()
    dispatch.sync()


def _folder(root: Path, ledger: bool) -> Path:
    return root / "dledger-n0" / "data" if ledger else root / "commitlog"


def _templates(chance: random.Random, topics: tuple[str, ...], body_bytes: int | None) -> list[tuple[bytes, str, int]]:
    count = max(_TEMPLATES, _TEMPLATES_A_QUEUE * len(topics) * QUEUES_A_TOPIC)
    queues = [(topic, queue) for topic in topics for queue in range(QUEUES_A_TOPIC)]
    return [_template(chance, *queues[number % len(queues)], body_bytes) for number in range(count)]


def _template(chance: random.Random, topic: str, queue: int, body_bytes: int | None) -> tuple[bytes, str, int]:
    unique = chance.randbytes(16).hex().upper()
    properties = (
        f"KEYS\x01order-{chance.randrange(10**9)}\x02UNIQ_KEY\x01{unique}\x02WAIT\x01true\x02"
        f"TAGS\x01Tag{chance.randrange(5)}\x02CLUSTER\x01DefaultCluster\x02"
    )
    record = Record(
        topic=topic,
        queue_id=queue,
        body=chance.randbytes(chance.randrange(100, 1000) if body_bytes is None else body_bytes),
        properties=properties,
        born_timestamp_ms=BORN_MS,
        born_host=Host(f"10.0.1.{chance.randrange(30)}", 40_000),
        store_timestamp_ms=BORN_MS,
        store_host=Host("10.0.0.1", 10911),
    )
    return record.encode(), topic, queue
