"""A closed store whose index has many small files, with times that tell in them."""

from __future__ import annotations

from pathlib import Path

from engine_lab import HOST, PEER, small

from tallystick.store._kernel import Door
from tallystick.store.engine.recovery import open_dispatch
from tallystick.store.formats.message import TRANSACTION_ROLLBACK
from tallystick.store.formats.queue_format import IndexGeometry
from tallystick.store.formats.record import Record
from tallystick.store.formats.segment_files import segment_name

GEOMETRY = IndexGeometry(7, 40)
SEGMENT = 4096


def record_number(n: int, pos: int) -> Record:
    """Stored some 700 ms after the previous one, sometimes after a long pause, in one of five queues."""
    keys = {0: "", 1: f"UNIQ_KEY\x01u{n}\x02", 2: f"KEYS\x01k{n} shared\x02UNIQ_KEY\x01u{n}\x02"}[n % 3]
    return Record(
        topic="T",
        queue_id=n % 5,
        queue_offset=n // 5,
        body=b"x" * (n % 50),
        properties=keys,
        sys_flag=TRANSACTION_ROLLBACK if n % 20 == 4 else 0,
        pos=pos,
        born_host=PEER,
        store_host=HOST,
        store_timestamp_ms=1_600_000_000_000 + n * 700 + n // 30 * 100_000,
    )


def made_store(root: Path, count: int = 150) -> list[Path]:
    """A closed store whose index has several files. Returns these."""
    log, pos, data = root / "commitlog", 0, b""
    log.mkdir(parents=True)
    for n in range(count):
        record = record_number(n, pos).encode()
        if pos % SEGMENT + len(record) + 8 > SEGMENT:
            left = SEGMENT - pos % SEGMENT
            data += left.to_bytes(4, "big") + b"\xcb\xd4\x31\x94" + bytes(left - 8)
            pos += left
            record = record_number(n, pos).encode()
        data += record
        pos += len(record)
    data += bytes(-len(data) % SEGMENT)
    for at in range(0, len(data), SEGMENT):
        (log / segment_name(at)).write_bytes(data[at : at + SEGMENT])
    chosen = small(root, maxHashSlotNum=GEOMETRY.slots, maxIndexNum=GEOMETRY.entries)
    dispatch = open_dispatch(Door(), root, log, chosen, 0)
    dispatch.load()
    dispatch.start(0)
    assert dispatch.run(pos, 1 << 30).stopped is None
    dispatch.write_out()
    dispatch.sync()
    return sorted((root / "index").iterdir())
