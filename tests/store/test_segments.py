"""Segment files: listed with their faults, made whole, warmed without a byte changed."""

import errno
import os
from pathlib import Path

import pytest

from tallystick.store._kernel import Door
from tallystick.store.engine import segments
from tallystick.store.engine.segments import SegmentError, WarmSegment

SIZE = 64 * 1024


def make(folder, *starts, size=SIZE):
    for start in starts:
        (folder / f"{start:020d}").write_bytes(b"\7" * size)


def test_a_listing(tmp_path):
    make(tmp_path, 2 * SIZE, 3 * SIZE)
    os.utime(tmp_path / f"{2 * SIZE:020d}", ns=(0, 1_500_000_000_123_456_789))
    (tmp_path / "notes").write_text("no segment")
    (tmp_path / ("1" * 20)).mkdir()
    first, second = segments.list_segments(tmp_path, SIZE)
    assert (first.start, first.end, first.modified_ms) == (2 * SIZE, 3 * SIZE, 1_500_000_000_123)
    assert second.path == tmp_path / f"{3 * SIZE:020d}"
    assert segments.list_segments(tmp_path / "nowhere", SIZE) == []


def test_wrong_lengths_and_gaps_are_named(tmp_path):
    make(tmp_path, 0, 2 * SIZE)
    with pytest.raises(SegmentError, match="missing") as caught:
        segments.list_segments(tmp_path, SIZE)
    assert caught.value.path == tmp_path / f"{2 * SIZE:020d}"
    make(tmp_path, SIZE, size=5)
    with pytest.raises(SegmentError, match="has 5 bytes instead of 65536"):
        segments.list_segments(tmp_path, SIZE)


def test_the_last_one_may_be_in_the_making(tmp_path):
    make(tmp_path, 0)
    make(tmp_path, SIZE, size=100)
    assert [segment.start for segment in segments.list_segments(tmp_path, SIZE)] == [0]


def test_a_segment_is_made_whole_and_durable(tmp_path):
    door = Door(record=True)
    assert segments.prepare(door, tmp_path, SIZE, SIZE)
    door.crash(1, keep=0.0)
    path = tmp_path / f"{SIZE:020d}"
    assert path.stat().st_size == SIZE
    assert not segments.prepare(door, tmp_path, SIZE, SIZE)


def test_a_full_disk_is_reported_and_the_write_retried(tmp_path):
    door = Door()
    door.fail("allocate", "", errno.ENOSPC, times=1)
    with pytest.raises(OSError) as caught:
        segments.prepare(door, tmp_path, 0, SIZE)
    assert caught.value.errno == errno.ENOSPC
    assert segments.prepare(door, tmp_path, 0, SIZE)


def test_an_existing_one_keeps_its_bytes(tmp_path):
    make(tmp_path, 0, size=100)
    assert segments.prepare(Door(), tmp_path, 0, SIZE)
    assert (tmp_path / f"{0:020d}").read_bytes() == (b"\7" * 100).ljust(SIZE, b"\0")


def test_deleted_is_deleted(tmp_path):
    door = Door(record=True)
    make(tmp_path, 0, SIZE)
    segments.delete(door, segments.list_segments(tmp_path, SIZE)[0])
    door.crash(1, keep=0.0)
    assert [segment.start for segment in segments.list_segments(tmp_path, SIZE)] == [SIZE]


@pytest.mark.parametrize("sync_pages", [0, 4])
def test_warming_changes_no_byte(tmp_path, sync_pages):
    path = tmp_path / f"{0:020d}"
    content = os.urandom(SIZE)
    path.write_bytes(content)
    door = Door()
    warm = WarmSegment(path)
    warm.warm(door, sync_pages=sync_pages)
    assert path.read_bytes() == content
    assert door.counts()["sync"] == (4 if sync_pages else 0)
    warm.close()
    warm.close()


def test_an_older_system_warms_by_reading(tmp_path, monkeypatch):
    make(tmp_path, 0)
    monkeypatch.setattr(segments, "_MADV_POPULATE_WRITE", 9999)
    warm = WarmSegment(tmp_path / f"{0:020d}")
    warm.warm(Door())
    warm.close()


def test_locking_in_memory_where_it_is_allowed(tmp_path):
    make(tmp_path, 0)
    warm = WarmSegment(tmp_path / f"{0:020d}")
    if warm.lock():
        with Path("/proc/self/status").open() as status:
            locked = next(int(line.split()[1]) for line in status if line.startswith("VmLck"))
        assert locked >= SIZE // 1024
        warm.unlock()
    warm.close()


def test_a_missing_permission_is_reported_and_survived(tmp_path, monkeypatch, caplog):
    make(tmp_path, 0)
    warm = WarmSegment(tmp_path / f"{0:020d}")
    monkeypatch.setattr(warm, "_call", lambda function: False)
    assert not warm.lock()
    assert "not locked in memory" in caplog.text
    warm.close()
