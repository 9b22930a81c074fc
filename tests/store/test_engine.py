"""MessageStore as a whole: puts and feeds, what they wait for, reads, rolls, cleaning, segments made ahead."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from engine_lab import (
    BORN_MS,
    HOST,
    PEER,
    SYNC,
    Peer,
    batch_body,
    message,
    opened,
    read_queue,
    records_of,
    send_frame,
    small,
    turns,
    until,
    walk_log,
)

from tallystick.store._kernel import Door
from tallystick.store.engine.lock import StoreLockedError
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.formats.message import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    GetStatus,
    Host,
    MessageBatch,
    PutStatus,
)
from tallystick.store.formats.message_id import decode_message_id
from tallystick.store.formats.segment_files import segment_name
from tallystick.store.settings import BrokerRole, SettingsError


@contextmanager
def blocked_syncs(store: MessageStore) -> Iterator[int]:
    """No flush of the log begins inside; those that were asked for begin behind it. Yields what counts the requests."""
    thread = store.appender._sync_thread
    real, thread._requests = thread._requests, os.eventfd(0, os.EFD_NONBLOCK)
    held = thread._requests
    try:
        yield held
    finally:
        thread._requests = real
        try:
            os.eventfd_write(real, os.eventfd_read(held))
        except BlockingIOError:
            pass  # none was asked for
        os.close(held)


def segments(store: MessageStore) -> list[str]:
    return sorted(path.name for path in store.settings.commit_log_folder.iterdir())


# -- put, get, and what a record says ----------------------------------------------------------------------------------


async def test_what_is_put_is_read_queried_and_found_by_its_place(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        begin_ms = time.time_ns() // 1_000_000
        results = [
            await store.writes.put(
                message(
                    b"%d" % n, queue=n % 2, properties=f"KEYS\x01k{n} all\x02TAGS\x01A\x02", flag=n, reconsume_times=n
                )
            )
            for n in range(6)
        ]
        assert [result.status for result in results] == [PutStatus.PUT_OK] * 6
        assert [result.queue_offset for result in results] == [0, 0, 1, 1, 2, 2]
        for queue in (0, 1):
            assert [record.body for record in read_queue(store, queue=queue)] == [b"%d" % n for n in range(queue, 6, 2)]
        record = read_queue(store, queue=1)[1]
        assert (record.flag, record.reconsume_times, record.queue_id, record.topic) == (3, 3, 1, "T")
        assert (record.born_host, record.store_host, record.born_timestamp_ms) == (PEER, HOST, BORN_MS)
        assert begin_ms <= record.store_timestamp_ms <= time.time_ns() // 1_000_000
        host, pos = decode_message_id(results[3].message_id)
        assert (host, pos) == (HOST, results[3].pos) == (HOST, record.pos)
        found = store.reads.query("T", "k3", 32, 0, 1 << 60)
        assert [one.body for one in records_of(b"".join(found.records))] == [b"3"]
        assert len(store.reads.query("T", "all", 32, 0, 1 << 60).records) == 6
        assert store.reads.query("T", "nobody", 32, 0, 1 << 60).records == []
        assert store.reads.units("T", 1, 1, 5) == [(r.pos, r.size, 65) for r in results[3::2]]
        assert store.queues.names() == [("T", 0), ("T", 1)]
        assert store.reads.message_at(record.pos + 1) is None and store.reads.message_at(-1) is None
        assert store.reads.message_at(store.max_pos) is None


async def test_a_time_finds_the_message_or_its_nearer_neighbour(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        stored = []
        for n in range(40):  # over several segments of log and queue
            stored.append((await store.writes.put(message(b"%d" % n * 40))).store_timestamp_ms)
            await asyncio.sleep(0.001)
        for offset, stored_ms in enumerate(stored):
            assert store.reads.store_time("T", 0, offset) == stored_ms
            assert stored[store.reads.offset_by_time("T", 0, stored_ms)] == stored_ms
        assert store.reads.offset_by_time("T", 0, 0) == 0
        assert store.reads.offset_by_time("T", 0, stored[-1] + 1000) == 39  # RocketMQ: the last one, not the end
        assert store.reads.earliest_store_time("T", 0) == stored[0]
        assert store.reads.earliest_store_time("T", 9) == -1 and store.reads.store_time("T", 0, 40) == -1


async def test_reads_out_of_range_name_a_better_offset(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        assert store.reads.get_message("T", 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
        for _ in range(3):
            await store.writes.put(message())
        at_end = store.reads.get_message("T", 0, 3, 32)
        assert (at_end.status, at_end.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 3)
        beyond = store.reads.get_message("T", 0, 9, 32)
        assert (beyond.status, beyond.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 0)
        below = store.reads.get_message("T", 0, -5, 32)
        assert (below.status, below.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, 0)
        assert store.reads.get_message("T", 7, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE


async def test_ipv6_hosts_set_their_bits_on_every_way_in(tmp_path: Path) -> None:
    born = Host("2001:db8::7", 5)
    store = await MessageStore.open(small(tmp_path), store_host=Host("::1", 10911))
    try:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        await store.writes.put(message(born_host=born))
        await store.writes.put(message(born_host=PEER, sys_flag=0x10))  # a wrong bit of the sender's is put right
        await store.writes.put_batch(MessageBatch("T", 0, batch_body((b"b", b"")), born_host=born))
        peer = Peer(store, born)
        assert peer.feed(send_frame(b"fed")) == []
        [answer] = await peer.answered(1)
        records = read_queue(store)
        assert [(r.born_host, r.sys_flag & 0x30) for r in records] == [
            (born, 0x30),
            (PEER, 0x20),
            (born, 0x30),
            (born, 0x30),
        ]
        assert all(record.store_host == Host("::1", 10911) for record in records)
        assert answer["extFields"]["msgId"] == records[3].message_id and len(records[3].message_id) == 56
    finally:
        await store.close()


async def test_names_and_lengths_at_their_limits(tmp_path: Path) -> None:
    async with opened(small(tmp_path, mappedFileSizeCommitLog=256 << 10, maxMessageSize=100_000)) as store:
        longest = "t" * 127
        assert (await store.writes.put(message(topic=longest))).status is PutStatus.PUT_OK
        assert read_queue(store, longest)[0].topic == longest
        properties = "k\x01" + "v" * (32767 - 3) + "\x02"
        assert (await store.writes.put(message(properties=properties))).status is PutStatus.PUT_OK
        size = 100_000 - 91 - 1
        assert (await store.writes.put(message(bytes(size)))).status is PutStatus.PUT_OK
        end = store.log.staged
        for bad, why in (
            (message(topic="t" * 128), "topic has 128 bytes"),
            (message(properties=properties[:-1] + "v\x02"), "properties string has 32768 bytes"),
            (message(properties="k\x01" + "é" * 16383 + "v\x02"), "properties string has 32770 bytes"),
            (message(bytes(size + 1)), "record has 100001 bytes"),
            (message(queue=-1), "queue -1 is negative"),
        ):
            result = await store.writes.put(bad)
            assert result.status is PutStatus.MESSAGE_ILLEGAL and why in result.detail
        await until(lambda: store.figures.dispatch_behind_bytes == 0)  # too much to be dispatched by a read
        assert store.log.staged == end and store.queues.max_offset("T", 0) == 2
    async with opened(small(tmp_path / "tiny")) as store:
        result = await store.writes.put(message(bytes(4096)))
        assert result.status is PutStatus.MESSAGE_ILLEGAL and "do not fit into a segment" in result.detail


async def test_a_batch_is_stored_in_one_place_or_not_at_all(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        await store.writes.put(message(bytes(3800)))  # so that the batch does not fit behind it
        body = batch_body((b"one", b"KEYS\x01k\x02"), (b"two", b"TAGS\x01B"), (b"three", b""))
        result = await store.writes.put_batch(MessageBatch("T", 1, body, "CLUSTER\x01c\x02", born_host=PEER))
        assert (result.status, result.count, result.queue_offset, result.pos) == (PutStatus.PUT_OK, 3, 0, 4096)
        records = read_queue(store, queue=1)
        assert [record.body for record in records] == [b"one", b"two", b"three"]
        assert [record.properties for record in records] == [
            "KEYS\x01k\x02CLUSTER\x01c\x02",
            "TAGS\x01B\x02CLUSTER\x01c\x02",
            "CLUSTER\x01c\x02",
        ]
        assert result.message_id == ",".join(record.message_id for record in records)
        assert sum(record.size for record in records) == result.size
        for broken in (b"", body[:-1], body + b"\0", b"\xff" * 40):
            refused = await store.writes.put_batch(MessageBatch("T", 1, broken, born_host=PEER))
            assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert store.queues.max_offset("T", 1) == 3


async def test_prepared_messages_take_no_queue_offset(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        half = await store.writes.put(message(b"half", sys_flag=TRANSACTION_PREPARED, properties="UNIQ_KEY\x01u\x02"))
        whole = await store.writes.put(
            message(b"whole", sys_flag=TRANSACTION_COMMIT, prepared_transaction_offset=half.pos)
        )
        assert (half.queue_offset, whole.queue_offset) == (0, 0)
        assert [record.body for record in read_queue(store)] == [b"whole"]
        assert len(store.reads.query("T", "u", 1, 0, 1 << 60).records) == 1


# -- ASYNC_FLUSH and SYNC_FLUSH ----------------------------------------------------------------------------------------


async def test_async_flush_answers_what_is_written_and_flushes_by_time(tmp_path: Path) -> None:
    settings = small(tmp_path, flushCommitLogThoroughInterval=0, flushIntervalCommitLog=1, flushCommitLogTimed=True)
    async with opened(settings) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        with blocked_syncs(store):
            peer = Peer(store)
            peer.feed(send_frame())
            await peer.answered(1)
            assert (await store.writes.put(message())).status is PutStatus.PUT_OK
            assert store.flushed_pos == 0 < store.max_pos
            assert len(read_queue(store)) == 2  # readable, although not on the disk
        await until(lambda: store.flushed_pos == store.max_pos, "the timer never flushed")


async def test_async_flush_flushes_by_pages_between_times(tmp_path: Path) -> None:
    settings = small(
        tmp_path, mappedFileSizeCommitLog=1 << 20, flushCommitLogLeastPages=4, flushIntervalCommitLog=3_600_000
    )
    async with opened(settings) as store:
        await store.writes.put(message())  # the first look is thorough
        await until(lambda: store.flushed_pos == store.max_pos)
        before = store.flushed_pos
        await store.writes.put(message(bytes(3 * 4096 - 500)))
        await turns()
        assert store.flushed_pos == before
        await store.writes.put(message(bytes(4096)))
        await until(lambda: store.flushed_pos == store.max_pos, "four pages were not flushed")


async def test_sync_flush_answers_nothing_before_a_sync_that_covers_it(tmp_path: Path) -> None:
    async with opened(small(tmp_path, flushDiskType=SYNC)) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        peer = Peer(store)
        with blocked_syncs(store):
            peer.feed(send_frame(opaque=1) + send_frame(opaque=2))
            putting = asyncio.create_task(store.writes.put(message()))
            unwaited = await store.writes.put(message(properties="WAIT\x01false\x02"))
            await turns(50)
            assert store.max_pos > 0 == store.flushed_pos
            assert unwaited.status is PutStatus.PUT_OK
            assert peer.answers == [] and not putting.done() and store.log.waiting == 2
        assert (await putting).status is PutStatus.PUT_OK
        await peer.answered(2)
        assert store.flushed_pos == store.max_pos


async def test_every_sync_flush_answer_names_a_record_that_survives_power_loss(tmp_path: Path) -> None:
    for seed in range(4):
        root = tmp_path / str(seed)
        door = Door(record=True)
        store = await MessageStore.open(small(root, flushDiskType=SYNC), store_host=HOST, door=door)
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        peer = Peer(store)
        for n in range(30):
            peer.feed(send_frame(b"%d" % n * 30, opaque=n, properties="TAGS\x01A\x02") * 3)
            if n % 7 == seed:
                await peer.answered(n)
        answered = list(peer.answers)
        door.crash(seed, 0.0)  # all that no sync covers is gone, and the files answer EIO from now on
        await store.close()
        folder = store.settings.commit_log_folder
        last = max(int(a["extFields"]["msgId"][16:], 16) for a in answered) if answered else 0
        places = {record.pos for record in walk_log(folder, 4096, 0, last)} | {last}
        assert all(int(a["extFields"]["msgId"][16:], 16) in places for a in answered)


async def test_one_sync_answers_all_that_gathered_meanwhile(tmp_path: Path) -> None:
    door = Door()
    async with opened(small(tmp_path, flushDiskType=SYNC, mappedFileSizeCommitLog=1 << 20), door) as store:
        await store.writes.put(message())
        # The first mark of progress is synced in the background, and would be counted.
        await next(task for task in store.upkeep._tasks if task.get_name() == "save-at-start")
        before = door.counts()["sync"]
        with blocked_syncs(store):
            putting = [asyncio.create_task(store.writes.put(message(b"%d" % n))) for n in range(200)]
            await turns()
        results = await asyncio.gather(*putting)
        assert {result.status for result in results} == {PutStatus.PUT_OK}
        assert door.counts()["sync"] - before <= 3, "200 messages need one or two flushes"


async def test_a_slow_flush_is_reported_and_the_message_is_stored(tmp_path: Path) -> None:
    async with opened(small(tmp_path, flushDiskType=SYNC, syncFlushTimeout=30)) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        peer = Peer(store)
        with blocked_syncs(store):
            peer.feed(send_frame(opaque=8))
            result = await store.writes.put(message())
            assert result.status is PutStatus.FLUSH_DISK_TIMEOUT and result.status.stored
            assert result.message_id and result.queue_offset == 1
            [answer] = await peer.answered(1)
            assert (answer["code"], answer["opaque"], answer["extFields"]["queueOffset"]) == (10, 8, "0")
        assert len(read_queue(store)) == 2
        await until(lambda: store.flushed_pos == store.max_pos, "the late sync never came")
        assert len(peer.answers) == 1, "it was answered before"


async def test_an_earlier_sync_by_upkeep_answers_all_that_wait(tmp_path: Path) -> None:
    # Upkeep syncs the log on its own thread. If that happens between a write and the look at what there is to sync,
    # nothing is left to sync, and the answers have to go all the same.
    async with opened(small(tmp_path, flushDiskType=SYNC)) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        log = store.log

        class SyncsAtOnce:
            def __getattr__(self, name: str) -> object:
                return getattr(log, name)

            def write_out(self) -> int:
                written = log.write_out()
                log.sync()
                return written

        store.appender.log = SyncsAtOnce()  # type: ignore[assignment]
        peer = Peer(store)
        peer.feed(send_frame())
        async with asyncio.timeout(2):
            assert (await store.writes.put(message())).status is PutStatus.PUT_OK
        await peer.answered(1)
        store.appender.log = log


async def test_flush_returns_when_all_is_on_disk(tmp_path: Path) -> None:
    async with opened(small(tmp_path, flushIntervalCommitLog=3_600_000)) as store:
        for n in range(100):
            await store.writes.put(message(b"%d" % n * 20))
        await asyncio.gather(store.flush(), store.flush())
        assert store.flushed_pos == store.max_pos == store.log.staged


# -- the transient store pool ------------------------------------------------------------------------------------------


async def test_with_the_pool_sends_are_answered_when_staged_and_read_when_committed(tmp_path: Path) -> None:
    settings = small(tmp_path, transientStorePoolEnable=True, commitIntervalCommitLog=3_600_000)
    async with opened(settings) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        peer = Peer(store)
        peer.feed(send_frame())
        assert (await store.writes.put(message())).status is PutStatus.PUT_OK
        await peer.answered(1)
        assert store.max_pos == 0 < store.log.staged
        assert store.reads.get_message("T", 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
        await store.flush()
        assert len(read_queue(store)) == 2
    async with opened(settings) as store:  # an orderly end commits
        assert len(read_queue(store)) == 2


async def test_the_pool_commits_by_pages_and_by_time(tmp_path: Path) -> None:
    settings = small(
        tmp_path,
        transientStorePoolEnable=True,
        mappedFileSizeCommitLog=1 << 20,
        commitIntervalCommitLog=1,
        commitCommitLogLeastPages=4,
        commitCommitLogThoroughInterval=3_600_000,
    )
    async with opened(settings) as store:
        await store.writes.put(message())
        await asyncio.sleep(0.02)  # some looks of the timer
        assert store.max_pos == 0
        await store.writes.put(message(bytes(4 * 4096)))
        await until(lambda: store.max_pos == store.log.staged, "four pages were not committed")
    async with opened(replace(settings, commitCommitLogThoroughInterval=5)) as store:
        before = store.max_pos
        await store.writes.put(message())
        await until(lambda: store.max_pos == store.log.staged > before, "the time did not commit")


async def test_the_pool_holds_no_more_than_its_size(tmp_path: Path) -> None:
    settings = small(
        tmp_path, transientStorePoolEnable=True, transientStorePoolSize=2, commitIntervalCommitLog=3_600_000
    )
    async with opened(settings) as store:
        for _ in range(40):
            await store.writes.put(message(bytes(500)))
            await turns(3)
            assert store.log.staged - store.max_pos <= 2 * 4096 + 700
        assert store.max_pos > 0
        assert int(store.figures.runtime_info()["remainTransientStoreBufferNumbs"]) <= 2


# -- feeds -------------------------------------------------------------------------------------------------------------


async def test_fed_sends_roll_over_segments_and_equal_what_a_put_stores(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        peers = [Peer(store, Host("10.0.0.1", 1000 + n)) for n in range(3)]
        for n in range(60):
            peers[n % 3].feed(send_frame(b"%03d" % n * 40, queue=n % 4, opaque=n, properties="TAGS\x01A\x02"))
            if n % 5 == 0:
                await turns(2)
        for peer in peers:
            answers = await peer.answered(20)
            assert [answer["opaque"] for answer in answers] == sorted(answer["opaque"] for answer in answers)
            assert {answer["code"] for answer in answers} == {0}
        assert store.max_pos > 2 * 4096
        records = walk_log(store.settings.commit_log_folder, 4096, 0, store.max_pos)
        assert [record.body for record in records] == [b"%03d" % n * 40 for n in range(60)]
        for queue in range(4):
            assert [record.pos for record in read_queue(store, queue=queue)] == [
                record.pos for record in records if record.queue_id == queue
            ]
        await store.writes.put(
            message(
                b"x", properties="TAGS\x01A\x02CLUSTER\x01DefaultCluster\x02", flag=7, born_host=Host("10.0.0.1", 1000)
            )
        )
        peers[0].feed(send_frame(b"x", properties="TAGS\x01A\x02"))
        await peers[0].answered(21)
        put, fed = read_queue(store)[-2:]
        assert put._replace(pos=0, queue_offset=0, store_timestamp_ms=0) == fed._replace(
            pos=0, queue_offset=0, store_timestamp_ms=0
        )


async def test_chunks_may_be_cut_anywhere(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        peer = Peer(store)
        cold = send_frame(b"cold", code=10)
        stream = b"".join(send_frame(b"%d" % n, opaque=n) + cold for n in range(10))
        frames = [frame for at in range(len(stream)) for frame in peer.feed(stream[at : at + 1])]
        assert [body for _, _, body in frames] == [b"cold"] * 10
        assert [answer["opaque"] for answer in await peer.answered(10)] == list(range(10))


async def test_nothing_is_hot_while_puts_are_refused(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(False)
        peer = Peer(store)
        assert len(peer.feed(send_frame())) == 1
        store.admission.set_hot(True)
        assert peer.feed(send_frame()) == []
        store.connections.detach(peer.id)
        with pytest.raises(KeyError):
            store.connections.feed(peer.id, b"")


async def test_a_closed_connections_answers_are_dropped_and_others_come(tmp_path: Path) -> None:
    async with opened(small(tmp_path, flushDiskType=SYNC)) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        gone, stays = Peer(store), Peer(store)
        with blocked_syncs(store):
            gone.feed(send_frame())
            stays.feed(send_frame())
            await turns()
            store.connections.detach(gone.id)
        await stays.answered(1)
        assert gone.answers == [] and store.log.waiting == 0


# -- arrivals, topics --------------------------------------------------------------------------------------------------


async def test_watched_queues_are_reported_when_they_grow(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        reported: list[tuple[str, int]] = []
        came = asyncio.Event()

        def on_arrival(queues: list[tuple[str, int]]) -> None:
            for topic, queue in queues:  # what is reported can be read
                assert store.queues.max_offset(topic, queue) > 0
            reported.extend(queues)
            came.set()

        store.queues.on_arrival = on_arrival
        store.queues.watch("T", 1)
        await store.writes.put(message(queue=0))
        await store.writes.put(message(queue=1))
        async with asyncio.timeout(5):
            await came.wait()
        assert reported == [("T", 1)]
        store.queues.unwatch("T", 1)
        await store.writes.put(message(queue=1))
        await until(lambda: store.figures.dispatch_behind_bytes == 0)
        assert reported == [("T", 1)]


async def test_a_removed_topic_begins_again_at_zero(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        for _ in range(5):
            await store.writes.put(message())
        await store.writes.put(message(topic="other"))
        await store.writes.put(message(topic="SCHEDULE_TOPIC_XXXX"))
        assert store.queues.clean_unused_topics({"other"}) == {"T": 5}, "topics with messages stay"
        assert store.queues.max_offset("T", 0) == 5
        store.queues.remove_topic("T")
        assert store.queues.clean_unused_topics({"other"}) == {}
        assert store.queues.names() == [("SCHEDULE_TOPIC_XXXX", 0), ("other", 0)]
        assert store.queues.max_offset("T", 0) == 0
        assert (await store.writes.put(message(b"again"))).queue_offset == 0
        assert [record.body for record in read_queue(store)] == [b"again"]
    async with opened(small(tmp_path)) as store:
        assert [record.body for record in read_queue(store)] == [b"again"]


async def test_a_topic_removed_while_its_messages_are_on_their_way_leaves_nothing_behind(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        for _ in range(3):
            await store.writes.put(message())
        putting = asyncio.create_task(store.writes.put(message(b"in progress")))
        await asyncio.sleep(0)  # staged, not written
        store.queues.remove_topic("T")
        await putting
        await store.writes.put(message(b"new one"))
        await until(lambda: store.figures.dispatch_behind_bytes == 0)
        bodies = [record.body for record in read_queue(store)]
        assert bodies[-1] == b"new one", "a message that was acknowledged must be readable"


# -- who may write -----------------------------------------------------------------------------------------------------


async def test_a_closed_store_refuses_puts_and_can_be_opened_again(tmp_path: Path) -> None:
    settings = small(tmp_path)
    store = await MessageStore.open(settings, store_host=HOST)
    with pytest.raises(StoreLockedError):
        await MessageStore.open(settings, store_host=HOST)
    await store.writes.put(message())
    putting = [asyncio.create_task(store.writes.put(message(b"%d" % n))) for n in range(5)]
    await asyncio.sleep(0)
    await store.close()
    assert {result.status for result in await asyncio.gather(*putting)} <= {
        PutStatus.PUT_OK,
        PutStatus.SERVICE_NOT_AVAILABLE,
    }
    refused = await store.writes.put(message())
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE and "shut down" in refused.detail
    batch = await store.writes.put_batch(MessageBatch("T", 0, batch_body((b"x", b""))))
    assert batch.status is PutStatus.SERVICE_NOT_AVAILABLE
    await store.close()  # a second time does nothing
    assert not (tmp_path / "abort").exists()
    async with opened(settings) as again:
        assert again.recovered.clean and len(read_queue(again)) >= 1


async def test_a_slave_takes_no_puts(tmp_path: Path) -> None:
    async with opened(small(tmp_path, brokerRole=BrokerRole.SLAVE)) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        assert len(Peer(store).feed(send_frame())) == 1
        result = await store.writes.put(message())
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE and "slave" in result.detail


async def test_settings_that_cannot_be_used_change_nothing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as raised:
        await MessageStore.open(small(tmp_path / "new", mappedFileSizeCommitLog=1), store_host=HOST)
    assert raised.value.key == "mappedFileSizeCommitLog"
    assert not (tmp_path / "new").exists()


async def test_a_slow_write_makes_puts_busy_for_a_moment(tmp_path: Path) -> None:
    async with opened(small(tmp_path, osPageCacheBusyTimeOutMills=50)) as store:
        store.connections.set_topic("T", 4)
        store.admission.set_hot(True)
        log = store.log

        class Slow:
            def __getattr__(self, name: str) -> object:
                return getattr(log, name)

            def write_out(self) -> int:
                time.sleep(0.06)
                return log.write_out()

        store.appender.log = Slow()  # type: ignore[assignment]
        assert (await store.writes.put(message())).status is PutStatus.PUT_OK
        assert store.admission.is_busy
        refused = await store.writes.put(message())
        assert refused.status is PutStatus.OS_PAGECACHE_BUSY
        assert len(Peer(store).feed(send_frame())) == 1, "a busy store takes no short way"
        store.appender.log = log
        await until(lambda: not store.admission.is_busy)
        assert (await store.writes.put(message())).status is PutStatus.PUT_OK
        await until(lambda: Peer(store).feed(send_frame()) == [], "the short way never opened again")


# -- segments made ahead, and old ones deleted -------------------------------------------------------------------------


async def test_two_segments_are_ready_ahead_and_the_unused_go_at_the_end(tmp_path: Path) -> None:
    settings = small(tmp_path)
    async with opened(settings) as store:
        await until(lambda: segments(store) == [segment_name(n * 4096) for n in (0, 1)], "none was made ahead")
        await store.writes.put(message(bytes(3000)))
        await store.writes.put(message(bytes(3000)))
        await until(lambda: segments(store) == [segment_name(n * 4096) for n in range(4)])
        made = [path.stat for path in settings.commit_log_folder.iterdir()]
        await until(lambda: all(stat().st_size == 4096 and stat().st_blocks * 512 >= 4096 for stat in made))
    assert segments(store) == [segment_name(0), segment_name(4096)]
    async with opened(settings) as store:
        assert len(read_queue(store)) == 2
    assert segments(store) == [segment_name(0), segment_name(4096)]


async def test_on_a_small_disk_the_next_segment_comes_when_the_last_one_is_half_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = SimpleNamespace(f_bavail=31, f_frsize=4096, f_blocks=100, f_bfree=90)
    monkeypatch.setattr("tallystick.store.engine.preallocation.os.statvfs", lambda folder: few)

    async def settled(store: MessageStore) -> int:
        await until(lambda: store.upkeep._preallocator._task is None)
        return len(segments(store))

    async with opened(small(tmp_path)) as store:
        assert await settled(store) == 1
        await store.writes.put(message(bytes(1800)))
        assert await settled(store) == 1, "less than half of the first one"
        await store.writes.put(message(bytes(300)))
        assert await settled(store) == 2
        await store.writes.put(message(bytes(2500)))  # rolls
        assert await settled(store) == 3
        few.f_bavail = 32
        await store.writes.put(message(bytes(2500)))  # rolls again, and the disk is no longer small
        assert await settled(store) == 5
        assert len(read_queue(store)) == 4


async def test_an_empty_store_leaves_no_segment(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        await until(lambda: len(segments(store)) == 2)
    assert segments(store) == []


async def test_warm_segments_hold_what_cold_ones_do(tmp_path: Path) -> None:
    for flush in ({}, {"flushDiskType": SYNC}):
        settings = small(tmp_path / str(len(flush)), warmMapedFileEnable=True, **flush)
        async with opened(settings) as store:
            for n in range(40):
                await store.writes.put(message(b"%02d" % n * 200))
            assert [record.body for record in read_queue(store)] == [b"%02d" % n * 200 for n in range(40)]


async def test_old_segments_go_and_queues_and_index_follow(tmp_path: Path) -> None:
    other_hour = f"{(time.localtime().tm_hour + 12) % 24:02}"
    settings = small(tmp_path, fileReservedTime=1, deleteWhen=other_hour, deleteCommitLogFilesInterval=0)
    async with opened(settings) as store:
        store.upkeep._cleaner._used = lambda folder: 0.5  # the machine's own disk may be full enough to delete at once
        for n in range(200):
            await store.writes.put(message(b"%03d" % n * 30, queue=n % 2, properties=f"KEYS\x01k{n}\x02"))
        assert store.queues.min_offset("T", 0) == 0 and store.max_pos > 6 * 4096
        await store.upkeep.save(thorough=True)
        index_files = len(list((tmp_path / "index").iterdir()))
        queue_files = len(list((tmp_path / "consumequeue/T/0").iterdir()))
        old_s = time.time() - 2 * 3600
        for start in range(0, 5 * 4096, 4096):
            os.utime(store.settings.commit_log_folder / segment_name(start), (old_s, old_s))
        await store.upkeep.clean()
        assert store.min_pos == 0, "not its hour, and the disk has room"
        store.queues.delete_expired_segments()
        await store.upkeep.clean()
        assert store.min_pos == 5 * 4096 and segments(store)[0] == segment_name(5 * 4096)
        for queue in (0, 1):
            first = store.queues.min_offset("T", queue)
            assert 0 < first < store.queues.max_offset("T", queue) == 100
            assert store.reads.units("T", queue, first, 1)[0][0] >= store.min_pos
            assert [record.queue_offset for record in read_queue(store, queue=queue)] == list(range(first, 100))
            below = store.reads.get_message("T", queue, 0, 32)
            assert (below.status, below.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
        assert store.reads.message_at(0) is None
        assert store.reads.query("T", "k0", 32, 0, 1 << 60).records == []
        assert len(store.reads.query("T", "k199", 32, 0, 1 << 60).records) == 1
        assert len(list((tmp_path / "index").iterdir())) < index_files
        assert len(list((tmp_path / "consumequeue/T/0").iterdir())) < queue_files
        assert store.reads.earliest_store_time("T", 0) > 0
        first = store.queues.min_offset("T", 0)
    async with opened(small(tmp_path)) as store:
        assert (store.min_pos, store.queues.min_offset("T", 0), store.queues.max_offset("T", 0)) == (
            5 * 4096,
            first,
            100,
        )
        assert (await store.writes.put(message())).queue_offset == 100


async def test_the_last_segment_and_unflushed_bytes_are_never_deleted(tmp_path: Path) -> None:
    settings = small(tmp_path, fileReservedTime=0, flushIntervalCommitLog=3_600_000, deleteCommitLogFilesInterval=0)
    async with opened(settings) as store:
        await store.writes.put(message(bytes(1000)))
        await store.flush()
        with blocked_syncs(store):
            for _ in range(20):
                await store.writes.put(message(bytes(1000)))
            store.upkeep._cleaner.ask()
            await store.upkeep.clean()
            assert store.min_pos == 0
        await store.flush()
        await until(lambda: store.figures.dispatch_behind_bytes == 0)
        await store.upkeep.clean()
        assert store.min_pos == 0, "a power loss may still take the queue entries"
        await store.upkeep.save(thorough=True)
        await store.upkeep.clean()
        assert store.min_pos == store.max_pos - store.max_pos % 4096
        assert read_queue(store)[-1].pos >= store.min_pos


async def test_runtime_info_is_text_throughout(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        await store.writes.put(message())
        info = store.figures.runtime_info()
        assert all(isinstance(value, str) for value in info.values())
        assert info["commitLogMaxOffset"] == str(store.max_pos)


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_folder_that_was_removed_under_the_store_is_found_and_nothing_more_is_acknowledged(
    tmp_path: Path, replaced: bool
) -> None:
    root = tmp_path / "store"
    async with opened(small(root)) as store:
        assert (await store.writes.put(message(b"kept"))).status.stored
        await store.check_folder()
        assert store.admission.failure() is None
        root.rename(tmp_path / "elsewhere")
        if replaced:
            root.mkdir(exist_ok=True)  # a file made ahead may have brought it back
            (root / "lock").write_bytes((tmp_path / "elsewhere" / "lock").read_bytes())
        assert (await store.writes.put(message(b"lost"))).status.stored, (
            "writes go on into files that are no longer there"
        )
        await store.check_folder()
        assert "was removed or replaced" in (store.admission.failure() or "")
        assert not (await store.writes.put(message(b"refused"))).status.stored
        await store.check_folder()
