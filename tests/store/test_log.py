"""The kernel's Log: what plain sends become on disk, with the Python record as twin; positions, answers, faults."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.store._kernel import Door, Log, scan
from tallystick.store.formats.message import Host
from tallystick.store.formats.record import BLANK_MAGIC, Record

HOST = Host("127.0.0.1", 10911)
PEER = Host("127.0.0.1", 40001)
SUFFIX = "CLUSTER\x01c1\x02"
NOW_MS = 1_700_000_000_000


def make_log(folder: Path, door: Door | None = None, segment_bytes: int = 4096, **options: Any) -> Log:
    log = Log(
        door or Door(),
        str(folder),
        segment_bytes=segment_bytes,
        max_message_bytes=options.pop("max_message_bytes", 4 << 20),
        store_host=HOST.encode(),
        suffix=SUFFIX.encode(),
        region="DefaultRegion",
        **options,
    )
    log.start(0, 0)
    log.set_hot(True)
    log.set_topic(b"T", 4)
    return log


def send_frame(
    body: bytes,
    *,
    topic: str = "T",
    queue: int = 0,
    properties: str = "TAGS\x01TagA\x02",
    opaque: int = 1,
    flag: int = 0,
    code: int = 310,
    **fields: str,
) -> bytes:
    ext = {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue),
        "f": "0",
        "g": str(NOW_MS - 5),
        "h": "7",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
    } | fields
    command = {"code": code, "extFields": ext, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 373}
    header = json.dumps(command, ensure_ascii=False, separators=(",", ":")).encode()
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def answers(data: bytes) -> list[dict]:
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(json.loads(data[8 : 4 + size]))
        data = data[4 + size :]
    return found


def log_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


plain_text = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)
sends = st.tuples(
    st.binary(max_size=300),
    st.integers(0, 3),
    st.dictionaries(plain_text.filter(lambda name: name[0] not in "CDTW"), plain_text, max_size=3),
)


@given(st.lists(sends, min_size=1, max_size=20), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_plain_sends_become_the_records_of_the_twin(tmp_path_factory, messages, random) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = make_log(folder, segment_bytes=2048)
    connection = log.connect(PEER.encode())
    stream = b"".join(
        send_frame(
            body,
            queue=queue,
            opaque=number,
            properties="".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
        )
        for number, (body, queue, properties) in enumerate(messages)
    )
    served = 0
    while stream:  # chunks as they may come: cut anywhere
        cut = random.randint(1, len(stream))
        count, cold, fault = log.feed(connection, stream[:cut], NOW_MS)
        assert fault is None
        # Names and values beyond ASCII may be left to the full decoder, and only those.
        assert cold is None or all(not header.isascii() or b"\\u00" in header for _, header, _ in cold)
        served += count + len(cold or [])
        stream = stream[cut:]
    assert served == len(messages)
    log.write_out()
    stored = log_bytes(folder)
    expected: dict[int, int] = {}
    at = records = 0
    while at < log.written:
        if int.from_bytes(stored[at + 4 : at + 8], "big", signed=True) == BLANK_MAGIC:
            left = int.from_bytes(stored[at : at + 4], "big")
            assert (at + left) % 2048 == 0
            at += left
            continue
        record = Record.decode(stored, at)
        assert stored[at : at + record.size] == record.encode()
        assert at // 2048 == (at + record.size - 1) // 2048, "a record never crosses a segment"
        assert record.pos == at
        assert record.queue_offset == expected.get(record.queue_id, 0)
        assert record.properties.endswith(SUFFIX)
        assert (record.flag, record.born_host, record.store_host) == (7, PEER, HOST)
        expected[record.queue_id] = record.queue_offset + 1
        at += record.size
        records += 1
    assert records == log.waiting


def test_a_send_is_answered_with_its_place(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    connection = log.connect(PEER.encode())
    log.feed(connection, send_frame(b"one", queue=2, opaque=11) + send_frame(b"two", queue=2, opaque=12), NOW_MS)
    assert log.release(log.written, NOW_MS) == []  # staged is not written
    log.write_out()
    [(receiver, data)] = log.release(log.written, NOW_MS)
    first, second = answers(data)
    assert receiver == connection
    assert (first["code"], first["flag"], first["opaque"]) == (0, 1, 11)
    assert first["extFields"] == {
        "queueId": "2",
        "TRACE_ON": "true",
        "MSG_REGION": "DefaultRegion",
        "msgId": "7F00000100002A9F0000000000000000",
        "queueOffset": "0",
    }
    assert (second["opaque"], second["extFields"]["queueOffset"]) == (12, "1")
    assert log.waiting == 0


@pytest.mark.parametrize(
    "frame",
    [
        send_frame(b"x", topic="unknown"),
        send_frame(b"x", topic="%RETRY%g"),
        send_frame(b"x", queue=4),
        send_frame(b"x", queue=-1),
        send_frame(b"x", code=320),
        send_frame(b"x", f="4"),
        send_frame(b"x", m="true"),
        send_frame(b"x", Unknown="a"),
        send_frame(b"x", properties="DELAY\x013\x02"),
        send_frame(b"x", properties="TRAN_MSG\x01true\x02"),
        send_frame(b"x", properties="TIMER_DELAY_SEC\x0110\x02"),
        send_frame(b"x", properties="WAIT\x01false\x02"),
        send_frame(b"x", properties="CLUSTER\x01other\x02"),
        send_frame(b"x", properties="name-without-value\x02"),
        send_frame(b"x", properties="a\x01b\x01c\x02"),
        send_frame(b"x", properties="a\x01\x02"),
        send_frame(b"x", properties="k\x01" + "v" * 32767 + "\x02"),
        send_frame(b"x" * 5000),
    ],
)
def test_whatever_needs_a_decision_is_left_to_python(tmp_path: Path, frame: bytes) -> None:
    log = make_log(tmp_path)
    served, cold, fault = log.feed(log.connect(PEER.encode()), frame, NOW_MS)
    assert (served, fault, log.staged) == (0, None, 0)
    assert cold is not None and len(cold) == 1
    size = int.from_bytes(frame[4:8], "big")
    assert cold[0] == (0, frame[8 : 8 + size], frame[8 + size :])


def test_a_oneway_send_is_stored_and_not_answered(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    assert log.feed(log.connect(PEER.encode()), send_frame(b"x", flag=2), NOW_MS)[0] == 1
    assert log.write_out() > 0
    assert log.release(log.written, NOW_MS) == []


def test_lengths_that_cannot_be_end_the_stream_after_what_came_before(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for broken in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x01", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x08\x00\xff\xff\xff"):
        before = log.staged
        served, _, fault = log.feed(log.connect(PEER.encode()), send_frame(b"good") + broken + bytes(8), NOW_MS)
        assert served == 1 and log.staged > before
        assert fault is not None


def test_a_closed_connection_gets_nothing_and_its_id_is_not_used_again(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    gone = log.connect(PEER.encode())
    log.feed(gone, send_frame(b"x"), NOW_MS)
    log.disconnect(gone)
    assert log.connect(PEER.encode()) != gone
    assert log.release(log.write_out(), NOW_MS) == []
    with pytest.raises(KeyError):
        log.feed(gone, b"", NOW_MS)


def test_answers_wait_no_longer_than_their_limit(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    connection = log.connect(PEER.encode())
    log.feed(connection, send_frame(b"old", opaque=1), NOW_MS)
    log.feed(connection, send_frame(b"new", opaque=2), NOW_MS + 100)
    [(_, data)] = log.expire(NOW_MS + 50, 10, NOW_MS)
    [answer] = answers(data)
    assert (answer["code"], answer["opaque"], answer["extFields"]["queueOffset"]) == (10, 1, "0")
    assert log.waiting == 1


def test_no_more_sends_wait_than_the_limit(tmp_path: Path) -> None:
    log = make_log(tmp_path, max_replies=3)
    served, cold, _ = log.feed(log.connect(PEER.encode()), send_frame(b"x") * 5, NOW_MS)
    assert served == 3
    assert cold is not None and len(cold) == 2


def test_a_failed_write_gives_positions_and_queue_offsets_back(tmp_path: Path) -> None:
    door = Door()
    log = make_log(tmp_path, door)
    connection = log.connect(PEER.encode())
    log.feed(connection, send_frame(b"kept"), NOW_MS)
    written = log.write_out()
    log.release(written, NOW_MS)
    door.fail("write", "0000", errno.EIO, times=1)
    log.feed(connection, send_frame(b"lost", opaque=5) + send_frame(b"lost", queue=1, opaque=6), NOW_MS)
    with pytest.raises(OSError, match="Input/output") as raised:
        log.write_out()
    assert raised.value.filename == str(tmp_path / f"{0:020}")
    [(_, data)] = log.abandon(1, 'no "space"', NOW_MS)
    assert [(a["code"], a["opaque"], a["remark"]) for a in answers(data)] == [
        (1, 5, "no  space "),
        (1, 6, "no  space "),
    ]
    assert (log.staged, log.written) == (written, written)
    assert (log.next_offset(b"T", 0), log.next_offset(b"T", 1)) == (1, 0)
    log.feed(connection, send_frame(b"next"), NOW_MS)
    log.write_out()
    assert Record.decode(log_bytes(tmp_path), written).body == b"next"


def test_a_torn_write_is_written_over(tmp_path: Path) -> None:
    door = Door()
    log = make_log(tmp_path, door)
    connection = log.connect(PEER.encode())
    log.feed(connection, send_frame(b"a"), NOW_MS)
    door.tear("0000", 20)
    with pytest.raises(OSError):
        log.write_out()
    log.abandon(1, "torn", NOW_MS)
    log.feed(connection, send_frame(b"b"), NOW_MS)
    log.write_out()
    assert Record.decode(log_bytes(tmp_path), 0).body == b"b"


def test_a_full_disk_is_met_before_anything_is_staged(tmp_path: Path) -> None:
    door = Door()
    log = make_log(tmp_path, door, segment_bytes=1024)
    door.fail("allocate", "0000", errno.ENOSPC)
    connection = log.connect(PEER.encode())
    served, cold, _ = log.feed(connection, send_frame(b"x"), NOW_MS)
    assert served == 0 and cold is not None and log.staged == 0
    with pytest.raises(OSError) as raised:
        log.append(b"T", 0, b"x", b"", now_ms=NOW_MS, born_timestamp=0, born_host=PEER.encode())
    assert raised.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == [], "a segment of the wrong length must not stay"
    door.heal()
    assert log.feed(connection, send_frame(b"x"), NOW_MS)[0] == 1


def test_after_a_failed_sync_nothing_is_called_flushed(tmp_path: Path) -> None:
    door = Door()
    log = make_log(tmp_path, door)
    connection = log.connect(PEER.encode())
    log.feed(connection, send_frame(b"x"), NOW_MS)
    log.write_out()
    door.fail("sync", "0000", errno.EIO, times=1)
    with pytest.raises(OSError):
        log.sync()
    assert log.flushed == 0
    with pytest.raises(OSError):
        log.sync()  # the pages may be gone: a second sync that succeeds would be a lie
    assert log.flushed == 0


def test_power_loss_keeps_what_was_flushed(tmp_path: Path) -> None:
    for seed in range(20):
        folder = tmp_path / str(seed)
        door = Door(record=True)
        door.mkdir(str(folder))
        log = make_log(folder, door, segment_bytes=1024)
        connection = log.connect(PEER.encode())
        for number in range(12):
            log.feed(connection, send_frame(b"%04d" % number * 20), NOW_MS)
            log.write_out()
            if number == 7:
                log.sync()
        flushed = log.flushed
        door.crash(seed)
        stored = log_bytes(folder)
        at = bodies = 0
        while at < flushed:
            if int.from_bytes(stored[at + 4 : at + 8], "big", signed=True) == BLANK_MAGIC:
                at += int.from_bytes(stored[at : at + 4], "big")
                continue
            record = Record.decode(stored, at)
            assert record.body == b"%04d" % bodies * 20
            bodies, at = bodies + 1, at + record.size
        assert bodies == 8


def test_a_batch_is_stored_together_or_not_at_all(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=1024, max_message_bytes=900)

    def inside(body: bytes, properties: bytes) -> bytes:
        rest = bytes(8) + (7).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body
        rest += len(properties).to_bytes(2, "big") + properties
        return (len(rest) + 4).to_bytes(4, "big") + rest

    def append(batch: bytes) -> tuple[list[int], int, int, int]:
        return log.append_batch(
            b"T", 1, batch, b"CLUSTER\x01c\x02", now_ms=NOW_MS, born_timestamp=5, born_host=PEER.encode()
        )

    positions, size, first, _ = append(inside(b"one", b"TAGS\x01A\x02") + inside(b"two", b"TAGS\x01B"))
    log.write_out()
    stored = log_bytes(tmp_path)
    records = [Record.decode(stored, pos) for pos in positions]
    assert [(r.body, r.queue_offset, r.flag) for r in records] == [(b"one", 0, 7), (b"two", 1, 7)]
    # A separator is put in where a client left out its last one.
    assert [r.properties for r in records] == [f"TAGS\x01{tag}\x02CLUSTER\x01c\x02" for tag in "AB"]
    assert first == 0 and size == sum(r.size for r in records) and log.next_offset(b"T", 1) == 2
    staged = log.staged
    whole = inside(b"x", b"")
    for broken in (b"", whole[:-1], whole + b"\0", b"\xff" * 30, inside(b"y" * 900, b"")):
        with pytest.raises(ValueError):
            append(broken)
        assert (log.staged, log.next_offset(b"T", 1)) == (staged, 2)


def test_syncs_are_served_on_a_thread_until_the_end_token(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    requests, done = os.eventfd(0), os.eventfd(0)
    thread = threading.Thread(target=log.serve_syncs, args=(requests, done))
    thread.start()
    log.feed(log.connect(PEER.encode()), send_frame(b"x"), NOW_MS)
    written = log.write_out()
    os.eventfd_write(requests, 1)
    os.eventfd_read(done)
    assert log.flushed == written > 0
    os.eventfd_write(requests, 1 << 62)
    thread.join(5)
    assert not thread.is_alive()
    os.close(requests)
    os.close(done)


def test_store_time_never_steps_back(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    connection = log.connect(PEER.encode())
    for now_ms in (NOW_MS, NOW_MS - 5000, NOW_MS + 1):
        log.feed(connection, send_frame(b"x"), now_ms)
    log.write_out()
    stored = log_bytes(tmp_path)
    times, at = [], 0
    for _ in range(3):
        record = Record.decode(stored, at)
        times.append(record.store_timestamp_ms - NOW_MS)
        at += record.size
    assert times == [0, 0, 1]


def test_counts_are_by_topic_and_taken_once(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.feed(log.connect(PEER.encode()), send_frame(b"x") * 3, NOW_MS)
    [(topic, messages, size)] = log.take_counts()
    assert (topic, messages, size) == (b"T", 3, log.staged)
    assert log.take_counts() == []


def test_store_times_stand_still_for_a_correction_of_the_clock_and_begin_again_after_a_wrong_one(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path)

    def stored_at(now_ms: int) -> int:
        return log.append(b"T", 0, b"x", b"", now_ms=now_ms, born_timestamp=0, born_host=PEER.encode())[3]

    assert stored_at(NOW_MS) == NOW_MS
    assert stored_at(NOW_MS - 60_000) == NOW_MS
    assert stored_at(NOW_MS + 1) == NOW_MS + 1
    century = 4_102_444_800_000
    assert stored_at(century) == century
    assert stored_at(NOW_MS + 2) == NOW_MS + 2, "one wrong minute must not be the time of all that follows"


# -- bounds and rollbacks that one wrong step would break --------------------------------------------------------------


def test_only_messages_that_consumers_see_move_a_queue(tmp_path: Path) -> None:
    log = make_log(tmp_path)

    def append(sys_flag: int) -> int:
        return log.append(
            b"T", 0, b"x", b"", now_ms=NOW_MS, born_timestamp=0, born_host=PEER.encode(), sys_flag=sys_flag
        )[2]

    prepared, committed, rolled_back = 4, 8, 12
    assert [append(flag) for flag in (0, 0, prepared, rolled_back, committed, 0)] == [0, 1, 0, 0, 2, 3]
    assert log.next_offset(b"T", 0) == 4


def test_a_missing_last_separator_is_put_in(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    connection = log.connect(PEER.encode())
    log.feed(connection, send_frame(b"x", properties="TAGS\x01A"), NOW_MS)
    log.feed(connection, send_frame(b"x", properties=""), NOW_MS)
    log.write_out()
    stored = log_bytes(tmp_path)
    first = Record.decode(stored, 0)
    assert first.properties == "TAGS\x01A\x02" + SUFFIX
    assert Record.decode(stored, first.size).properties == SUFFIX


def test_each_connection_gets_its_own_answers(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    one, two = log.connect(PEER.encode()), log.connect(PEER.encode())
    for number, connection in enumerate((one, two, two, one)):
        log.feed(connection, send_frame(b"x", opaque=number), NOW_MS)
    told = [
        (connection, [each["opaque"] for each in answers(data)])
        for connection, data in log.release(log.write_out(), NOW_MS)
    ]
    assert told == [(one, [0]), (two, [1, 2]), (one, [3])]


def test_offsets_of_one_queue_are_given_back_from_the_first(tmp_path: Path) -> None:
    door = Door()
    log = make_log(tmp_path, door)
    connection = log.connect(PEER.encode())
    log.feed(connection, send_frame(b"kept"), NOW_MS)
    log.write_out()
    door.fail("write", "0000", errno.EIO, times=1)
    log.feed(connection, send_frame(b"lost") * 3, NOW_MS)
    with pytest.raises(OSError):
        log.write_out()
    log.abandon(1, "no", NOW_MS)
    assert log.next_offset(b"T", 0) == 1


def test_offsets_are_given_back_whatever_the_hosts(tmp_path: Path) -> None:
    """Where a record's topic stands depends on the sizes of both hosts."""
    door = Door()
    log = make_log(tmp_path, door)
    hosts = [Host("127.0.0.1", 1).encode(), Host("2001:db8::1", 1).encode()]
    for queue, (born, store) in enumerate((born, store) for born in hosts for store in hosts):
        log.append(b"T", queue, b"x", b"", now_ms=NOW_MS, born_timestamp=0, born_host=born, store_host=store)
    door.fail("write", "0000", errno.EIO, times=1)
    with pytest.raises(OSError):
        log.write_out()
    log.abandon(1, "no", NOW_MS)
    assert [log.next_offset(b"T", queue) for queue in range(4)] == [0, 0, 0, 0]


