"""Reading a store while an engine writes it: nothing torn, nothing twice, nothing unsettled, nothing touched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from engine_lab import kill, message, opened, small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallystick.spark.columns import SCHEMA
from tallystick.spark.scan import SplitScan
from tallystick.spark.splits import plan
from tallystick.spark.volume import VolumeError, open_volume
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.formats.record import Record


def rows_of(root: Path, split_bytes: int = 1 << 30) -> list[dict[str, Any]]:
    volume = open_volume(root, "n")
    scans = [SplitScan(split, SCHEMA.names, check_crc=True) for split in plan(volume, split_bytes=split_bytes)]
    rows = [row for scan in scans for batch in scan for row in batch.to_pylist()]
    assert [scan.damage for scan in scans if scan.damage] == []
    return rows


def records_of(store: MessageStore, topic: str, queue: int) -> list[Record]:
    """The engine's own reading of a queue."""
    found = []
    for pos, size, _ in store.reads.units(topic, queue, 0, 1000):
        data = store.reads.message_at(pos)
        assert data is not None and len(data) == size
        found.append(Record.decode(data))
    return found


def times_of(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")}


messages = st.lists(
    st.builds(
        message,
        st.binary(max_size=200),
        topic=st.sampled_from(["A", "B%x"]),
        queue=st.integers(0, 1),
        properties=st.sampled_from(["", "TAGS\x01t\x02", "KEYS\x01k1 k2\x02UNIQ_KEY\x01u\x02", "a\x01b"]),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages, st.sampled_from([700, 1500, 1 << 30]))
async def test_the_files_hold_what_the_engine_reads(
    tmp_path_factory: pytest.TempPathFactory, sent: list[Any], split_bytes: int
) -> None:
    root = tmp_path_factory.mktemp("store")
    async with opened(small(root)) as store:
        for item in sent:
            await store.writes.put(item)
        queues = [(topic, queue) for topic in ("A", "B%x") for queue in (0, 1)]
        theirs = {record.pos: record for queue in queues for record in records_of(store, *queue)}
    rows = rows_of(root, split_bytes)
    assert [row["physical_offset"] for row in rows] == sorted(theirs) and len(theirs) == len(sent)
    for row in rows:
        record = theirs[row["physical_offset"]]
        assert (row["topic"], row["queue_id"], row["queue_offset"]) == (
            record.topic,
            record.queue_id,
            record.queue_offset,
        )
        assert (row["body"], row["size"], row["born_timestamp_ms"]) == (
            record.body,
            record.size,
            record.born_timestamp_ms,
        )
        assert dict(row["properties"]) == dict(record.property_table())


async def test_a_growing_store_is_read_up_to_what_is_written(tmp_path: Path) -> None:
    """Each look sees a prefix of what follows, and nothing in the folder changes by it."""
    async with opened(small(tmp_path)) as store:
        seen: list[int] = []
        for round_ in range(12):
            for number in range(9):
                await store.writes.put(message(bytes([number]) * 50 * round_, queue=number % 3))
            now = [row["physical_offset"] for row in rows_of(tmp_path, 1000)]
            assert now[: len(seen)] == seen
            assert len(now) == 9 * (round_ + 1), "what is answered is written, and what is written is seen"
            seen = now
    before = times_of(tmp_path)
    assert [row["physical_offset"] for row in rows_of(tmp_path, 1000)] == seen
    assert times_of(tmp_path) == before


async def test_a_killed_store_is_read_to_its_end(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        for number in range(40):
            await store.writes.put(message(b"x" * number))
        await kill(store)
        assert len(rows_of(tmp_path)) == 40


async def test_a_record_half_written_is_the_end_not_damage(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        for _ in range(5):
            await store.writes.put(message(b"x" * 20, properties="TAGS\x01a\x02"))
    rows = rows_of(tmp_path)
    last = rows[-1]
    end = last["physical_offset"] + last["size"]
    half = Record("T", 0, b"torn" * 30, "TAGS\x01a\x02", pos=end).encode()
    with open(tmp_path / "commitlog" / f"{0:020d}", "r+b") as file:  # noqa: ASYNC230, PTH123
        for keep in (8, 50, len(half) - 1):
            os.pwrite(file.fileno(), half[:keep], end)
            assert rows_of(tmp_path) == rows
        os.pwrite(file.fileno(), half, end)
    assert len(rows_of(tmp_path)) == 6


async def test_a_queue_that_lies_costs_freshness_not_truth(tmp_path: Path) -> None:
    """Units that name no record, or none that was written yet, are not believed."""
    async with opened(small(tmp_path)) as store:
        for _ in range(6):
            await store.writes.put(message(b"x" * 20))
    rows = rows_of(tmp_path)
    (queue,) = (tmp_path / "consumequeue" / "T" / "0").iterdir()
    with queue.open("r+b") as file:
        unit = file.read(20 * 6)[100:120]
        for wrong in (unit[:7] + b"\x01" + unit[8:], unit[:11] + b"\x7f" + unit[12:], b"\xff" * 20):
            file.seek(100)
            file.write(wrong)
            file.flush()
            assert rows_of(tmp_path) == rows
            assert len(rows_of(tmp_path, 150)) == 6
        file.seek(100)
        file.write(unit)
        for number in range(1, 5):  # one that names the middle of a record is no boundary
            file.seek(20 * number)
            right = file.read(20)
            file.seek(20 * number)
            file.write((int.from_bytes(right[:8], "big") + 9).to_bytes(8, "big") + right[8:])
            file.flush()
            assert rows_of(tmp_path, 150) == rows
            file.seek(20 * number)
            file.write(right)


def test_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(VolumeError, match="not a store"):
        open_volume(tmp_path)
    (tmp_path / "commitlog").mkdir()
    assert open_volume(tmp_path).bytes == 0, "a store that was just made is empty"
    for start in (0, 200):
        (tmp_path / "commitlog" / f"{start:020d}").write_bytes(bytes(100))
    assert [file.missing for file in open_volume(tmp_path).files] == ["", "the file is missing", ""]
    (tmp_path / "commitlog" / f"{50:020d}").write_bytes(bytes(100))
    with pytest.raises(VolumeError, match="the file before this one ends at 100"):
        open_volume(tmp_path)
