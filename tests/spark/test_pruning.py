"""What a filter leaves out of a log: never a record that it wants, and most of the bytes where it is selective."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from aged_log import dispatch_log, write_log
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from page_cache import dropped, resident

from tallystick.spark import pruning
from tallystick.spark.pruning import Pruned, difference, intersection, pruned, union
from tallystick.spark.scan import SplitScan, Wanted
from tallystick.spark.splits import splits_of, tasks_of
from tallystick.spark.volume import Volume, open_volume

Golden = Callable[[str], Path]
NUMBERS = ("queue_id", "queue_offset", "physical_offset", "store_timestamp_ms")
COLUMNS = ("topic", *NUMBERS, "unique_key", "keys", "tags")
BEGIN_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
SIZES = {"mappedFileSizeConsumeQueue": 20 * 1000, "maxHashSlotNum": 5000, "maxIndexNum": 20_000}


def rows(volume: Volume, wanted: Wanted, found: Pruned) -> list[dict[str, Any]]:
    splits = splits_of(volume, found.ranges, 1 << 20)
    scans = [SplitScan(split, COLUMNS, wanted) for task in tasks_of(splits, 1 << 20) for split in task.splits]
    read = [row for scan in scans for batch in scan for row in batch.to_pylist()]
    assert [damage for scan in scans for damage in scan.damage] == [], "each range is made of whole records"
    return read


def whole(volume: Volume) -> Pruned:
    return Pruned(((volume.begin, volume.bound),))


def same_rows(volume: Volume, wanted: Wanted) -> Pruned:
    """A pruned read has the rows of a whole one. Returns what it read."""
    found = pruned(volume, wanted)
    assert rows(volume, wanted, found) == rows(volume, wanted, whole(volume))
    return found


@pytest.mark.parametrize("name", ["clean", "killed", "edge", "trimmed", "cqext", "lost-queues", "dledger-n1"])
def test_rows_of_stores_that_rocketmq_wrote(name: str, golden: Golden) -> None:
    volume = open_volume(golden(name), "n0")
    every = rows(volume, Wanted(), whole(volume))
    by: set[str] = set()
    for row in every[:: max(1, len(every) // 10)]:
        topic, queue, offset, time = (row[key] for key in ("topic", "queue_id", "queue_offset", "store_timestamp_ms"))
        for wanted in (
            Wanted(topics=(topic,)),
            Wanted(topics=(topic,), queues=(queue,), queue_offsets=(offset, offset + 3)),
            Wanted(topics=(topic, "no-such-topic"), queue_offsets=(offset, offset)),
            Wanted(store_times_ms=(time - 5, time + 5)),
            Wanted(keys=(row["unique_key"] or "none", *row["keys"])),
            Wanted(topics=(topic,), keys=(row["unique_key"] or "none",), store_times_ms=(time, time)),
        ):
            by |= set(same_rows(volume, wanted).by)
        if row["tags"]:  # the scanner leaves tags to its caller
            tagged = Wanted(topics=(topic,), tags=(row["tags"],))
            assert row in rows(volume, tagged, pruned(volume, tagged))
    assert by >= ({"store times"} if name == "lost-queues" else {"store times", "queues"})


# -- amounts -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Volume:
    """48 MiB of 24 hours: 48 000 messages of 1 KiB in 32 queues."""
    root = tmp_path_factory.mktemp("pruning") / "store"
    count = 48_000
    step = 24 * HOUR_MS // count
    messages = ((f"T{number % 4}", number // 4 % 8, BEGIN_MS + number * step) for number in range(count))
    write_log(root, messages, segment_bytes=16 << 20, body=bytes(900))
    dispatch_log(root, mappedFileSizeCommitLog=16 << 20, **SIZES)
    return open_volume(root)


def test_the_last_hour_of_a_day(day: Volume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "_EDGE_BYTES", 1 << 17)  # of 1 MiB in a store of gigabytes
    end = BEGIN_MS + 24 * HOUR_MS
    found = same_rows(day, Wanted(store_times_ms=(end - HOUR_MS, end)))
    assert found.by == ("store times",)
    assert found.bytes <= 0.06 * day.bytes


def test_a_hundred_offsets_of_a_queue(day: Volume) -> None:
    found = same_rows(day, Wanted(topics=("T1",), queues=(3,), queue_offsets=(700, 799)))
    assert found.by == ("queues",)
    assert len(found.ranges) == 100 and found.bytes < 130_000


def test_a_key(day: Volume) -> None:
    found = same_rows(day, Wanted(keys=("k31234",)))
    assert found.by == ("keys",)
    assert found.bytes < 10_000


def test_a_search_brings_few_pages_of_index_and_queues_into_memory(disk_path: Path) -> None:
    """The system reads megabytes ahead of a look into a map, unless it is told that looks are at random."""
    messages = (("T", 0, BEGIN_MS + number) for number in range(20_000))
    write_log(disk_path, messages, segment_bytes=4 << 20)
    usual = {"mappedFileSizeConsumeQueue": 6_000_000, "maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}
    dispatch_log(disk_path, mappedFileSizeCommitLog=4 << 20, **usual)
    (index,) = (disk_path / "index").iterdir()
    (queue,) = (disk_path / "consumequeue" / "T" / "0").iterdir()
    if not (dropped(index) and dropped(queue)):
        pytest.skip("the file system keeps its pages in memory")
    volume = open_volume(disk_path)
    assert 0 < pruned(volume, Wanted(keys=("k1234",))).bytes < 1000
    assert sum(resident(index)) <= 100
    assert 0 < pruned(volume, Wanted(topics=("T",), queue_offsets=(9000, 9001))).bytes < 1000
    assert sum(resident(queue)) <= 50


def test_many_small_ranges_are_few_tasks(day: Volume) -> None:
    found = pruned(day, Wanted(topics=("T1",), queues=(3,)))
    splits = splits_of(day, found.ranges, 1 << 20)
    assert len(splits) > 1000
    assert len(tasks_of(splits, 1 << 20)) <= 3


def test_most_of_a_log_is_read_in_its_order(day: Volume) -> None:
    assert pruned(day, Wanted(topics=("T0", "T1", "T2"))).by == ()


# -- files that are not whole ------------------------------------------------------------------------------------------


def small_store(root: Path, end: int | None = None) -> list[Any]:
    messages = [("T", number % 3, BEGIN_MS + number * 1000) for number in range(900)]
    records = write_log(root, messages, segment_bytes=1 << 16, body=bytes(200))
    dispatch_log(
        root,
        end if end is None else records[end].pos,
        mappedFileSizeCommitLog=1 << 16,
        mappedFileSizeConsumeQueue=20 * 40,
        maxHashSlotNum=50,
        maxIndexNum=200,
    )
    return records


QUEUE = Wanted(topics=("T",), queues=(1,), queue_offsets=(100, 120))
KEY = Wanted(keys=("k400",))


def test_records_that_no_queue_or_index_has_yet_are_read(tmp_path: Path) -> None:
    records = small_store(tmp_path, 600)
    volume = open_volume(tmp_path)
    assert volume.bound == records[-1].pos + len(records[-1].encode())
    for wanted in (Wanted(topics=("T",), queues=(1,), queue_offsets=(250, 260)), Wanted(keys=("k700",))):
        assert rows(volume, wanted, same_rows(volume, wanted)), "they are behind the end of queues and index"


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_missing_file_of_a_queue(tmp_path: Path, which: int) -> None:
    small_store(tmp_path)
    sorted((tmp_path / "consumequeue/T/1").iterdir())[which].unlink()
    volume = open_volume(tmp_path)
    for offsets in ((0, 20), (50, 60), (100, 120)):
        same_rows(volume, Wanted(topics=("T",), queues=(1,), queue_offsets=offsets))


def test_a_missing_queue_and_a_missing_topic(tmp_path: Path) -> None:
    small_store(tmp_path)
    for path in sorted((tmp_path / "consumequeue/T/1").iterdir()):
        path.unlink()
    same_rows(open_volume(tmp_path), QUEUE)
    (tmp_path / "consumequeue/T/1").rmdir()
    same_rows(open_volume(tmp_path), QUEUE)


@pytest.mark.parametrize("which", [0, 1, 2, -1])
def test_a_missing_file_of_the_index(tmp_path: Path, which: int) -> None:
    small_store(tmp_path)
    files = sorted((tmp_path / "index").iterdir())
    assert len(files) == 5
    files[which].unlink()
    volume = open_volume(tmp_path)
    for number in range(50, 900, 190):
        assert rows(volume, Wanted(keys=(f"k{number}",)), same_rows(volume, Wanted(keys=(f"k{number}",))))


def test_a_chain_that_does_not_end(tmp_path: Path) -> None:
    small_store(tmp_path)
    for path in (tmp_path / "index").iterdir():
        data = bytearray(path.read_bytes())
        for at in range(40 + 4 * 50 + 20, len(data), 20):
            data[at + 16 : at + 20] = (150).to_bytes(4, "big")
        path.write_bytes(data)
    assert same_rows(open_volume(tmp_path), KEY).by == ()


# -- clocks ------------------------------------------------------------------------------------------------------------


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(st.integers(0, 20_000), st.integers(-pruning.CLOCK_SLACK_MS // 3, 0)), min_size=200, max_size=200
    ),
    at=st.integers(0, 199),
    width=st.integers(0, 400_000),
)
def test_a_clock_that_is_set_back_a_little(
    steps: list[int], at: int, width: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest time so far is never more than the slack ahead."""
    monkeypatch.setattr(pruning, "_EDGE_BYTES", 256)
    times, newest = [BEGIN_MS], BEGIN_MS
    for step in steps[1:]:
        newest = max(newest, times[-1])
        times.append(max(times[-1] + step, newest - pruning.CLOCK_SLACK_MS))
    root = tmp_path_factory.mktemp("clock")
    write_log(root, (("T", 0, time) for time in times), segment_bytes=4096)
    dispatch_log(root)
    same_rows(open_volume(root), Wanted(store_times_ms=(times[at], times[at] + width)))


