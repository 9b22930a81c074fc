"""What tripped the prototypes of the data plane: each as a test that names it by its number.

6 (a link that its peer resets is closed without a word: the call that waits says why) is test_remoting_client's, 10 (a
load generator must count answers by code) test_load_generator's.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import threading
from pathlib import Path

import pytest
from engine_lab import (
    HOST,
    PEER,
    SYNC,
    Peer,
    answers_in,
    batch_body,
    message,
    opened,
    read_queue,
    records_of,
    send_frame,
    small,
    until,
    walk_log,
)
from tally_process import TallyProcess

from tallystick.node.core.settings import BrokerSettings, HttpSettings, NameServerSettings
from tallystick.store._kernel import Door, Log
from tallystick.store.formats.message import GetStatus, MessageBatch, PutStatus
from tallystick.store.formats.segment_files import segment_name


def make_log(folder: Path, door: Door | None = None, segment_bytes: int = 1 << 16) -> Log:
    log = Log(
        door or Door(),
        str(folder),
        segment_bytes=segment_bytes,
        max_message_bytes=4 << 20,
        store_host=HOST.encode(),
        suffix=b"",
        region="r",
    )
    log.start(0, 0)
    log.set_hot(True)
    log.set_topic(b"T", 4)
    return log


def test_1_an_end_is_never_given_before_its_bytes_are_written(tmp_path: Path) -> None:
    """A sync on one thread, writes on another: what counts as flushed or written is in the files, byte for byte."""
    log = make_log(tmp_path)
    connection = log.connect(PEER.encode())
    frame = send_frame(b"x" * 700) * 8
    stop = threading.Event()
    wrong: list[tuple[int, int]] = []

    def sync_all_the_time() -> None:
        while not stop.is_set():
            before = log.written
            flushed = log.sync()
            after = log.written
            if not before <= flushed <= after or log.flushed > log.written:
                wrong.append((before, flushed))

    thread = threading.Thread(target=sync_all_the_time)
    thread.start()
    try:
        for _ in range(200):
            log.feed(connection, frame, 0)
            staged, written = log.staged, log.written
            assert written <= staged and log.flushed <= written
            walk_log(tmp_path, 1 << 16, max(0, written - written % (1 << 16)), written)
            assert log.write_out() == staged
            log.release(log.flushed, 0)
    finally:
        stop.set()
        thread.join()
    assert wrong == []
    assert len(walk_log(tmp_path, 1 << 16, 0, log.written)) == 1600


async def test_1_dispatch_and_reads_end_at_what_is_written(tmp_path: Path) -> None:
    async with opened(small(tmp_path, transientStorePoolEnable=True, commitIntervalCommitLog=3_600_000)) as store:
        await store.writes.put(message(b"written"))
        await store.flush()
        written = store.max_pos
        await store.writes.put(message(b"only staged"))
        assert [record.body for record in read_queue(store)] == [b"written"]
        assert store.dispatched_pos == written and store.reads.message_at(written) is None
        assert store.log.staged > written


async def test_2_no_answer_cuts_a_record(tmp_path: Path) -> None:
    limits = {"maxTransferBytesOnMessageInMemory": 1000, "mappedFileSizeCommitLog": 1 << 16}
    async with opened(small(tmp_path, **limits)) as store:
        bodies = [bytes([n]) * (n * 97 % 1300) for n in range(60)]
        for body in bodies:
            await store.writes.put(message(body))
        at, found = 0, []
        while at < 60:
            result = store.reads.get_message("T", 0, at, 32)
            assert result.status is GetStatus.FOUND
            records = records_of(result.body)  # fails on a record that is cut
            assert len(records) == result.count == result.next_begin_offset - at
            # One that is larger than the limit comes alone, and whole.
            assert len(result.body) <= 1000 or result.count == 1
            found += [record.body for record in records]
            at = result.next_begin_offset
        assert found == bodies


async def test_3_a_roll_syncs_the_old_segment_before_the_new_one_counts(tmp_path: Path) -> None:
    door = Door()
    async with opened(small(tmp_path, flushDiskType=SYNC), door) as store:
        await until(lambda: store.upkeep._preallocator._task is None)
        door.fail("sync", segment_name(0), errno.EIO)  # only the old one: the new one's sync would succeed
        results = await asyncio.gather(*(store.writes.put(message(bytes(1500))) for _ in range(4)))
        assert store.max_pos > 4096
        assert not any(result.status.stored for result in results)
        assert store.flushed_pos == 0


async def test_3_bytes_behind_the_filler_are_no_log(tmp_path: Path) -> None:
    settings = small(tmp_path)
    async with opened(settings) as store:
        for n in range(4):
            await store.writes.put(message(bytes([n]) * 1500))
    old = settings.commit_log_folder / segment_name(0)
    data = bytearray(old.read_bytes())
    filler = data.rindex(struct.pack(">i", -875286124)) - 4
    data[filler + 8 :] = data[: 4096 - filler - 8]  # a whole record's head, just behind the filler's
    old.write_bytes(data)
    for mark in ("tally-progress", "checkpoint"):
        (tmp_path / mark).unlink()
    (tmp_path / "abort").touch()
    async with opened(settings) as store:
        assert [record.body[0] for record in read_queue(store)] == [0, 1, 2, 3]


async def test_4_a_batch_is_put_whole_or_not_at_all(tmp_path: Path) -> None:
    door = Door()
    async with opened(small(tmp_path), door) as store:
        body = batch_body((b"one", b""), (b"two", b""), (bytes(4000), b""))
        before = store.log.staged, store.log.next_offset(b"T", 0)
        result = await store.writes.put_batch(MessageBatch("T", 0, body, born_host=PEER))
        assert result.status is PutStatus.MESSAGE_ILLEGAL
        assert (store.log.staged, store.log.next_offset(b"T", 0)) == before
        door.tear("commitlog", 150)  # after the first of its records
        torn = await store.writes.put_batch(MessageBatch("T", 0, batch_body((b"a", b""), (b"b", b"")), born_host=PEER))
        assert torn.status is PutStatus.UNKNOWN_ERROR
        assert (store.log.staged, store.log.next_offset(b"T", 0)) == before


async def test_5_a_closed_client_does_not_stop_the_answers_of_others(tmp_path: Path) -> None:
    async with opened(small(tmp_path, flushDiskType=SYNC)) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        peers = [Peer(store) for _ in range(5)]
        for peer in peers:
            peer.feed(send_frame() * 3)
        for gone in peers[::2]:
            store.connections.detach(gone.id)
        for peer in peers[1::2]:
            assert len(await peer.answered(3)) == 3
        assert all(gone.answers == [] for gone in peers[::2])


def test_5_connections_reset_under_load_do_not_stop_other_clients(tmp_path: Path) -> None:
    with TallyProcess(tmp_path, "--set", "flushDiskType=SYNC_FLUSH") as process:
        host, _, port = process.places["broker"].rpartition(":")

        def connect() -> socket.socket:
            link = socket.create_connection((host, int(port)), timeout=10)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return link

        def read(link: socket.socket, count: int) -> list[dict]:
            data = b""
            found: list[dict] = []
            while len(found) < count:
                data += link.recv(1 << 16)
                while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4], "big")):
                    found += answers_in(data[:size])
                    data = data[size:]
            return found

        with connect() as steady:
            steady.sendall(send_frame(opaque=0))  # makes the topic
            read(steady, 1)
            for number in range(100):
                with connect() as rude:
                    rude.sendall(send_frame(b"x" * 100) * 20)
                steady.sendall(send_frame(opaque=number) * 5)
                assert [answer["opaque"] for answer in read(steady, 5)] == [number] * 5
        assert process.end() == 0
        assert "Traceback" not in process.log.read_text()


async def test_7_many_queues_cost_little_disk_and_no_first_touch(tmp_path: Path) -> None:
    settings = small(tmp_path, mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=6_000_000)
    async with opened(settings) as store:
        for queue in range(300):
            await store.writes.put(message(b"x", queue=queue))
        await until(lambda: store.figures.dispatch_behind_bytes == 0)
        await store.upkeep.save(thorough=True)
        files = list((tmp_path / "consumequeue").glob("*/*/*"))
        assert len(files) == 300
        assert {file.stat().st_size for file in files} == {6_000_000}
        assert max(file.stat().st_blocks * 512 for file in files) <= 8192


def test_8_no_default_port_is_one_that_clients_are_given() -> None:
    # From 32768 on, the system gives ports to outgoing connections: one of them may have ours when we start.
    settings = BrokerSettings()
    ports = [settings.listenPort, settings.listenPort + 1, NameServerSettings().listenPort, HttpSettings().port]
    assert all(0 < port < 32_768 for port in ports)


async def test_9_all_that_is_appended_is_dispatched(tmp_path: Path) -> None:
    async with opened(small(tmp_path, mappedFileSizeCommitLog=1 << 20)) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        peer = Peer(store)
        for n in range(100):
            peer.feed(b"".join(send_frame(b"x" * 300, queue=q) for q in range(4)) * 5)
            if n % 10 == 0:
                await asyncio.sleep(0)
        await peer.answered(2000)
        await until(lambda: store.figures.dispatch_behind_bytes == 0)
        assert store.dispatched_pos == store.max_pos == store.log.staged
        assert sum(store.queues.max_offset("T", queue) for queue in range(4)) == 2000
        assert [len(read_queue(store, queue=queue)) for queue in range(4)] == [500] * 4


@pytest.mark.parametrize("filler", [8, 9, 50])
async def test_3_a_filler_of_every_size_ends_its_segment(tmp_path: Path, filler: int) -> None:
    async with opened(small(tmp_path)) as store:
        first = await store.writes.put(message(b""))
        body = 4096 - filler - first.size - first.size
        await store.writes.put(message(bytes(body)))
        assert store.log.staged == 4096 - filler
        await store.writes.put(message(b"next"))
        records = read_queue(store)
        assert [record.pos for record in records] == [0, first.size, 4096]
    async with opened(small(tmp_path)) as store:
        assert len(read_queue(store)) == 3
