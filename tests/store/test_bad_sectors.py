"""A part of a file that the disk does not give: reported with its place, never served, and no end of the process.

A file that is truncated under a map gives a reader the same signal as a bad sector, on every machine. Where the tests
may make loop devices, `tests/node/test_bad_sectors_on_a_disk.py` has real ones.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tallystick.store._kernel import map_faults, scan, take_unread
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.formats.log_walk import StepKind, walk
from tallystick.store.formats.mapped import UNREADABLE, ReadMap
from tallystick.store.formats.message import GetStatus, Host, Message
from tallystick.store.formats.properties import KEYS
from tallystick.store.formats.segment_files import SegmentFiles, segment_name
from tallystick.store.settings import StoreSettings

HOST = Host("127.0.0.1", 10911)
SEGMENT = 1 << 16
PAGE = 4096


def settings(root: Path) -> StoreSettings:
    return StoreSettings(
        storePathRootDir=str(root), mappedFileSizeCommitLog=SEGMENT, maxHashSlotNum=2000, maxIndexNum=8000
    )


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[MessageStore]:
    store = await MessageStore.open(settings(root), store_host=HOST)
    try:
        yield store
    finally:
        await asyncio.wait_for(store.close(), 10)


async def fill(store: MessageStore, count: int) -> list[int]:
    """Messages of half a page each; their positions."""
    puts = [
        await store.writes.put(Message("T", 0, b"body %06d" % number * 150, f"{KEYS}\x01k{number}\x02"))
        for number in range(count)
    ]
    assert store.queues.max_offset("T", 0) == count
    return [put.pos for put in puts]


def read_all(store: MessageStore) -> list[int]:
    """The numbers of the messages that a consumer gets, in order."""
    numbers, offset = [], 0
    while True:
        got = store.reads.get_message("T", 0, offset, 32)
        if got.status is GetStatus.FOUND:
            numbers += [int(part) for part in _numbers(got.body)]
        elif got.status is not GetStatus.NO_MATCHED_MESSAGE:
            return numbers
        assert got.next_begin_offset > offset, "a consumer gets on"
        offset = got.next_begin_offset


def _numbers(body: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4])
        record = body[at : at + size]
        begin = record.index(b"body ")
        found.append(record[begin + 5 : begin + 11])
        assert record.count(b"body " + found[-1]) == 150
        at += size
    return found


class Gone:
    """The end of a file, from a page's begin on, is gone while the context lasts; then it is as it was."""

    def __init__(self, path: Path, at: int) -> None:
        self._path, self._at = path, at
        self._rest = path.read_bytes()[at:]

    def __enter__(self) -> None:
        os.truncate(self._path, self._at)

    def __exit__(self, *_: object) -> None:
        with self._path.open("r+b") as file:
            file.seek(self._at)
            file.write(self._rest)


def segment(root: Path, number: int) -> Path:
    return root / "commitlog" / segment_name(number * SEGMENT)


async def test_a_segment_that_cannot_be_read_is_passed_over_by_every_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        positions = await fill(store, 120)
        whole = [number for number, pos in enumerate(positions) if not 5 * PAGE < pos + 2300 - SEGMENT < SEGMENT]
        assert read_all(store) == list(range(120))
        hidden = next(number for number, pos in enumerate(positions) if pos >= SEGMENT + 8 * PAGE)
        with Gone(segment(tmp_path, 1), 5 * PAGE):
            before = map_faults()
            got = read_all(store)
            assert map_faults() > before
            assert set(whole) <= set(got) and hidden not in got and got == sorted(got)
            assert store.reads.message_at(positions[hidden]) is None
            assert store.reads.query("T", f"k{hidden}", 10, 0, 1 << 60).records == []
            assert store.reads.query("T", f"k{whole[-1]}", 10, 0, 1 << 60).records != []
            assert store.reads.store_time("T", 0, hidden) == -1
            assert store.figures.damaged_records > 0
            assert (await store.writes.put(Message("T", 0, b"body 999999" * 150))).status.stored
            unread = {(Path(path).name, offset // PAGE) for path, offset, _, _ in take_unread(tmp_path)}
            assert any(name == segment_name(SEGMENT) and page >= 5 for name, page in unread)
        store._dispatch.forget_log_segment(SEGMENT)
        assert read_all(store) == [*range(120), 999999], "it is read again where it can be"


async def test_an_index_that_lost_a_page_is_made_again_from_the_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await fill(store, 100)
        (path,) = (tmp_path / "index").iterdir()
        os.truncate(path, 0)
        # A store to a page that is gone is lost, and the broker must not believe the file any longer.
        assert (await store.writes.put(Message("T", 0, b"body 000100" * 150, f"{KEYS}\x01k100\x02"))).status.stored
        await _until(lambda: store.figures.dispatch_behind_bytes == 0 and not path.exists())
        for number in range(101):
            assert len(store.reads.query("T", f"k{number}", 10, 0, 1 << 60).records) == 1, number
        assert read_all(store) == list(range(101))


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  (nothing tells of the dispatcher's end)
            await asyncio.sleep(0.02)


async def test_the_kernels_walks_stop_where_bytes_cannot_be_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        positions = await fill(store, 60)
    folder = tmp_path / "commitlog"
    path = segment(tmp_path, 0)
    whole = scan(str(folder), SEGMENT, 0, True)
    assert whole.records == 60
    last = max(pos for pos in positions if pos < 5 * PAGE)
    with ReadMap(path) as mapped, Gone(path, 5 * PAGE):
        assert mapped.unread() == [(5 * PAGE, SEGMENT - 5 * PAGE)]
        assert mapped[5 * PAGE : 5 * PAGE + 4] == b"\xde" * 4
        assert mapped.spoils(5 * PAGE - 1, 2) and not mapped.spoils(0, 5 * PAGE)
    with SegmentFiles(folder) as log:
        log.buffer(0)
        with Gone(path, 5 * PAGE):
            steps = list(walk(log))
    assert (steps[-1].kind, steps[-1].reason) == (StepKind.DAMAGE, UNREADABLE)
    assert steps[-1].pos == last


def test_a_map_of_python_is_let_go_of_in_order(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3 * PAGE)
    for _ in range(300):
        mapped = ReadMap(path)
        assert mapped[0] == 120
        mapped.close()
        mapped.close()
    kept = ReadMap(path)
    del kept  # without close
    with ReadMap(path) as mapped, Gone(path, PAGE):
        assert mapped[PAGE] == 0xDE
    with pytest.raises(ValueError, match="closed"):
        mapped[0]
    with pytest.raises(ValueError, match="empty"):
        empty = tmp_path / "empty"
        empty.touch()
        ReadMap(empty)
