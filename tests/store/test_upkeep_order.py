"""The order in which upkeep makes things durable and says so: a mark promises too little, never too much."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from engine_lab import HOST, kill, message, opened, small, turns

from tallystick.store._kernel import Door
from tallystick.store.engine import abort, preallocation
from tallystick.store.engine.dispatcher import Dispatcher
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.engine.preallocation import Preallocator
from tallystick.store.engine.upkeep import Upkeep
from tallystick.store.formats.segment_files import segment_name


def test_the_mark_comes_behind_every_sync_and_names_the_point_from_before() -> None:
    upkeep = Mock()
    upkeep._dispatch.index_files.return_value = []
    point = SimpleNamespace(pos=4096, store_timestamp_ms=7)
    Upkeep._save(upkeep, point, b"rows", thorough=True)  # type: ignore[arg-type]
    order = [name for name, _, _ in upkeep.mock_calls]
    syncs = ["_sync_inherited", "_log.sync", "_dispatch.sync", "_dispatch.sync_index"]
    assert [name for name in order if name in syncs] == syncs
    assert order[-3:] == ["_checkpoint.save", "_progress.save", "_save_table"]
    upkeep._save_table.assert_called_once_with(point, b"rows")
    upkeep._progress.save.assert_called_once_with(point, point)
    upkeep._progress.take.assert_not_called()
    assert (upkeep._saved_pos, upkeep._synced_pos) == (4096, 4096)


def test_what_a_killed_process_left_in_the_cache_is_synced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of this process knows only its own writes, and the mark covers all."""
    synced: list[str] = []
    monkeypatch.setattr("tallystick.store.engine.upkeep.sync_files", lambda door, folder: synced.append(folder.name))
    upkeep = Mock(_inherits=True, _inheriting=threading.Lock(), _root=Path("/store"))
    upkeep._sync_queues_at_once.return_value = False
    upkeep._settings.log_folder = Path("/store/commitlog")
    for _ in range(2):
        Upkeep._sync_inherited(upkeep)
    assert synced == ["commitlog", "consumequeue", "consumequeue_ext", "index"]
    upkeep._door.sync_dir.assert_called_once_with("/store")


async def test_a_stop_waits_for_the_thread_that_syncs_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelling a task does not end its thread, which would go on in a folder that another process may own by then."""
    settings = small(tmp_path / "store")
    async with opened(settings) as store:
        await kill(store)
    running, may_end, ended = (threading.Event() for _ in range(3))
    real, threads = Upkeep._sync_inherited, []

    def slow(upkeep: Upkeep) -> None:
        threads.append(threading.get_ident())
        running.set()
        may_end.wait(60)
        real(upkeep)
        ended.set()

    monkeypatch.setattr(Upkeep, "_sync_inherited", slow)
    store = await MessageStore.open(settings, store_host=HOST)
    assert await asyncio.to_thread(running.wait, 60)
    flushing = asyncio.create_task(store.flush())  # waits for the same thread
    await turns()
    stopping = asyncio.create_task(store.upkeep.stop())
    await turns()
    assert not stopping.done()
    may_end.set()
    await stopping
    assert ended.is_set()
    await flushing
    assert len(threads) == 1
    await store.close()


def test_a_mark_without_syncs_promises_no_synced_point() -> None:
    upkeep = Mock(_synced_pos=10)
    point = SimpleNamespace(pos=4096, store_timestamp_ms=7)
    Upkeep._save(upkeep, point, b"", thorough=False)  # type: ignore[arg-type]
    assert [name for name, _, _ in upkeep.mock_calls] == ["_progress.save"]
    upkeep._progress.save.assert_called_once_with(point, None)
    assert (upkeep._saved_pos, upkeep._synced_pos) == (4096, 10)


@pytest.mark.parametrize("step", ["_save", "_preallocator.remove_unused", "_durability.close"])
def test_a_store_that_fails_at_its_end_is_not_closed_in_order(tmp_path: Path, step: str) -> None:
    door = Door()
    abort.mark_open(tmp_path, door)
    upkeep = Mock(_root=tmp_path, _door=door)
    upkeep._dispatch.position, upkeep._durability.readable_end = 5, 5
    upkeep._take.return_value = (SimpleNamespace(pos=5), b"")
    failing = upkeep
    for part in step.split("."):
        failing = getattr(failing, part)
    failing.side_effect = OSError(errno.EIO, "the disk")
    Upkeep.finish(upkeep, orderly=True)
    assert abort.was_aborted(tmp_path)
    failing.side_effect = None
    Upkeep.finish(upkeep, orderly=True)
    assert not abort.was_aborted(tmp_path)


def test_unused_segments_go_from_the_last_one_on(tmp_path: Path) -> None:
    """Whatever stops it halfway leaves no gap: with one the store would not open."""
    door = Door()
    for start in range(0, 5 * 1024, 1024):
        door.create(tmp_path / f"{start:020}", 1024, True)
    door.fail("remove", "", errno.EIO, after=2)
    with pytest.raises(OSError):
        Preallocator.remove_unused(Mock(_segment_bytes=1024, _folder=tmp_path, _door=door), 100)
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [0, 1024, 2048]


async def test_dispatch_ends_at_what_it_cannot_read_and_puts_are_refused() -> None:
    dispatch = Mock(position=0)
    dispatch.run.return_value = Mock(stopped="bad magic", pos=40, skipped=[], grew=[])
    with ThreadPoolExecutor(1) as executor:
        dispatcher = Dispatcher(dispatch, executor, executor)
        dispatcher.advance(100)
        dispatcher.finish()
    assert dispatcher.refusal == "bad magic at byte 40 of the log"
    dispatcher.advance(200)
    assert not dispatcher.catch_up()
    assert dispatch.run.call_count == 1


async def test_the_end_of_the_log_is_no_reason_to_stop() -> None:
    dispatch = Mock(position=100)
    dispatch.run.return_value = Mock(stopped="unwritten", pos=100, skipped=[], grew=[])
    with ThreadPoolExecutor(1) as executor:
        dispatcher = Dispatcher(dispatch, executor, executor)
        dispatcher._take(dispatch.run(), 40)
    assert dispatcher.refusal is None


async def test_a_creation_that_begins_late_does_not_bring_a_deleted_segment_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(tmp_path, fileReservedTime=1, deleteWhen="", deleteCommitLogFilesInterval=0)
    log = settings.log_folder
    may_begin = threading.Event()

    def late(folder: Path) -> os.statvfs_result:
        assert may_begin.wait(60)
        return os.statvfs(folder)

    monkeypatch.setattr(preallocation, "os", SimpleNamespace(statvfs=late))
    async with opened(settings) as store:
        store.upkeep._cleaner._used = lambda path: 0.5
        while store.readable_end < 3 * 4096:
            await store.writes.put(message(b"x" * 300))
        await store.upkeep.save(thorough=True)
        for start in (0, 4096):
            os.utime(log / segment_name(start), (1_600_000_000, 1_600_000_000))
        async with asyncio.timeout(60):
            while store.min_pos < 2 * 4096:  # a thread that still uses a segment keeps it until the next pass
                store.upkeep._cleaner.ask()
                await store.upkeep.clean()
        creating = store.upkeep._preallocator._task
        assert creating is not None, "the creation of the second segment has not begun yet"
        may_begin.set()
        await creating
        assert not (log / segment_name(0)).exists() and not (log / segment_name(4096)).exists()
