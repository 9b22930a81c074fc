"""A full disk, a failing disk: puts are refused with the reason, reads go on, puts are taken again when they can be."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_lab import (
    HOST,
    SYNC,
    Peer,
    message,
    opened,
    read_queue,
    send_frame,
    small,
    turns,
    until,
)

from tallystick.store._kernel import Door
from tallystick.store.engine import segments
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.engine.upkeep import Upkeep
from tallystick.store.formats.message import PutStatus
from tallystick.store.formats.segment_files import segment_name

pytestmark = pytest.mark.process

BIG = bytes(1500)


async def fill_segment(store: MessageStore) -> int:
    """Puts until the next one needs another segment; how many are in the queue then."""
    while store.log.staged % 4096 + len(BIG) + 200 < 4096:
        assert (await store.writes.put(message(BIG))).status is PutStatus.PUT_OK
    return store.queues.max_offset("T", 0)


# -- by the door -------------------------------------------------------------------------------------------------------


async def test_a_segment_that_cannot_be_made_refuses_puts_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Upkeep, "free_bytes", 0)
    door = Door()
    async with opened(small(tmp_path), door) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        await until(lambda: store.upkeep._preallocator._task is None)
        door.fail("allocate", "commitlog", errno.ENOSPC)
        for path in store.settings.commit_log_folder.iterdir():
            path.unlink()  # as if none had been made ahead
        refused = await store.writes.put(message(BIG))
        assert refused.status is PutStatus.CREATE_MAPEDFILE_FAILED
        assert "No space left" in refused.detail and "commitlog" in refused.detail
        assert "No space left" in (store.admission.trouble() or "")
        peer = Peer(store)
        assert len(peer.feed(send_frame())) == 1, "the full decoder has to answer it"
        assert store.log.staged == 0 and list(store.settings.commit_log_folder.iterdir()) == []
        monkeypatch.setattr(Upkeep, "free_bytes", 1 << 30)
        assert store.admission.trouble() is None, "there is room again: the next put may be sent"
        monkeypatch.setattr(Upkeep, "free_bytes", 0)
        door.heal()
        assert (await store.writes.put(message(b"again"))).status is PutStatus.PUT_OK
        assert store.admission.trouble() is None
        peer.feed(send_frame(b"fed"))
        assert (await peer.answered(1))[0]["code"] == 0
        assert [record.body for record in read_queue(store)] == [b"again", b"fed"]


async def test_a_full_disk_at_a_roll_leaves_all_that_was_stored_readable(tmp_path: Path) -> None:
    door = Door()
    door.fail("allocate", segment_name(4096), errno.ENOSPC)
    async with opened(small(tmp_path), door) as store:
        stored = await fill_segment(store)
        for _ in range(3):
            assert (await store.writes.put(message(BIG))).status is PutStatus.CREATE_MAPEDFILE_FAILED
        assert len(read_queue(store)) == stored
        # What still fits into the old segment is taken.
        assert (await store.writes.put(message(b"little"))).status is PutStatus.PUT_OK
        door.heal()
        assert (await store.writes.put(message(BIG))).status is PutStatus.PUT_OK
        assert len(read_queue(store)) == stored + 2


async def test_segments_that_could_not_be_made_ahead_leave_no_gap(tmp_path: Path) -> None:
    door = Door()
    async with opened(small(tmp_path), door) as store:
        await fill_segment(store)
        await until(lambda: store.upkeep._preallocator._task is None)
        for start in (4096, 8192):
            (store.settings.commit_log_folder / segment_name(start)).unlink(missing_ok=True)
        store.upkeep._preallocator._tried_up_to = 8192  # it tried them, and failed
        for _ in range(4):
            await store.writes.put(message(BIG))
            await until(lambda: store.upkeep._preallocator._task is None)
            # Neither cleaning nor a start after a kill meets a gap at any time.
            segments.list_segments(store.settings.commit_log_folder, 4096)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_a_write_that_fails_refuses_its_sends_and_no_others(tmp_path: Path, number: int) -> None:
    door = Door()
    async with opened(small(tmp_path), door) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        await store.writes.put(message(b"before"))
        door.fail("write", "commitlog", number)
        peer = Peer(store)
        peer.feed(send_frame(b"lost", opaque=5))
        refused = await store.writes.put(message(b"lost"))
        assert refused.status is PutStatus.UNKNOWN_ERROR and os.strerror(number) in refused.detail
        [answer] = await peer.answered(1)
        assert (answer["code"], answer["opaque"]) == (1, 5) and os.strerror(number) in answer["remark"]
        assert os.strerror(number) in (store.admission.trouble() or "")
        assert [record.body for record in read_queue(store)] == [b"before"]
        door.heal()
        assert (await store.writes.put(message(b"after"))).queue_offset == 1
        assert store.admission.trouble() is None
        assert [record.body for record in read_queue(store)] == [b"before", b"after"]
    async with opened(small(tmp_path)) as store:
        assert [record.body for record in read_queue(store)] == [b"before", b"after"]


async def test_records_of_a_failed_write_never_come_back(tmp_path: Path) -> None:
    for flush in ({}, {"flushDiskType": SYNC}):
        root = tmp_path / str(len(flush))
        door = Door()
        async with opened(small(root, **flush), door) as store:
            door.tear("commitlog", 10_000)  # all of it gets there, and yet it fails
            lost = await asyncio.gather(*(store.writes.put(message(b"lost%d" % n, queue=n % 2)) for n in range(6)))
            assert {result.status for result in lost} == {PutStatus.UNKNOWN_ERROR}
            # One record of the same size: behind it, the second of the lost ones would begin.
            assert (await store.writes.put(message(b"kept!", queue=1))).status is PutStatus.PUT_OK
        (root / "abort").touch()
        (root / "tally-progress").unlink()
        async with opened(small(root)) as store:
            assert [record.body for record in read_queue(store, queue=1)] == [b"kept!"]
            assert read_queue(store, queue=0) == []


async def test_a_sync_that_fails_ends_puts_until_a_restart(tmp_path: Path) -> None:
    door = Door()
    settings = small(tmp_path, flushDiskType=SYNC)
    async with opened(settings, door) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        assert (await store.writes.put(message(b"safe"))).status is PutStatus.PUT_OK
        door.fail("sync", segment_name(0), errno.EIO, times=1)
        peer = Peer(store)
        peer.feed(send_frame(b"unknown", opaque=3))
        result = await store.writes.put(message(b"unknown"))
        assert not result.status.stored and "could not be flushed" in result.detail
        assert (await peer.answered(1))[0]["code"] == 1
        # A second sync would succeed, and lie: the system may have dropped the pages.
        later = await store.writes.put(message())
        assert later.status is PutStatus.SERVICE_NOT_AVAILABLE and "could not be flushed" in later.detail
        assert "could not be flushed" in (store.admission.failure() or "")
        assert len(peer.feed(send_frame())) == 1, "no queue is hot now"
        assert read_queue(store)[0].body == b"safe"
        with pytest.raises(OSError):
            await store.flush()
    assert (tmp_path / "abort").exists(), "that was no orderly end"
    async with opened(settings) as store:
        assert read_queue(store)[0].body == b"safe"
        assert (await store.writes.put(message())).status is PutStatus.PUT_OK


async def test_an_async_flush_that_fails_is_not_kept_a_secret(tmp_path: Path) -> None:
    door = Door()
    settings = small(tmp_path, flushIntervalCommitLog=1, flushCommitLogThoroughInterval=0)
    async with opened(settings, door) as store:
        await until(lambda: store.upkeep._preallocator._task is None)
        door.fail("sync", segment_name(0), errno.EIO, times=1)
        await store.writes.put(message())
        await until(lambda: not store.admission.writable)
        assert (await store.writes.put(message())).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert len(read_queue(store)) == 1


async def test_queue_files_that_cannot_be_written_cost_nothing_but_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.store.engine.dispatcher.RETRY_MS", 5)
    monkeypatch.setattr("tallystick.store.engine.dispatcher.WRITE_OUT_MS", 5)
    door = Door()
    async with opened(small(tmp_path), door) as store:
        door.fail("write", "consumequeue", errno.ENOSPC)
        for n in range(40):
            assert (await store.writes.put(message(b"%d" % n))).status is PutStatus.PUT_OK
        assert [record.body for record in read_queue(store)] == [b"%d" % n for n in range(40)], "read from memory"
        await until(lambda: store.dispatcher._write_errors.count >= 3)
        assert store.admission.writable
        # After as many tries as RocketMQ makes, puts are refused; when it goes well again, they are taken.
        await until(lambda: not store.admission.writable)
        refused = await store.writes.put(message())
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE and "queue files cannot be written" in refused.detail
        assert len(read_queue(store)) == 40
        door.heal()
        await until(lambda: store.admission.writable, "it never recovered")
        assert (await store.writes.put(message())).status is PutStatus.PUT_OK
        lines = [record for record in caplog.records if "queue files cannot be written" in record.message]
        assert len(lines) == 2, "one when it begins, one when it is over"
    async with opened(small(tmp_path)) as store:
        assert len(read_queue(store)) == 41


async def test_an_index_file_that_cannot_be_made_stops_puts_and_not_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.store.engine.dispatcher.RETRY_MS", 5)
    door = Door()
    async with opened(small(tmp_path), door) as store:
        await store.writes.put(message(b"no key"))
        door.fail("allocate", "/index/", errno.ENOSPC)
        await store.writes.put(message(b"key", properties="KEYS\x01k\x02"))
        for _ in range(50):
            read_queue(store)  # a read may dispatch: it must not meet the error
            store.reads.query("T", "k", 1, 0, 1 << 60)
            await turns(1)
        await until(lambda: not store.admission.writable, "puts continued without an index")
        refused = await store.writes.put(message())
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE and "No space left" in refused.detail
        assert "No space left" in (store.admission.trouble() or "") and "No space left" in (
            store.admission.no_room() or ""
        )
        assert [record.body for record in read_queue(store)] == [b"no key"], "dispatch has not passed the other one"
        assert store.findings.total == 0, "the unit of a record that dispatch has not passed is not wrong"
        assert list((tmp_path / "index").iterdir()) == [], "an empty file would be damage to who looks"
        door.heal()
        await until(lambda: store.admission.writable)
        assert store.admission.no_room() is None
        assert [record.body for record in read_queue(store)] == [b"no key", b"key"]
        assert len(store.reads.query("T", "k", 1, 0, 1 << 60).records) == 1
        assert len([record for record in caplog.records if record.levelname == "ERROR"]) <= 3
    assert not (tmp_path / "abort").exists()


async def test_a_store_closes_and_lets_go_of_its_lock_on_a_full_disk(tmp_path: Path) -> None:
    door = Door()
    store = await MessageStore.open(small(tmp_path), store_host=HOST, door=door)
    await store.writes.put(message(b"kept", properties="KEYS\x01k\x02"))
    for op in ("write", "allocate", "create", "sync", "rename"):
        for part in ("consumequeue", "/index/", "checkpoint", "tally-progress"):
            door.fail(op, part, errno.ENOSPC)
    await store.close()
    assert (tmp_path / "abort").exists()
    async with opened(small(tmp_path)) as store:
        assert [record.body for record in read_queue(store)] == [b"kept"]
        assert len(store.reads.query("T", "k", 1, 0, 1 << 60).records) == 1


async def test_upkeep_that_fails_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    door = Door()
    async with opened(small(tmp_path, flushIntervalConsumeQueue=1, cleanResourceInterval=1), door) as store:
        door.fail("write", "tally-progress", errno.EIO)
        for _ in range(30):
            await store.writes.put(message())
            await asyncio.sleep(0.002)
        assert store.admission.writable
        assert len([record for record in caplog.records if "upkeep" in record.message]) == 1


async def test_a_full_disk_refuses_puts_above_one_mark_and_takes_them_below_another(tmp_path: Path) -> None:
    used = 0.5
    settings = small(
        tmp_path,
        diskSpaceWarningLevelRatio=0.9,
        diskSpaceCleanForciblyRatio=0.85,
        cleanResourceInterval=1,
        cleanFileForciblyEnable=False,
    )
    async with opened(settings) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        store.upkeep._cleaner._used = lambda folder: used
        await until(lambda: store.admission.writable)
        await store.writes.put(message(b"before"))
        used = 0.91
        await until(lambda: not store.admission.writable, "the mark was passed")
        refused = await store.writes.put(message())
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE and "and the limit is 90%" in refused.detail
        assert len(Peer(store).feed(send_frame())) == 1
        assert len(read_queue(store)) == 1
        used = 0.87  # between the two marks it stays as it is
        await asyncio.sleep(0.02)
        assert not store.admission.writable
        used = 0.84
        await until(lambda: store.admission.writable, "puts were never taken again")
        assert (await store.writes.put(message())).status is PutStatus.PUT_OK


async def test_a_nearly_full_disk_gives_up_the_oldest_segments(tmp_path: Path) -> None:
    settings = small(
        tmp_path,
        diskSpaceWarningLevelRatio=0.9,
        diskSpaceCleanForciblyRatio=0.85,
        deleteCommitLogFilesInterval=0,
    )
    async with opened(settings) as store:
        for n in range(60):
            await store.writes.put(message(b"%d" % n * 200))
        await store.flush()
        await until(lambda: store.figures.dispatch_behind_bytes == 0)
        store.upkeep._cleaner._used = lambda folder: 0.86
        store.upkeep._opened_ms -= 60_000  # not in the first minute
        await store.upkeep.clean()
        assert 0 < store.min_pos <= store.max_pos - store.max_pos % 4096
        assert read_queue(store)[-1].body == b"59" * 200
        assert store.admission.writable


# -- on a real file system ---------------------------------------------------------------------------------------------


@pytest.fixture(params=["tmpfs", "ext4"])
def tiny_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A separate file system of 16 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if request.param == "tmpfs":
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place], capture_output=True)
    else:
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(16 << 20)
        try:
            made = subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], capture_output=True)
            if made.returncode == 0:
                made = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True)
        except FileNotFoundError:
            pytest.skip("needs mkfs.ext4")
    if made.returncode != 0:
        pytest.skip(f"needs the right to mount a {request.param}: {made.stderr.decode().strip()}")
    try:
        yield place
    finally:
        gc.collect()  # a closed store's maps go with it
        subprocess.run(["umount", "--lazy", place], check=True)


async def test_a_disk_that_is_really_full(tiny_disk: Path) -> None:
    settings = small(
        tiny_disk / "store",
        mappedFileSizeCommitLog=1 << 20,
        maxIndexNum=2000,
        flushDiskType=SYNC,
        cleanResourceInterval=3_600_000,
    )
    filler = tiny_disk / "filler"
    body = bytes(64 << 10)
    async with opened(settings) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        stored = 0
        while (
            result := await store.writes.put(message(b"%06d" % stored + body, properties="KEYS\x01k\x02"))
        ).status.stored:
            stored += 1
            assert stored < 1000
        assert result.status is PutStatus.CREATE_MAPEDFILE_FAILED and "No space left" in result.detail
        assert stored * len(body) > 8 << 20, "segments made ahead took the room of messages"
        assert "No space left" in (store.admission.trouble() or "")
        # Fill what is left, to the last block: what upkeep writes fails now as well.
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                assert error.errno == errno.ENOSPC
        peer = Peer(store)
        for opaque in range(5):
            assert len(peer.feed(send_frame(body, opaque=opaque))) == 1
            assert not (await store.writes.put(message(body))).status.stored
        await store.upkeep.clean()
        await until(lambda: store.figures.dispatch_behind_bytes == 0)
        assert [int(record.body[:6]) for record in read_queue(store)] == list(range(stored))
        # Space is freed. Deleting old segments would do as well: the log's own cleaning is off here.
        filler.unlink()
        for path in sorted(settings.commit_log_folder.iterdir())[:2]:
            old_s = time.time() - 100 * 3600
            os.utime(path, (old_s, old_s))
        store.upkeep._cleaner.ask()
        await store.upkeep.save(thorough=True)
        await store.upkeep.clean()
        assert store.min_pos == 2 << 20
        await until(lambda: store.admission.trouble() is None, "ready was never told")
        assert (await store.writes.put(message(b"again"))).status is PutStatus.PUT_OK
        peer.feed(send_frame(b"fed"))
        assert (await peer.answered(1))[-1]["code"] == 0
        left = read_queue(store)
        assert [record.body for record in left[-2:]] == [b"again", b"fed"]
    async with opened(settings) as store:
        assert [record.pos for record in read_queue(store)] == [record.pos for record in left]


async def test_a_store_opens_and_reads_on_a_full_disk(tiny_disk: Path) -> None:
    settings = small(tiny_disk / "store", mappedFileSizeCommitLog=1 << 20)
    async with opened(settings) as store:
        for n in range(20):
            await store.writes.put(message(b"%d" % n, properties="KEYS\x01k\x02"))
    filler = tiny_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    async with opened(settings) as store:
        assert [record.body for record in read_queue(store)] == [b"%d" % n for n in range(20)]
        # The old segment has room, and its blocks: puts go on until it is full.
        assert (await store.writes.put(message(b"more"))).status is PutStatus.PUT_OK
    filler.unlink()
    async with opened(settings) as store:
        assert len(read_queue(store)) == 21
