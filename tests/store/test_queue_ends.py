"""Where ConsumeQueues end, read beside a broker: right for sparse and dense files, and without a trace in the cache."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_cache import dropped, resident

from tallystick.store._kernel import QueueFile, queue_ends
from tallystick.store.formats.queue_format import BLANK_UNIT_SIZE, UNIT
from tallystick.store.formats.segment_files import SegmentFiles, data_ranges, segment_name
from tallystick.store.verify.queues import queue_folders

FILE_UNITS = 5000
PAGE = mmap.PAGESIZE


def units_of(count: int, code: int = 7) -> bytes:
    return b"".join(UNIT.pack(100 * number, 100, code) for number in range(count))


def write_file(folder: Path, units: bytes, *, start: int = 0, dense: bool = False) -> Path:
    """A file of full length: the rest is a hole, or with `dense` blocks of zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / segment_name(start)
    with path.open("wb") as file:
        file.truncate(FILE_UNITS * UNIT.size)
        file.write(units.ljust(FILE_UNITS * UNIT.size, b"\0") if dense else units)
    return path


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("code", [7, 0])  # with 0, a unit's last bytes are zeros, also where they are alone in a page
@pytest.mark.parametrize("count", [0, 1, 204, 205, 409, 410, 1024, 4999, FILE_UNITS])
def test_the_last_unit_is_found(tmp_path: Path, count: int, code: int, dense: bool) -> None:
    path = write_file(tmp_path, units_of(count, code), dense=dense)
    with closing(QueueFile(path)) as units:
        assert units.written == count
        assert units.regular or dense
        if count:
            assert units.unit(count - 1) == (100 * (count - 1), 100, code)
            assert units.read(0, count) == units_of(count, code)
        for pos in (-1, 0, 1, 100 * count - 100, 100 * count):
            assert units.first_at(pos) == min(max(-(-pos // 100), 0), count)
        with pytest.raises(IndexError):
            units.unit(FILE_UNITS)
    with pytest.raises(ValueError, match="closed"):
        units.unit(0)


def test_a_hole_before_the_last_unit_is_seen(tmp_path: Path) -> None:
    path = write_file(tmp_path, units_of(200))
    with path.open("r+b") as file:
        file.seek(1000 * UNIT.size)
        file.write(UNIT.pack(5, 50, 0))
    assert len(list(data_ranges(path, 0))) == 2, "the file system of this test reports holes"
    with closing(QueueFile(path)) as units:
        assert units.written == 1001 and not units.regular
        assert units.unit(500) == (0, 0, 0)


def test_what_is_no_unit_behind_the_last_one_is_seen(tmp_path: Path) -> None:
    path = write_file(tmp_path, units_of(10) + UNIT.pack(77, -1, 0))
    with closing(QueueFile(path)) as units:
        assert units.written == 10 and not units.regular


@given(st.lists(st.integers(0, 3), max_size=40), st.booleans())
def test_any_block_of_zeros_ends_with_a_unit_before_one_that_is_not_written(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[int], dense: bool
) -> None:
    """Damaged files: whatever was lost, the result is an end of units."""
    folder = tmp_path_factory.mktemp("file")
    units = b"".join(bytes(100 * UNIT.size) if piece == 0 else units_of(piece * 30) for piece in pieces)
    path = write_file(folder, units[: FILE_UNITS * UNIT.size], dense=dense)
    with closing(QueueFile(path)) as found:
        end = found.written
        assert end == 0 or found.unit(end - 1)[1] > 0
        assert end == FILE_UNITS or found.unit(end)[1] <= 0
        if found.regular:
            assert all(found.unit(number)[1] > 0 for number in range(end)) or not dense


def ends_by_reading(root: Path) -> dict[tuple[str, int], tuple[int, int, int, int]]:
    """First and end offset, position and size of the last unit, by reading all files whole."""
    found = {}
    for topic, queue, folder in queue_folders(root):
        with SegmentFiles(folder) as files:
            first = end = files.first // UNIT.size
            last = (-1, 0)
            for start in files.starts:
                units = [unit for unit in UNIT.iter_unpack(files.path(start).read_bytes()) if unit[1] > 0]
                if units:
                    end = start // UNIT.size + len(units)
                    last = (-1, 0) if units[-1][:2] == (0, BLANK_UNIT_SIZE) else units[-1][:2]
            found[topic, queue] = (first, end, *last)
    return found


@pytest.mark.parametrize("name", ["clean", "killed", "edge", "trimmed", "cqext", "dledger-n1"])
def test_queues_that_rocketmq_wrote(golden: Callable[[str], Path], name: str) -> None:
    root = golden(name)
    ends = queue_ends(root / "consumequeue")
    found = {(each.topic, each.queue): (each.first, each.end, each.pos, each.size) for each in ends}
    assert found == ends_by_reading(root) and found
    assert ends.named_end == max(pos + size for _, _, pos, size in found.values())
    assert all(each.regular for each in ends if each.end > each.first) or name == "killed"


def test_a_unit_behind_the_log_is_replaced_by_one_before_its_end(tmp_path: Path) -> None:
    queue = tmp_path / "T" / "0"
    write_file(queue, units_of(FILE_UNITS))
    write_file(queue, UNIT.pack(600_000, 100, 0) + UNIT.pack(900_000, 100, 0), start=FILE_UNITS * UNIT.size)
    (tmp_path / "T" / "not-a-queue").mkdir()
    for below, pos in ((10**9, 900_000), (900_100, 900_000), (900_099, 900_000), (900_000, 600_000), (1_050, 1_000)):
        ends = queue_ends(tmp_path, below)
        assert [(each.topic, each.queue, each.end, each.pos, each.size) for each in ends] == [
            ("T", 0, FILE_UNITS + 2, pos, 100)
        ], below
        assert ends.named_end == 900_100
    missing = queue_ends(tmp_path / "missing")
    assert (list(missing), missing.named_end) == ([], -1)


def test_a_queue_with_other_things_than_its_files_is_not_regular(tmp_path: Path) -> None:
    for queue in range(4):
        write_file(tmp_path / "T" / str(queue), units_of(3))
    (tmp_path / "T" / "1" / "note").write_text("x")
    write_file(tmp_path / "T" / "2", units_of(3), start=2 * FILE_UNITS * UNIT.size)
    with (tmp_path / "T" / "3" / segment_name(FILE_UNITS * UNIT.size)).open("wb") as file:
        file.truncate(100)
    assert [each.regular for each in queue_ends(tmp_path)] == [True, False, False, False]


# -- the page cache ----------------------------------------------------------------------------------------------------


def test_the_page_cache_is_as_before(disk_path: Path) -> None:
    cold = [write_file(disk_path / "T" / str(number), units_of(1000)) for number in range(32)]
    warm = [write_file(disk_path / "U" / str(number), units_of(1000)) for number in range(32)]
    if not all(dropped(path) for path in [*cold, *warm]):
        pytest.skip("the file system keeps its pages in memory")
    for path in warm:
        path.read_bytes()
    before = [resident(path) for path in warm]
    assert len(queue_ends(disk_path)) == 64
    # A page may be kept by what else reads the disk now. A map left the read-ahead of each file, 25 pages or more.
    assert sum(sum(resident(path)) for path in cold) <= 32
    assert [resident(path) for path in warm] == before, "what the broker uses stays"