def test_messages_in_a_batch_are_held_to_the_limits(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=1 << 20)
    properties = b"K\x01" + b"v" * 32_700 + b"\x02"
    rest = bytes(12) + (1).to_bytes(4, "big") + b"x" + len(properties).to_bytes(2, "big") + properties
    batch = (len(rest) + 4).to_bytes(4, "big") + rest
    with pytest.raises(ValueError, match="properties string has 32775 bytes, more than 32767"):
        log.append_batch(b"T", 0, batch, b"A\x01" + b"a" * 70, now_ms=NOW_MS, born_timestamp=5, born_host=PEER.encode())
    assert log.staged == 0


def test_what_was_given_up_is_no_record_any_more(tmp_path: Path) -> None:
    """A write may fail although all of its bytes are in the file: its senders are told that nothing is stored."""
    door = Door()
    log = make_log(tmp_path, door)
    connection = log.connect(PEER.encode())
    log.feed(connection, send_frame(b"kept"), NOW_MS)
    log.write_out()
    door.tear("0000", 1 << 20)
    log.feed(connection, send_frame(b"given up"), NOW_MS)
    with pytest.raises(OSError):
        log.write_out()
    log.abandon(1, "torn", NOW_MS)
    assert scan(str(tmp_path), 4096, 0, True).records == 1


