"""The derived side when disks fail, power goes, files are damaged, and many threads ask at once."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from derived_twin import write_log
from engine_lab import until

from tallystick.store._kernel import DamageError, Dispatch, Door, key_hash, scan
from tallystick.store.engine import dispatcher as dispatcher_module
from tallystick.store.engine.dispatcher import Dispatcher
from tallystick.store.formats.message import GetStatus
from tallystick.store.formats.record import Record

LOG_SEGMENT = 4096
LIMITS = (262144, 32, 65536, 8)
STATUSES = list(GetStatus)


def records(count: int, queues: int = 2, topic: str = "T") -> list[Record]:
    return [
        Record(
            topic,
            number % queues,
            b"body %d" % number,
            f"UNIQ_KEY\x01K{number}\x02TAGS\x01tag{number % 3}\x02",
            queue_offset=number // queues,
            store_timestamp_ms=1_600_000_000_000 + number,
        )
        for number in range(count)
    ]


def opened(folder: Path, door: Door | None = None, **options: Any) -> Dispatch:
    dispatch = Dispatch(
        door or Door(),
        str(folder),
        str(folder / "commitlog"),
        log_segment_bytes=LOG_SEGMENT,
        queue_segment_bytes=200,
        index_slots=options.pop("index_slots", 16),
        index_entries=options.pop("index_entries", 64),
        **options,
    )
    dispatch.load()
    return dispatch


def pull(dispatch: Dispatch, queue: int, offset: int, end: int, **options: object) -> tuple[GetStatus, int, int]:
    got = dispatch.get(b"T", queue, offset, 32, None, end, 1 << 40, LIMITS, **options)  # type: ignore[arg-type]
    return STATUSES[got[0]], got[1], got[4]


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, list[tuple[int, Record]], int]:
    placed, end = write_log(tmp_path / "commitlog", records(100), LOG_SEGMENT)
    return tmp_path, placed, end


Store = tuple[Path, list[tuple[int, Record]], int]


def test_a_full_disk_keeps_the_units_and_the_next_try_writes_them(store: Store) -> None:
    folder, _, end = store
    door = Door()
    dispatch = opened(folder, door)
    dispatch.run(end, 1 << 40)
    pending = dispatch.pending_bytes
    assert pending == 100 * 20
    door.fail("write", "consumequeue/T/0", errno.ENOSPC, after=2)
    with pytest.raises(OSError, match="consumequeue/T/0") as error:
        dispatch.write_out()
    assert error.value.errno == errno.ENOSPC and "/T/0/" in error.value.filename
    assert 0 < dispatch.pending_bytes < pending
    assert [len(dispatch.units(b"T", queue, 0, 1000)) for queue in (0, 1)] == [50, 50]
    door.heal()
    dispatch.write_out()
    assert dispatch.pending_bytes == 0
    again = opened(folder)
    assert again.recover_queues() == end
    assert [row[3] for row in again.queues()] == [50, 50]


def test_an_index_file_that_cannot_be_made_stops_before_its_record(store: Store) -> None:
    folder, placed, end = store
    door = Door()
    dispatch = opened(folder, door, index_entries=31)
    door.fail("allocate", "index/", errno.ENOSPC, after=1)
    with pytest.raises(OSError, match="index/"):
        dispatch.run(end, 1 << 40)
    assert dispatch.position == placed[30][0], "thirty entries fit into the first file"
    door.heal()
    assert dispatch.run(end, 1 << 40).pos == end
    for pos, record in placed:
        assert dispatch.lookup(key_hash(f"T#{record.property_table()['UNIQ_KEY']}".encode()), 9, 0, 2**62)[0] == [pos]
    assert [row[3] for row in dispatch.queues()] == [50, 50]


@pytest.mark.parametrize("part", ["consumequeue", "index"])
def test_a_failed_sync_is_reported_and_retried(store: Store, part: str) -> None:
    folder, _, end = store
    door = Door(record=True)
    dispatch = opened(folder, door)
    dispatch.run(end, 1 << 40)
    dispatch.write_out()
    sync = dispatch.sync if part == "consumequeue" else dispatch.sync_index
    for op in ("sync", "sync_dir"):
        door.fail(op, part, errno.EIO, times=1)
        with pytest.raises(OSError, match=part):
            sync()
    before = door.counts()
    sync()
    assert door.counts()["sync_dir"] > before["sync_dir"]


@pytest.mark.parametrize("seed", range(20))
def test_what_was_synced_survives_a_power_loss(store: Store, seed: int) -> None:
    folder, placed, end = store
    half = placed[50][0]
    door = Door(record=True)
    dispatch = opened(folder, door)
    dispatch.run(half, 1 << 40)
    dispatch.write_out()
    dispatch.sync()
    synced_ms = dispatch.sync_index()
    dispatch.run(end, 1 << 40)
    dispatch.write_out()
    door.crash(seed)

    dispatch = opened(folder)
    assert dispatch.recover_queues() >= half
    dispatch.correct_min_offsets(0)
    for queue in (0, 1):
        expected = [(pos, record.size) for pos, record in placed if record.queue_id == queue]
        units = [unit[:2] for unit in dispatch.units(b"T", queue, 0, 1000)]
        assert units == expected[: len(units)] and len(units) >= 25
    again = dispatch.drop_index_after(synced_ms)
    dispatch.start(max(again, 0) if again >= 0 else half)
    dispatch.run(end, 1 << 40)
    for pos, record in placed:
        key = key_hash(f"T#{record.property_table()['UNIQ_KEY']}".encode())
        assert set(dispatch.lookup(key, 9, 0, 2**62)[0]) == {pos}
    assert [row[3] for row in dispatch.queues()] == [50, 50]


def test_a_damaged_record_is_not_served_and_its_neighbours_are(store: Store) -> None:
    folder, placed, end = store
    dispatch = opened(folder)
    dispatch.run(end, 1 << 40)
    pos = placed[4][0]  # queue 0, offset 2
    with (folder / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(pos + 28)
        file.write(b"\x01")
    assert pull(dispatch, 0, 2, end) == (GetStatus.FOUND, 10, 7)
    assert dispatch.damaged == 1
    assert dispatch.record_at(pos, end) is None


def test_records_of_a_deleted_segment_are_passed_over(store: Store) -> None:
    folder, placed, end = store
    dispatch = opened(folder)
    dispatch.run(end, 1 << 40)
    dispatch.write_out()
    gone = sum(1 for pos, record in placed if pos < LOG_SEGMENT and record.queue_id == 0)
    (folder / "commitlog" / f"{0:020d}").unlink()
    dispatch.forget_log_segment(0)
    status, after, count = pull(dispatch, 0, 0, end)
    assert (status, after, count) == (GetStatus.MESSAGE_WAS_REMOVING, 10, 0)
    at = gone // 10 * 10
    assert pull(dispatch, 0, at, end) == (GetStatus.FOUND, at + 10, at + 10 - gone)
    removed = dispatch.delete_below(LOG_SEGMENT)
    assert removed == 2 * (gone // 10)
    assert dispatch.offsets(b"T", 0) == (gone, 50)
    assert pull(dispatch, 0, 0, end) == (GetStatus.OFFSET_TOO_SMALL, gone, 0)
    assert pull(dispatch, 0, 0, end, correct=False) == (GetStatus.OFFSET_TOO_SMALL, 0, 0)


def test_records_behind_the_visible_end_wait(store: Store) -> None:
    folder, placed, end = store
    dispatch = opened(folder)
    dispatch.run(end, 1 << 40)
    visible = placed[6][0]
    assert pull(dispatch, 0, 0, visible) == (GetStatus.FOUND, 3, 3)
    assert pull(dispatch, 0, 3, visible) == (GetStatus.OFFSET_OVERFLOW_ONE, 3, 0)


def test_the_last_word_on_a_record_can_be_pythons(store: Store) -> None:
    folder, _, end = store
    dispatch = opened(folder)
    dispatch.run(end, 1 << 40)
    asked = []

    def accept(code: int, properties: bytes) -> bool:
        asked.append((code, properties))
        return b"tag1" in properties and dispatch.offsets(b"T", 0) == (0, 50)  # it may ask the store itself

    assert pull(dispatch, 0, 0, end, accept=accept) == (GetStatus.FOUND, 10, 3)
    assert len(asked) == 10
    with pytest.raises(ZeroDivisionError):
        pull(dispatch, 0, 0, end, accept=lambda code, properties: 1 // 0)


@pytest.mark.parametrize("most", [0, 1, 2, 3, 7])
def test_a_reader_continues_where_python_had_enough(store: Store, most: int) -> None:
    """However few records one pull tests, all pulls together find the same."""
    folder, _, end = store
    dispatch = opened(folder)
    dispatch.run(end, 1 << 40)
    offset, found = 0, 0
    while offset < 10:
        asked = 0

        def accept(_: int, properties: bytes) -> bool:
            nonlocal asked
            asked += 1
            return b"tag1" in properties

        status, following, count = pull(dispatch, 0, offset, end, accept=accept, most_accepts=most)
        assert status is (GetStatus.FOUND if count else GetStatus.NO_MATCHED_MESSAGE)
        assert 1 <= asked <= max(1, most) and following == min(10, offset + asked)
        offset, found = following, found + count
    assert found == 3


def test_a_bad_record_stops_dispatch_and_says_where(store: Store) -> None:
    folder, placed, end = store
    pos, record = placed[7]
    file = folder / "commitlog" / f"{0:020d}"
    good = file.read_bytes()

    file.write_bytes(good[: pos + 88] + b"X" + good[pos + 89 :])
    result = opened(folder).run(end, 1 << 40, check_crc=True)
    assert (result.pos, result.records, result.stopped) == (pos, 7, "body CRC differs")

    file.write_bytes(good[: pos + 4] + b"\0" + good[pos + 5 :])
    result = opened(folder).run(end, 1 << 40)
    assert (result.pos, result.records, result.stopped) == (pos, 7, "bad magic")

    file.write_bytes(good[: pos + 87] + b"\x09" + good[pos + 88 :])  # the body's length, the size still holds
    result = opened(folder).run(end, 1 << 40)
    assert (result.pos, result.stopped) == (end, None)
    assert result.skipped == [(pos, record.size, "lengths do not add up")]
    assert result.misplaced == 0, "the queue has a placeholder where that record was"


def test_files_that_do_not_fit_the_settings_are_named(store: Store) -> None:
    folder, _, end = store
    dispatch = opened(folder)
    dispatch.run(end, 1 << 40)
    dispatch.write_out()
    file = folder / "consumequeue" / "T" / "0" / f"{200:020d}"
    os.truncate(file, 120)
    with pytest.raises(DamageError, match="200 bytes") as error:
        opened(folder)
    assert (error.value.path, error.value.pos) == (str(file), 120)
    os.truncate(file, 200)
    with pytest.raises(DamageError, match="17 slots"):
        opened(folder, index_slots=17)
    with pytest.raises(DamageError, match="commitlog"):
        scan(str(folder / "commitlog"), 8192, 0, True)
    for wrong in ({"log_segment_bytes": 0}, {"queue_segment_bytes": 0}, {"index_slots": 0}, {"entry_header_bytes": 7}):
        options: dict[str, Any] = {
            "log_segment_bytes": 1,
            "queue_segment_bytes": 20,
            "index_slots": 1,
            "index_entries": 9,
            **wrong,
        }
        with pytest.raises(ValueError):
            Dispatch(Door(), str(folder), str(folder), **options)


def test_a_read_only_store_is_read_and_left_alone(store: Store) -> None:
    folder, _, end = store
    dispatch = opened(folder)
    dispatch.run(end, 1 << 40)
    dispatch.write_out()
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    reader = opened(folder, read_only=True)
    assert reader.recover_queues() == end
    reader.truncate_queues(end // 2)
    reader.correct_min_offsets(0)
    assert pull(reader, 0, 0, end) == (GetStatus.FOUND, 10, 10)
    with pytest.raises(ValueError, match="read-only"):
        reader.run(end, 1)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


def test_watched_queues_that_grew_are_reported_once(store: Store) -> None:
    folder, placed, end = store
    dispatch = opened(folder)
    dispatch.watch(b"T", 1)
    dispatch.watch(b"other", 0)
    assert dispatch.run(placed[1][0], 1 << 40).grew == []
    assert dispatch.run(placed[9][0], 1 << 40).grew == [(b"T", 1)]
    assert dispatch.run(placed[9][0], 1 << 40).grew == []
    dispatch.unwatch(b"T", 1)
    result = dispatch.run(end, 1 << 40)
    assert result.grew == [] and result.last_store_timestamp_ms == placed[-1][1].store_timestamp_ms


def test_a_removed_topic_has_no_queues(store: Store) -> None:
    folder, _, end = store
    dispatch = opened(folder)
    dispatch.run(end, 1 << 40)
    dispatch.write_out()
    dispatch.remove_topic(b"T")
    dispatch.remove_topic(b"never was")
    assert dispatch.queues() == [] and list((folder / "consumequeue").iterdir()) == []
    assert pull(dispatch, 0, 5, end) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0)


def test_readers_and_dispatch_share_it_without_waiting_for_each_other_forever(tmp_path: Path) -> None:
    placed, end = write_log(tmp_path / "commitlog", records(3000, queues=8), LOG_SEGMENT)
    dispatch = opened(tmp_path, index_entries=4000, max_open_files=3)
    failures: list[BaseException] = []
    done = threading.Event()

    def read(queue: int) -> None:
        mine = [pos for pos, record in placed if record.queue_id == queue]
        try:
            seen: list[int] = []
            while len(seen) < len(mine):
                got = dispatch.get(b"T", queue, len(seen), 32, None, end, 1 << 40, LIMITS)
                seen += [unit[0] for unit in dispatch.units(b"T", queue, len(seen), got[4])]
                assert seen == mine[: len(seen)]
                dispatch.lookup(key_hash(b"T#K1"), 3, 0, 2**62)
        except BaseException as error:
            failures.append(error)

    def write() -> None:
        try:
            while not done.is_set():
                dispatch.write_out()
                dispatch.sync()
                dispatch.sync_index()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(queue,)) for queue in range(8)] + [threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    while dispatch.position < end:
        dispatch.run(end, 10_000)
    for thread in threads[:-1]:
        thread.join()
    done.set()
    threads[-1].join()
    assert failures == []
    dispatch.write_out()
    assert opened(tmp_path, index_entries=4000).recover_queues() == end


def test_on_a_slow_disk_dispatch_waits_for_a_file_not_for_all_of_them(tmp_path: Path) -> None:
    """A writer that lets go of the lock and takes it again at once would keep it, and dispatch runs on the loop."""
    queues = 60
    _, end = write_log(tmp_path / "commitlog", [*records(queues, queues), *records(50, 1, "Late")], LOG_SEGMENT)
    door = Door()
    dispatch = opened(tmp_path, door)
    while not dispatch.units(b"T", queues - 1, 0, 1):
        dispatch.run(end, 1)
    door.slow("create", "consumequeue/T/", 20)
    writer = threading.Thread(target=dispatch.write_out)
    before = door.counts()["create"]
    writer.start()
    while door.counts()["create"] == before:
        pass
    made = []
    while writer.is_alive():
        begun = door.counts()["create"]
        if dispatch.run(end, 1).records:
            made.append(door.counts()["create"] - begun)
    writer.join()
    assert max(made) <= 8, made  # one; more only if this thread did not run meanwhile


# -- every file and every name is synced, once ------------------------------------------------------------------------


def test_a_file_that_was_synced_is_synced_again_when_it_grows(store: Store) -> None:
    folder, placed, end = store
    door = Door(record=True)
    dispatch = opened(folder, door)
    for number in (3, 7, 11, 100):
        dispatch.run(end if number == 100 else placed[number][0], 1 << 40)
        dispatch.write_out()
        dispatch.sync()
    door.crash(1, 0.0)
    again = opened(folder)
    assert again.recover_queues() == end
    assert [row[3] for row in again.queues()] == [50, 50]


def test_files_and_folders_whose_sync_failed_are_all_synced_again(store: Store) -> None:
    folder, _, end = store
    door = Door()
    dispatch = opened(folder, door)
    dispatch.run(end, 1 << 40)
    dispatch.write_out()
    files = len([path for path in (folder / "consumequeue").rglob("*") if path.is_file()])
    door.fail("sync", "consumequeue", errno.EIO, times=1)
    with pytest.raises(OSError):
        dispatch.sync()
    before = door.counts()
    dispatch.sync()
    after = door.counts()
    assert after["sync"] - before["sync"] == files == 10
    assert after["sync_dir"] - before["sync_dir"] == len(["consumequeue", "T", "T/0", "T/1"])
    dispatch.sync()
    assert door.counts() == after, "nothing is left to sync"


def many_are_synced_at_once(folder: Path, **options: Any) -> tuple[Door, Dispatch]:
    """A door for which the ten files and four folders of the store are many, and what is to be synced."""
    door = Door(record=True, most_single_syncs=13)
    door.keep_fs(folder)
    dispatch = opened(folder, door, **options)
    return door, dispatch


def synced(door: Door, dispatch: Dispatch) -> tuple[int, int, int]:
    """Syncs of file systems, files and folders that one sync of the queues makes."""
    before = door.counts()
    dispatch.sync()
    after = door.counts()
    return tuple(after[op] - before[op] for op in ("sync_fs", "sync", "sync_dir"))  # type: ignore[return-value]


@pytest.mark.parametrize("max_open_files", [1, 4096])
def test_very_many_files_are_synced_with_their_file_system(store: Store, max_open_files: int) -> None:
    folder, _, end = store
    door, dispatch = many_are_synced_at_once(folder, max_open_files=max_open_files)
    dispatch.run(end, 1 << 40)
    dispatch.write_out()
    assert synced(door, dispatch) == (1, 1, 0), "one file, to empty the cache of the device"
    assert synced(door, dispatch) == (0, 0, 0)
    door.crash(1, 0.0)
    again = opened(folder)
    assert again.recover_queues() == end
    assert [row[3] for row in again.queues()] == [50, 50]


def test_a_file_system_whose_sync_failed_is_synced_again(store: Store) -> None:
    folder, _, end = store
    door, dispatch = many_are_synced_at_once(folder)
    dispatch.run(end, 1 << 40)
    dispatch.write_out()
    door.fail("sync_fs", str(folder), errno.EIO, times=1)
    with pytest.raises(OSError, match=str(folder)):
        dispatch.sync()
    assert synced(door, dispatch) == (1, 1, 0)
    assert synced(door, dispatch) == (0, 0, 0)


def test_a_few_files_are_synced_one_by_one(store: Store) -> None:
    folder, _, end = store
    door = Door(record=True, most_single_syncs=14)
    door.keep_fs(folder)
    dispatch = opened(folder, door)
    dispatch.run(end, 1 << 40)
    dispatch.write_out()
    assert synced(door, dispatch) == (0, 10, 4)


@pytest.mark.parametrize("is_kept", [True, False])
def test_queues_on_another_file_system_are_synced_one_by_one(store: Store, other_disk: Path, is_kept: bool) -> None:
    folder, _, end = store
    (folder / "consumequeue").mkdir()
    (other_disk / "T").mkdir()
    (folder / "consumequeue" / "T").symlink_to(other_disk / "T")
    door = Door(record=True, most_single_syncs=13)
    if is_kept:
        door.keep_fs(folder)
    dispatch = opened(folder, door)
    dispatch.run(end, 1 << 40)
    dispatch.write_out()
    expected = (1, 10, 3) if is_kept else (0, 10, 4)
    assert synced(door, dispatch) == expected
    door.crash(1, 0.0)
    assert opened(folder).recover_queues() == end


def test_files_that_were_closed_to_make_room_are_synced(store: Store) -> None:
    folder, _, end = store
    door = Door(record=True)
    dispatch = opened(folder, door, max_open_files=1)
    dispatch.run(end, 1 << 40)
    dispatch.write_out()
    dispatch.sync()
    door.crash(1, 0.0)
    assert opened(folder).recover_queues() == end


def test_dispatch_stops_at_its_bound(store: Store) -> None:
    folder, placed, end = store
    dispatch = opened(folder)
    assert dispatch.run(end, 1).pos == placed[1][0], "the record in which the limit lies, and no more"
    two_more = placed[3][0] - placed[1][0]
    assert dispatch.run(end, two_more).pos == placed[3][0]


@pytest.mark.parametrize("writes", range(1, 16))
def test_a_slot_of_the_index_never_names_an_entry_that_is_not_there(store: Store, writes: int) -> None:
    """The process may die between any two writes: entry, slot, header."""
    folder, _, end = store
    door = Door()
    dispatch = opened(folder, door)
    door.fail("write", "index/", errno.EIO, after=writes)
    with pytest.raises(OSError):
        dispatch.run(end, 1 << 40)
    [file] = (folder / "index").iterdir()
    data = file.read_bytes()
    slots = [int.from_bytes(data[at : at + 4], "big") for at in range(40, 40 + 4 * 16, 4)]
    entries = [data[at : at + 20] for at in range(40 + 4 * 16, len(data), 20)]
    assert all(any(entries[slot]) for slot in slots if slot)


@pytest.mark.parametrize("zeros", [200, 3 * LOG_SEGMENT // 2], ids=["of a segment", "over a border"])
def test_an_index_is_rebuilt_over_zeros_at_the_begin_of_a_segment(store: Store, zeros: int) -> None:
    folder, placed, end = store
    dispatch = opened(folder)
    dispatch.run(end, 1 << 40)
    dispatch.write_out()
    for start in range(LOG_SEGMENT, LOG_SEGMENT + zeros, LOG_SEGMENT):
        with (folder / "commitlog" / f"{start:020d}").open("r+b") as file:
            file.write(bytes(min(LOG_SEGMENT, LOG_SEGMENT + zeros - start)))
    (name, *_), *_ = dispatch.index_files()
    assert dispatch.distrust_index(name)
    skipped = []
    for _ in range(100):  # at most one damaged range is passed over in each step
        skipped += dispatch.run(end, 1 << 40).skipped
    assert dispatch.position == end and skipped
    for pos, record in placed:
        is_hit = pos + record.size > LOG_SEGMENT and pos < LOG_SEGMENT + zeros
        found = dispatch.lookup(key_hash(f"T#{record.property_table()['UNIQ_KEY']}".encode()), 9, 0, 2**62)[0]
        assert is_hit or found == [pos]
    assert [row[3] for row in dispatch.queues()] == [50, 50]


@pytest.mark.parametrize("inline_bytes", [0, 1 << 30], ids=["on a thread", "on the event loop"])
async def test_a_segment_that_is_missing_is_reported_once_until_it_is_back(
    store: Store, inline_bytes: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatcher_module, "INLINE_BYTES", inline_bytes)
    monkeypatch.setattr(dispatcher_module, "RETRY_MS", 1)
    folder, _, end = store
    missing = folder / "commitlog" / f"{LOG_SEGMENT:020d}"
    aside = missing.rename(folder / "aside")
    with ThreadPoolExecutor(1) as executor:
        dispatcher = Dispatcher(opened(folder), executor, executor)
        dispatcher.advance(end)
        await until(lambda: dispatcher.refusal is not None, "puts are refused")
        assert dispatcher.refusal is not None
        assert f"the log has no file with byte {LOG_SEGMENT}" in dispatcher.refusal
        dispatcher.finish()  # it returns, although there is more
        assert dispatcher.dispatch.position == LOG_SEGMENT
        aside.rename(missing)
        await until(lambda: not dispatcher.behind_bytes, "all records are dispatched")
        assert dispatcher.refusal is None
        await dispatcher.close()
    assert [row[3] for row in dispatcher.dispatch.queues()] == [50, 50]
    told = [record.levelname for record in caplog.records if "cannot be extended" in record.message]
    assert told == ["ERROR", "WARNING"], "one line when it fails, one when it works again"
