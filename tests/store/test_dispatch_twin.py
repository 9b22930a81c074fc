"""The kernel's queues, index and pulls against their slow twins, on random logs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from derived_twin import DerivedTwin, key_hash, write_log
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.store._kernel import Dispatch, Door
from tallystick.store.formats.message import GetStatus, Host
from tallystick.store.formats.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, Record

LOG_SEGMENT, QUEUE_SEGMENT, SLOTS, ENTRIES = 1500, 200, 7, 9
DELAY_MS = [1000, 5000, 10_000]
STATUSES = list(GetStatus)
LONG_TOPIC = "L" * 200  # RocketMQ 5 stores such a record with a second magic

hosts = st.sampled_from([Host("127.0.0.1", 10911), Host("2001:db8::2", 10911)])
tags = st.sampled_from(["", "TagA", "TagB", "Aa", "BB", "标签", "😀"])
keys = st.sampled_from(["", "k1", "k1 k2", " k2  k3 ", "polygenelubricants", "键 k1", "k" * 40])


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Records as a broker stores them: queue offsets count, from 0 or from a later one; times may stand still."""
    time = draw(st.integers(1_600_000_000_000, 1_600_000_100_000))
    offsets = {
        (topic, queue): draw(st.sampled_from([0, 0, 1, 9, 10, 13, 1000]))
        for topic in ("T", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", LONG_TOPIC)
        for queue in (0, 1, 255)
    }
    records = []
    for number in range(draw(st.integers(0, 40))):
        topic, queue = draw(st.sampled_from(sorted(offsets)))
        time += draw(st.sampled_from([0, 0, 1, 999, 1000, 70_000]))
        sys_flag = draw(st.sampled_from([0, 0, 0, 1, 4, 8, 12]))
        table = {"TAGS": draw(tags), "KEYS": draw(keys), "WAIT": "true"}
        if draw(st.booleans()):
            table["UNIQ_KEY"] = f"C0A8{number:028X}"
        if draw(st.booleans()):
            table["DELAY"] = str(draw(st.integers(-1, 5)))
        queued = sys_flag & 0x0C in (0, 8)
        record = Record(
            topic,
            queue,
            draw(st.binary(max_size=200)),
            "".join(f"{name}\x01{value}\x02" for name, value in table.items()),
            sys_flag=sys_flag,
            queue_offset=offsets[topic, queue] if queued else 0,
            born_host=draw(hosts),
            store_host=draw(hosts),
            store_timestamp_ms=time,
            magic=MESSAGE_MAGIC_V2 if topic == LONG_TOPIC else MESSAGE_MAGIC,
        )
        offsets[topic, queue] += queued
        records.append(record)
    return records


def opened(folder: Path, **options: Any) -> Dispatch:
    dispatch = Dispatch(
        Door(),
        str(folder),
        str(folder / "commitlog"),
        log_segment_bytes=LOG_SEGMENT,
        queue_segment_bytes=QUEUE_SEGMENT,
        index_slots=SLOTS,
        index_entries=ENTRIES,
        delay_ms=DELAY_MS,
        **options,
    )
    dispatch.load()
    return dispatch


def queue_files(folder: Path) -> dict[str, bytes]:
    root = folder / "consumequeue"
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def index_files(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted((folder / "index").glob("*"))]


@settings(max_examples=80)
@given(logs(), st.data())
def test_files_are_the_twins_however_often_it_stops_and_starts(records: list[Record], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        placed, end = write_log(folder / "commitlog", records, LOG_SEGMENT)
        twin = DerivedTwin(QUEUE_SEGMENT, SLOTS, ENTRIES, DELAY_MS)
        for pos, record in placed:
            twin.dispatch(pos, record)
        dispatch = opened(folder, max_open_files=data.draw(st.sampled_from([1, 2, 100])))
        while dispatch.position < end:
            result = dispatch.run(end, data.draw(st.integers(1, 3000)), check_crc=data.draw(st.booleans()))
            assert (result.stopped, result.skipped, result.misplaced) == (None, [], 0)
            action = data.draw(st.sampled_from(["go on", "write", "restart", "again from the start"]))
            if action in ("write", "restart"):
                dispatch.write_out()
            if action == "restart":
                reached = dispatch.position
                dispatch = opened(folder)
                dispatch.recover_queues()
                dispatch.correct_min_offsets(0)
                dispatch.start(min(reached, data.draw(st.sampled_from([0, reached]))))
            if action == "again from the start":
                dispatch.start(0)
                dispatch.run(end, 1 << 40)
        dispatch.write_out()
        dispatch.sync()
        dispatch.sync_index()
        assert queue_files(folder) == twin.queue_files()
        assert index_files(folder) == [bytes(file) for file in twin.index.files]


@settings(max_examples=80)
@given(logs(), st.data())
def test_pulls_are_the_twins(records: list[Record], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        placed, end = write_log(folder / "commitlog", records, LOG_SEGMENT)
        twin = DerivedTwin(QUEUE_SEGMENT, SLOTS, ENTRIES, DELAY_MS)
        dispatch = opened(folder)
        for pos, record in placed:
            twin.dispatch(pos, record)
        dispatch.run(end, 1 << 40)
        if data.draw(st.booleans()):
            dispatch.write_out()
        for topic, queue in [*twin.queues, ("absent", 0)]:
            known = twin.queues.get((topic, queue))
            first, last = (known.first, known.end) if known else (0, 0)
            for _ in range(6):
                offset = data.draw(st.integers(first - 2, last + 2))
                most = data.draw(st.sampled_from([1, 2, 5, 32]))
                codes = data.draw(st.none() | st.frozensets(st.sampled_from([0, 2598919, 2598920, 2112, 857175])))
                memory = data.draw(st.sampled_from([0, 500, 1 << 40]))
                limits = data.draw(st.sampled_from([(262144, 32, 65536, 8), (700, 5, 300, 2)]))
                status, after, positions = twin.get(topic, queue, offset, most, codes, end, memory, limits)
                got = dispatch.get(topic.encode(), queue, offset, most, codes, end, memory, limits)
                assert (STATUSES[got[0]], got[1]) == (status, after)
                assert got[4:6] == (len(positions), b"".join(twin.records[pos].encode() for pos in positions))
                assert got[2:4] == (first, last)
                assert dispatch.units(topic.encode(), queue, offset, most) == (
                    known.units[offset - first : offset - first + most] if known and offset >= first else []
                )
        for pos, record in twin.records.items():
            assert dispatch.record_at(pos, end) == record.encode()
            assert dispatch.record_at(pos, pos + record.size - 1) is None
            assert dispatch.record_at(pos + 1, end) is None
        hits = [pos for pos, record in placed if "k1" in record.property_table().get("KEYS", "").split(" ")]
        wanted = [pos for pos in hits if twin.records[pos].topic == "T" and twin.records[pos].sys_flag & 12 != 12]
        found, _, _ = dispatch.lookup(key_hash("T#k1"), 64, 0, 2**62)
        assert found == wanted[::-1]