def test_what_was_given_up_does_not_follow_what_is_written_next(tmp_path: Path) -> None:
    """The zeros over it could not be written at once: the next write brings them, behind a record of the same size."""
    door = Door()
    log = make_log(tmp_path, door)
    connection = log.connect(PEER.encode())
    door.tear("0000", 1 << 20)
    log.feed(connection, send_frame(b"one") + send_frame(b"two"), NOW_MS)
    with pytest.raises(OSError):
        log.write_out()
    door.fail("write", "0000", errno.EIO, times=1)
    log.abandon(1, "torn", NOW_MS)
    assert scan(str(tmp_path), 4096, 0, True).records == 2, "the zeros could not be written"
    log.feed(connection, send_frame(b"new"), NOW_MS)
    written = log.write_out()
    found = scan(str(tmp_path), 4096, 0, True)
    assert (found.records, found.end) == (1, written)


def test_zeros_over_what_was_given_up_are_synced(tmp_path: Path) -> None:
    door = Door(record=True)
    log = make_log(tmp_path, door)
    connection = log.connect(PEER.encode())
    log.feed(connection, send_frame(b"kept"), NOW_MS)
    written = log.write_out()
    log.sync()
    door.tear("0000", 1 << 20)
    log.feed(connection, send_frame(b"given up"), NOW_MS)
    with pytest.raises(OSError):
        log.write_out()
    door.sync(tmp_path / f"{0:020}")  # by another caller: the torn write is durable
    log.abandon(1, "torn", NOW_MS)
    log.sync()
    door.crash(1, 0.0)
    assert scan(str(tmp_path), 4096, 0, True).end == written


