"""The log under power loss: what it called flushed is there, record by record, whatever else the disk kept."""

import errno
import random

import pytest

from tallystick.store._kernel import Door, Log
from tallystick.store.formats.message import Host
from tallystick.store.formats.record import Record, RecordError, filler_bytes

SEGMENT_BYTES = 4096
HOST = Host("127.0.0.1", 10911).encode()


def open_log(door, folder):
    door.mkdir(folder)
    log = Log(
        door,
        str(folder),
        segment_bytes=SEGMENT_BYTES,
        max_message_bytes=2000,
        store_host=HOST,
        suffix=b"",
        region="r",
    )
    log.start(0, 0)
    return log


def append(log, body):
    return log.append(b"topic", 0, body, b"", now_ms=1000, born_timestamp=1, born_host=HOST)


def bodies(folder, end):
    """The bodies of the log's records below `end`. RecordError: one is not whole."""
    found, pos = [], 0
    while pos < end:
        start = pos - pos % SEGMENT_BYTES
        data = (folder / f"{start:020d}").read_bytes()
        assert len(data) == SEGMENT_BYTES
        if (filler := filler_bytes(data, pos - start)) is not None:
            pos += filler
            continue
        record = Record.decode(data, pos - start)
        assert record.pos == pos
        found.append(record.body)
        pos += record.size
    return found


def wander(door, folder, dice):
    """Appends, writes and syncs at random; returns what was flushed, and the end of it."""
    log = open_log(door, folder)
    put, flushed, end = [], 0, 0
    for number in range(dice.randrange(10, 60)):
        body = number.to_bytes(4, "big") * dice.randrange(1, 200)
        append(log, body)
        put.append(body)
        if dice.random() < 0.6:
            log.write_out()
            if dice.random() < 0.4:
                end, flushed = log.sync(), len(put)
    return put[:flushed], end


@pytest.mark.parametrize("seed", range(60))
def test_flushed_stays(tmp_path, seed):
    door = Door(record=True)
    folder = tmp_path / "commitlog"
    flushed, end = wander(door, folder, random.Random(seed))
    door.crash(seed, keep=0.0 if seed % 3 == 0 else None)
    assert bodies(folder, end) == flushed


def test_a_filler_of_exactly_eight_bytes(tmp_path):
    """14 records of 292 bytes leave 8: the filler ends where the next segment begins."""
    log = open_log(Door(), tmp_path)
    for _ in range(16):
        append(log, b"x" * 196)
        log.write_out()
    assert bodies(tmp_path, log.sync()) == [b"x" * 196] * 16


@pytest.mark.parametrize("op", ["sync", "sync_dir"])
def test_a_sync_left_out_is_seen(tmp_path, op):
    seen = 0
    for seed in range(20):
        door = Door(record=True)
        door.lie(op, "commitlog")
        folder = tmp_path / str(seed) / "commitlog"
        flushed, end = wander(door, folder, random.Random(seed))
        door.crash(seed)
        try:
            seen += bodies(folder, end) != flushed
        except (RecordError, FileNotFoundError, AssertionError):
            seen += 1
    assert seen >= 10


def test_a_sync_that_failed_is_not_repaired_by_the_next(tmp_path):
    door = Door(record=True)
    folder = tmp_path / "commitlog"
    log = open_log(door, folder)
    append(log, b"first")
    log.write_out()
    end = log.sync()
    append(log, b"second")
    log.write_out()
    door.fail("sync", "commitlog", errno.EIO, times=1)
    for _ in range(2):
        with pytest.raises(OSError):
            log.sync()
    assert log.flushed == end
    door.crash(1, keep=0.0)
    assert bodies(folder, end) == [b"first"]
