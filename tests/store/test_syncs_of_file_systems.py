"""A store with many queues makes them durable with one sync of their file system, and a failure of that is told."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from engine_lab import HOST, SYNC, kill, message, opened, read_queue, small

from tallystick.store._kernel import Door
from tallystick.store.engine.inherited import sync_files
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.formats.message import PutStatus

TOPICS = 20


def few() -> Door:
    """The queues of `TOPICS` topics are many for it."""
    return Door(record=True, most_single_syncs=TOPICS)


async def filled(root: Path, door: Door) -> MessageStore:
    store = await MessageStore.open(small(root, flushDiskType=SYNC), store_host=HOST, door=door)
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "save-at-start"))
    for number in range(TOPICS):
        put = await store.writes.put(message(b"%d" % number, topic=f"T{number}"))
        assert put.status is PutStatus.PUT_OK
    store.dispatcher.finish()  # every queue has its file
    return store


def has_all(store: MessageStore) -> bool:
    read = [[record.body for record in read_queue(store, f"T{number}")] for number in range(TOPICS)]
    return read == [[b"%d" % number] for number in range(TOPICS)]


def put_elsewhere(root: Path, other: Path) -> None:
    """The queue of T3 will be on another file system."""
    (root / "consumequeue").mkdir()
    (other / "T3").mkdir()
    (root / "consumequeue" / "T3").symlink_to(other / "T3")


async def check_is_tried_again(root: Path, door: Door) -> None:
    """The sync of what was inherited fails, promises nothing, and succeeds later."""
    async with opened(small(root), door) as store:
        assert store.upkeep._synced_pos == -1
        with pytest.raises(OSError):
            await store.upkeep.sync_inherited()
        door.heal()
        await store.upkeep.sync_inherited()


async def test_an_orderly_stop_syncs_its_file_system_once(tmp_path: Path) -> None:
    door = few()
    store = await filled(tmp_path, door)
    before = door.counts()
    await store.close()
    after = door.counts()
    assert after["sync_fs"] - before["sync_fs"] == 1
    assert after["sync"] - before["sync"] < TOPICS
    door.crash(1, 0.0)
    async with opened(small(tmp_path), Door()) as store:
        assert store.recovered.clean and store.recovered.from_mark
        assert store.recovered.findings == []
        assert has_all(store)


async def test_a_stop_whose_sync_fails_is_not_orderly(tmp_path: Path) -> None:
    door = few()
    store = await filled(tmp_path, door)
    door.fail("sync_fs", str(tmp_path), errno.EIO)
    await store.close()
    door.crash(1, 0.0)
    async with opened(small(tmp_path), Door()) as store:
        assert not store.recovered.clean
        assert has_all(store)


async def test_what_a_killed_process_left_is_synced_with_its_file_system(tmp_path: Path) -> None:
    door = few()
    store = await filled(tmp_path, door)
    await store.queues.save_progress()
    await kill(store)
    door = door.next_process()
    before = door.counts()
    async with opened(small(tmp_path), door) as store:
        after = door.counts()
        assert after["sync_fs"] - before["sync_fs"] == 1
        assert after["sync"] - before["sync"] < TOPICS
        point = store.upkeep._synced_pos
        assert point == store.max_pos
        door.crash(1, 0.0)
    async with opened(small(tmp_path), Door()) as store:
        assert has_all(store)


async def test_a_failed_sync_of_what_was_inherited_is_tried_again_and_promises_nothing(tmp_path: Path) -> None:
    door = few()
    store = await filled(tmp_path, door)
    await store.queues.save_progress()
    await kill(store)
    door = door.next_process()
    door.fail("sync_fs", "", errno.EIO)
    await check_is_tried_again(tmp_path, door)


@pytest.mark.parametrize("place", ["root", "elsewhere"])
async def test_queues_that_were_inherited_elsewhere_are_synced_one_by_one(
    tmp_path: Path, other_disk: Path, place: str
) -> None:
    if place == "elsewhere":
        put_elsewhere(tmp_path, other_disk)
    door = few()
    store = await filled(tmp_path, door)
    await store.queues.save_progress()
    await kill(store)
    door = door.next_process()
    async with opened(small(tmp_path), door) as store:
        files, is_one_file_system = store._dispatch.loaded_files()
        assert (files, is_one_file_system) == (TOPICS, place == "root")
        assert store.upkeep._synced_pos == store.max_pos
        door.crash(1, 0.0)
    async with opened(small(tmp_path), Door()) as store:
        assert has_all(store)


async def test_a_failed_sync_of_queues_that_lie_elsewhere_is_noticed(tmp_path: Path, other_disk: Path) -> None:
    """Even if the files of queues are more than are synced one by one: a sync of the root does not reach these."""
    put_elsewhere(tmp_path, other_disk)
    door = Door(record=True, most_single_syncs=TOPICS - 1)
    store = await filled(tmp_path, door)
    await store.queues.save_progress()
    await kill(store)
    door = door.next_process()
    door.fail("sync", "T3", errno.EIO)
    await check_is_tried_again(tmp_path, door)


# -- one tree ----------------------------------------------------------------------------------------------------------


def tree(root: Path, door: Door, *, folders: int = 3, files: int = 3) -> int:
    for folder in range(folders):
        for file in range(files):
            path = root / f"{folder}" / f"{file}"
            door.create(path, 1, allocate=False)
            door.write(path, 0, b"x")
    return folders * (files + 1) + 1


def syncs(door: Door, root: Path) -> tuple[int, int, int]:
    before = door.counts()
    sync_files(door, root)
    after = door.counts()
    files, folders, systems = (after[op] - before[op] for op in ("sync", "sync_dir", "sync_fs"))
    return files, folders, systems


@pytest.mark.parametrize(("many", "is_kept"), [(True, True), (True, False), (False, True)])
def test_a_tree_is_durable_with_all_its_names(tmp_path: Path, many: bool, is_kept: bool) -> None:
    names = 13
    door = Door(record=True, most_single_syncs=names - many)
    if is_kept:
        door.keep_fs(tmp_path)
    assert tree(tmp_path / "tree", door) == names
    assert syncs(door, tmp_path / "tree") == ((1, 0, 1) if many and is_kept else (9, 4, 0))
    door.crash(1, 0.0)
    assert sorted(path.read_bytes() for path in tmp_path.glob("tree/[0-9]/*")) == [b"x"] * 9


def test_parts_of_a_tree_on_other_file_systems_are_synced_one_by_one(tmp_path: Path, other_disk: Path) -> None:
    door = Door(record=True, most_single_syncs=5)
    door.keep_fs(tmp_path)
    tree(other_disk, door, folders=1)
    tree(tmp_path / "tree", door)
    (tmp_path / "tree" / "folder").symlink_to(other_disk)
    (tmp_path / "tree" / "file").symlink_to(other_disk / "0" / "0")
    assert syncs(door, tmp_path / "tree") == (1 + 3 + 1, 2, 1)
    door.crash(1, 0.0)
    assert sorted(path.read_bytes() for path in tmp_path.glob("tree/[0-9]/*")) == [b"x"] * 9


def test_a_tree_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    assert syncs(Door(), tmp_path / "none") == (0, 0, 0)
