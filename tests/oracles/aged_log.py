"""A log whose records have any store times: tests of ages need no clock, and wait for nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from engine_lab import small

from tallystick.store._kernel import Door
from tallystick.store.engine.recovery import open_dispatch
from tallystick.store.formats.message import Host
from tallystick.store.formats.record import Record, encode_filler

HOST = Host("127.0.0.1", 10911)


def write_log(
    root: Path, messages: Iterable[tuple[str, int, int]], *, segment_bytes: int = 1 << 20, body: bytes = b"hello"
) -> list[Record]:
    """Writes the segments of a log with a record for each (topic, queue, store time in ms); returns the records.

    Each has its position in the list as its body's end, and a key with the same number.
    """
    records: list[Record] = []
    ends: dict[tuple[str, int], int] = {}
    data = bytearray()
    for number, (topic, queue_id, time_ms) in enumerate(messages):
        offset = ends.get((topic, queue_id), 0)
        ends[topic, queue_id] = offset + 1
        record = Record(
            topic,
            queue_id,
            body + b" %d" % number,
            f"KEYS\x01k{number}\x02",
            queue_offset=offset,
            born_timestamp_ms=time_ms,
            born_host=HOST,
            store_timestamp_ms=time_ms,
            store_host=HOST,
        )
        left = segment_bytes - len(data) % segment_bytes
        size = len(record.encode())
        if left < size + 8:
            data += encode_filler(left).ljust(left, b"\0")
        record = record._replace(pos=len(data))
        data += record.encode()
        records.append(record)
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    for start in range(0, max(1, len(data)), segment_bytes):
        part = bytes(data[start : start + segment_bytes]).ljust(segment_bytes, b"\0")
        (folder / f"{start:020}").write_bytes(part)
    return records


def dispatch_log(root: Path, end: int | None = None, **settings: int) -> None:
    """Derives queues and index of a plain log up to position `end`, or all of it, as a broker that stops in order."""
    chosen = small(root, **settings)
    dispatch = open_dispatch(Door(), root, root / "commitlog", chosen, 0)
    dispatch.load()
    dispatch.start(0)
    dispatch.run(end if end is not None else 1 << 60, 1 << 40)
    dispatch.write_out()
    dispatch.sync()
