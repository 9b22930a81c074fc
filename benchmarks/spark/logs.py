"""A CommitLog to measure with: real records of RocketMQ's layout in whole segments, without a ConsumeQueue.

Bodies of 100 to 1000 bytes or of one size, properties as a Java producer and its broker write them, 8 topics of 4
queues, 5 tags.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

from tallystick.store.formats.message import Host
from tallystick.store.formats.record import BLANK_BYTES, BLANK_MAGIC, Record

BORN_MS = 1_700_000_000_000
TOPICS = tuple(f"BenchmarkTopic{number}" for number in range(8))
_TEMPLATES = 512


def make_log(root: Path, total_bytes: int, segment_bytes: int, body_bytes: int | None = None, seed: int = 1) -> int:
    """Writes `root`/commitlog, full segments of `segment_bytes`; returns the number of records. `body_bytes` None: of
    different sizes."""
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    store_host = Host("10.0.0.1", 10911)
    templates = [_template(chance, store_host, body_bytes) for _ in range(_TEMPLATES)]
    offsets: dict[tuple[int, int], int] = {}
    records = 0
    for start in range(0, total_bytes, segment_bytes):
        segment = bytearray(segment_bytes)
        at = 0
        while True:
            template, topic, queue = templates[chance.randrange(_TEMPLATES)]
            if at + len(template) + BLANK_BYTES > segment_bytes:
                break
            offset = offsets.get((topic, queue), 0)
            offsets[topic, queue] = offset + 1
            segment[at : at + len(template)] = template
            segment[at + 20 : at + 36] = offset.to_bytes(8, "big") + (start + at).to_bytes(8, "big")
            segment[at + 56 : at + 64] = (BORN_MS + records // 10).to_bytes(8, "big")
            at += len(template)
            records += 1
            segment[at : at + BLANK_BYTES] = struct.pack(">ii", segment_bytes - at, BLANK_MAGIC)
        (folder / f"{start:020d}").write_bytes(segment)
    return records


def _template(chance: random.Random, store_host: Host, body_bytes: int | None) -> tuple[bytes, int, int]:
    topic, queue, unique = chance.randrange(len(TOPICS)), chance.randrange(4), chance.randbytes(16).hex().upper()
    properties = (
        f"KEYS\x01order-{chance.randrange(10**9)}\x02UNIQ_KEY\x01{unique}\x02WAIT\x01true\x02"
        f"TAGS\x01Tag{chance.randrange(5)}\x02CLUSTER\x01DefaultCluster\x02"
    )
    record = Record(
        topic=TOPICS[topic],
        queue_id=queue,
        body=chance.randbytes(chance.randrange(100, 1000) if body_bytes is None else body_bytes),
        properties=properties,
        born_timestamp_ms=BORN_MS,
        born_host=Host(f"10.0.1.{chance.randrange(30)}", 40_000),
        store_timestamp_ms=BORN_MS,
        store_host=store_host,
    )
    return record.encode(), topic, queue