def test_a_clock_that_stays_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten hours, then two hours back, and five hours on: each hour is read whole."""
    monkeypatch.setattr(pruning, "_EDGE_BYTES", 256)
    minutes = [*range(600), *range(480, 780)]
    write_log(tmp_path, (("T", 0, BEGIN_MS + minute * 60_000) for minute in minutes), segment_bytes=1 << 14)
    dispatch_log(tmp_path, mappedFileSizeCommitLog=1 << 14)
    volume = open_volume(tmp_path)
    least = volume.bytes
    for hour in range(13):
        begin = BEGIN_MS + hour * HOUR_MS
        least = min(least, same_rows(volume, Wanted(store_times_ms=(begin, begin + HOUR_MS - 1))).bytes)
    assert least < volume.bytes / 4


# -- ranges ------------------------------------------------------------------------------------------------------------

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def bytes_of(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {each for begin, end in ranges for each in range(begin, end)}


@given(RANGES, RANGES, st.integers(0, 5))
def test_ranges_are_sets_of_bytes(one: list[tuple[int, int]], other: list[tuple[int, int]], gap: int) -> None:
    first, second = union(one), union(other)
    assert bytes_of(first) == bytes_of(one)
    assert bytes_of(intersection(first, second)) == bytes_of(one) & bytes_of(other)
    assert bytes_of(difference(first, second)) == bytes_of(one) - bytes_of(other)
    near = union(one, gap)
    assert bytes_of(near) >= bytes_of(one)
    assert all(low[1] + gap < high[0] for low, high in itertools.pairwise(near))