def test_what_is_written_beside_a_sync_waits_for_the_next(tmp_path: Path) -> None:
    door = Door()
    log = make_log(tmp_path, door)
    connection = log.connect(PEER.encode())
    log.feed(connection, send_frame(b"before"), NOW_MS)
    covered = log.write_out()
    door.slow("sync", "0000", 300)
    syncs = door.counts()["sync"]
    syncing = threading.Thread(target=log.sync)
    syncing.start()
    while door.counts()["sync"] == syncs:
        pass  # until it is in the sync, for a moment
    log.feed(connection, send_frame(b"beside"), NOW_MS)
    log.write_out()
    syncing.join()
    assert log.flushed == covered


@pytest.mark.parametrize("seed", range(10))
def test_a_power_loss_leaves_no_gap_between_segments(tmp_path: Path, seed: int) -> None:
    """Several segments are made between two syncs: the store opens only if those that are left follow each other."""
    door = Door(record=True)
    door.mkdir(tmp_path / "log")
    log = make_log(tmp_path / "log", door, segment_bytes=1024)
    connection = log.connect(PEER.encode())
    for _ in range(30):
        log.feed(connection, send_frame(b"x" * 300), NOW_MS)
    log.write_out()
    door.crash(seed, 0.5)
    starts = sorted(int(path.name) for path in (tmp_path / "log").iterdir())
    assert starts == [1024 * number for number in range(len(starts))]


def test_a_send_that_is_written_is_not_refused_with_the_next(tmp_path: Path) -> None:
    door = Door()
    log = make_log(tmp_path, door)
    connection = log.connect(PEER.encode())
    log.feed(connection, send_frame(b"written", opaque=1), NOW_MS)
    written = log.write_out()
    door.fail("write", "0000", errno.EIO, times=1)
    log.feed(connection, send_frame(b"lost", opaque=2), NOW_MS)
    with pytest.raises(OSError):
        log.write_out()
    [(_, refused)] = log.abandon(1, "no", NOW_MS)
    assert [each["opaque"] for each in answers(refused)] == [2]
    [(_, answered)] = log.release(written, NOW_MS)
    assert [(each["opaque"], each["code"]) for each in answers(answered)] == [(1, 0)]


def test_the_name_of_a_segment_that_was_made_ahead_is_made_durable(tmp_path: Path) -> None:
    """The thread that created it may have failed to sync its folder: the file looks ready nevertheless."""
    door = Door(record=True)
    door.mkdir(tmp_path / "log")
    door.create(tmp_path / "log" / f"{0:020}", 4096, True)
    log = make_log(tmp_path / "log", door)
    log.feed(log.connect(PEER.encode()), send_frame(b"x"), NOW_MS)
    written = log.write_out()
    log.sync()
    door.crash(1, 0.0)
    assert scan(str(tmp_path / "log"), 4096, 0, True).end == written
