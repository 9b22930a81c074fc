"""Recovery finds the sound prefix of a log, whatever happened to it, and the derived files agree with it afterwards.

The slow twin is a list of records: what is expected of queues and index is made from the records of the list that lie
below the recovered end, by the rules in `derive.py`. Logs are written in Python, so that nothing here depends on the
kernel's append side; one test at the end takes all of the real thing, and loses its power.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallystick.store._kernel import Dispatch, Door, Log
from tallystick.store.engine import recovery
from tallystick.store.engine.recovery import Recovered, RecoveryError, geometry_of, recover
from tallystick.store.engine.thorough_save import save_table
from tallystick.store.findings import FindingKind
from tallystick.store.formats import progress, segment_files
from tallystick.store.formats.checkpoint import StoreCheckpoint
from tallystick.store.formats.derive import has_queue_unit, index_hash, index_keys, tags_code
from tallystick.store.formats.log_walk import StepKind, walk
from tallystick.store.formats.progress import FILE_NAME, Point, ProgressKeeper, ProgressMark
from tallystick.store.formats.record import Record, encode_filler
from tallystick.store.formats.segment_files import SegmentFiles, segment_name
from tallystick.store.settings import StoreSettings
from tallystick.store.verify.report import verify

SEGMENT = 4096
FIRST_MS = 1_600_000_000_000
NO_END = 2**63 - 1


def store_settings(root: Path, **changes: object) -> StoreSettings:
    sizes: dict[str, object] = {
        "mappedFileSizeCommitLog": SEGMENT,
        "mappedFileSizeConsumeQueue": 200,
        "maxHashSlotNum": 7,
        "maxIndexNum": 32,
    }
    return StoreSettings(storePathRootDir=str(root), **(sizes | changes))  # type: ignore[arg-type]


def new_dispatch(chosen: StoreSettings, door: Door) -> Dispatch:
    return Dispatch(
        door,
        str(chosen.root),
        str(chosen.commit_log_folder),
        log_segment_bytes=chosen.mappedFileSizeCommitLog,
        queue_segment_bytes=chosen.queue_segment_bytes,
        index_slots=chosen.maxHashSlotNum,
        index_entries=chosen.maxIndexNum,
        delay_ms=chosen.delay_levels_ms(),
    )


class Written:
    """A log written by hand, and a dispatch that follows it: a broker's store, without the broker."""

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.chosen = store_settings(root)
        self.door = Door()
        self.records: list[Record] = []
        self.end = 0
        self.offsets: dict[tuple[str, int], int] = {}
        self.log = root / "commitlog"
        self.log.mkdir(parents=True)
        (root / "abort").touch()
        (root / "lock").write_bytes(b"lock")
        self.dispatch = new_dispatch(self.chosen, self.door)

    @property
    def path(self) -> Path:
        """The segment of the end."""
        return self.log / segment_name(self.end - self.end % SEGMENT)

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            topic, queue = self.random.choice("AB"), self.random.randrange(2)
            keys = " ".join(f"k{self.random.randrange(9)}" for _ in range(self.random.randrange(3)))
            number = len(self.records)
            offset = self.offsets.get((topic, queue), 0)
            record = Record(
                topic,
                queue,
                self.random.randbytes(self.random.randrange(1, 300)),
                f"UNIQ_KEY\x01u{number}\x02TAGS\x01t{number % 3}\x02" + (f"KEYS\x01{keys}\x02" if keys else ""),
                queue_offset=offset,
                pos=self.end,
                store_timestamp_ms=FIRST_MS + 1000 * number,
            )
            left = SEGMENT - self.end % SEGMENT
            if record.size + 8 > left:
                self._write(encode_filler(left))
                self.end += left
                record = record._replace(pos=self.end)
            self._write(record.encode())
            self.end += record.size
            self.records.append(record)
            self.offsets[topic, queue] = offset + 1

    def _write(self, data: bytes) -> None:
        if not self.path.exists():
            with self.path.open("wb") as file:
                file.truncate(SEGMENT)
        self.patch(self.end, data)

    def patch(self, pos: int, data: bytes) -> None:
        path = self.log / segment_name(pos - pos % SEGMENT)
        with path.open("r+b") as file:
            file.seek(pos % SEGMENT)
            file.write(data)

    def run_dispatch(self, upto: int | None = None) -> None:
        self.dispatch.run(self.end if upto is None else upto, 1 << 40)

    def keeper(self) -> ProgressKeeper:
        return ProgressKeeper(self.door, self.root, geometry_of(self.chosen), 0)

    def recover(self) -> tuple[Recovered, Dispatch]:
        """As after a new start of the process."""
        dispatch = new_dispatch(self.chosen, self.door)
        return recover(self.root, self.chosen, dispatch, self.door), dispatch


@pytest.fixture
def store(tmp_path: Path) -> Written:
    return Written(tmp_path / "store")


BLANK = (0, 0x7FFFFFFF, 0)


def check(dispatch: Dispatch, records: list[Record], lost: Record | None = None) -> None:
    """Queues and index say of each record what the rules say, and nothing else. Of one that is `lost` they may know
    nothing, but no other message may get its queue offset."""
    queues: dict[tuple[bytes, int], list[tuple[int, int, int]]] = {}
    keys: dict[int, list[int]] = {}
    for record in records:
        properties = record.property_table()
        if has_queue_unit(record):
            units = queues.setdefault((record.topic.encode(), record.queue_id), [])
            units.append((record.pos, record.size, tags_code(record, properties, ())))
        for key in index_keys(record, properties):
            keys.setdefault(index_hash(record.topic, key), []).append(record.pos)
    there = {row[:2]: dispatch.units(row[0], row[1], row[2], row[3]) for row in dispatch.queues() if row[3]}
    if lost is not None:
        queue = lost.topic.encode(), lost.queue_id
        unit = (lost.pos, lost.size, tags_code(lost, lost.property_table(), ()))
        units = there.setdefault(queue, [])
        (row,) = (row for row in dispatch.queues() if row[:2] == queue)
        if row[2] == lost.queue_offset + 1:  # the queue begins behind it
            units.insert(0, BLANK)
        assert units[lost.queue_offset] in (unit, BLANK)
        units[lost.queue_offset] = unit
        for key in index_keys(lost, lost.property_table()):
            keys[index_hash(lost.topic, key)].remove(lost.pos)
    assert there == queues
    for key_hash, positions in keys.items():
        found, _, _ = dispatch.lookup(key_hash, 1000, 0, NO_END)
        found = [pos for pos in found if lost is None or pos != lost.pos]
        assert sorted(set(found)) == sorted(set(positions))


def check_placed(dispatch: Dispatch, records: list[Record]) -> None:
    """Each of the records has its unit at its queue offset; what other offsets hold is no record."""
    named = {}
    for topic, queue, low, high, *_ in dispatch.queues():
        units = zip(range(low, high), dispatch.units(topic, queue, low, high - low), strict=True)
        named.update({(topic, queue, offset): unit[:2] for offset, unit in units if unit != BLANK})
    wanted = {
        (record.topic.encode(), record.queue_id, record.queue_offset): (record.pos, record.size)
        for record in records
        if has_queue_unit(record)
    }
    assert named == wanted


# -- without a mark, as RocketMQ ---------------------------------------------------------------------------------------


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_sound_prefix_is_recovered(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Killed, and then anything: zeros from some byte on, or one wrong byte; derived files ahead of it or behind."""
    store = Written(tmp_path_factory.mktemp("store") / "store", data.draw(st.integers(0, 2**32), label="seed"))
    store.append(data.draw(st.integers(1, 60), label="records"))
    store.run_dispatch(data.draw(st.sampled_from([0, *(record.pos for record in store.records), store.end])))
    if data.draw(st.booleans(), label="written out"):
        store.dispatch.write_out()
    torn = data.draw(st.booleans(), label="torn")
    if torn:
        place = data.draw(st.integers(0, store.end - 1), label="place")
        hit = sum(record.pos + record.size <= place for record in store.records)
        for pos in range(place, store.end, SEGMENT):
            end = min(pos - pos % SEGMENT + SEGMENT, store.end)
            store.patch(pos, bytes(end - pos))
        for start in range(place - place % SEGMENT + SEGMENT, store.end, SEGMENT):
            store.patch(start, bytes(SEGMENT))
    else:
        # a byte of a body, whose CRC tells
        record = data.draw(st.sampled_from(store.records), label="flipped")
        hit = store.records.index(record)
        store.patch(record.pos + 88, bytes([record.body[0] ^ 0xFF]))

    found, dispatch = store.recover()

    assert found.clean is False and found.from_mark is False
    if hit + 1 < len(store.records) and not torn:
        # Sound records follow: nothing is cut, and all of them keep their queue offsets.
        assert found.end_pos == store.end
        bad = store.records[hit]
        assert (FindingKind.DAMAGE, bad.pos) in [(each.kind, each.pos) for each in found.findings]
        check(dispatch, store.records, lost=bad)
        return
    sound = store.records[:hit]
    with SegmentFiles(store.log) as log:
        steps = list(walk(log))
    assert [step.record for step in steps if step.kind is StepKind.RECORD] == sound
    assert (steps[-1].kind, steps[-1].pos) == (StepKind.END, found.end_pos)
    check(dispatch, sound)
    dispatch.write_out()
    assert verify(store.root).damage == []


def test_a_waiting_start_reports_its_progress(store: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.store.engine.recovery._RUN_BYTES", 1)  # a record at a time
    store.append(60)
    told: list[tuple[int, int]] = []
    dispatch = new_dispatch(store.chosen, store.door)
    recover(store.root, store.chosen, dispatch, store.door, on_progress=lambda pos, end: told.append((pos, end)))
    positions = [pos for pos, _ in told]
    assert positions == sorted(positions)
    assert len(set(positions)) > 30
    assert all(pos <= store.end <= end for pos, end in told), "a segment's end is the log's, before it was looked at"


def test_what_is_put_after_a_cut_does_not_wake_what_was_cut(store: Written) -> None:
    """A record of the same length, where the damaged one was, must not lead into the old records behind it."""
    store.append(6)
    cut = store.records[2]
    for torn in store.records[2:]:
        store.patch(torn.pos + 88, bytes([torn.body[0] ^ 0xFF]))
    found, _ = store.recover()
    assert found.end_pos == cut.pos
    store.patch(cut.pos, cut.encode())

    found, _ = store.recover()

    assert found.end_pos == cut.pos + cut.size


def test_cut_records_and_segments_are_noted(store: Written) -> None:
    """RocketMQ does not zero what it cuts: what is left behind newer records is older than these."""
    store.append(60)
    assert store.end > 3 * SEGMENT
    cut = store.records[1]
    newer = store.records[0]._replace(store_timestamp_ms=store.records[-1].store_timestamp_ms + 1)
    store.patch(0, newer.encode())
    store.patch(cut.pos + 88, bytes([cut.body[0] ^ 0xFF]))
    found, _ = store.recover()
    notes = [(note.kind, note.pos) for note in found.findings]
    assert (FindingKind.CUT, cut.pos) in notes
    assert (FindingKind.CUT, SEGMENT) in notes
    assert [path.name for path in store.log.iterdir()] == [segment_name(0)]


def cut_after_the_first_record(store: Written) -> int:
    """A log of several segments whose end is behind its first record, once recovery has cut it; that position."""
    store.append(60)
    cut = store.records[1]
    newer = store.records[0]._replace(store_timestamp_ms=store.records[-1].store_timestamp_ms + 1)
    store.patch(0, newer.encode())
    store.patch(cut.pos + 88, bytes([cut.body[0] ^ 0xFF]))
    return cut.pos


@pytest.mark.parametrize("after", range(6))
def test_a_cut_that_breaks_off_leaves_no_gap(store: Written, after: int) -> None:
    """A log that lacks a segment in its middle is refused by every later start."""
    end = cut_after_the_first_record(store)
    store.door.fail("remove", "commitlog", errno.EIO, after=after)
    with contextlib.suppress(OSError):
        store.recover()
    names = sorted(path.name for path in store.log.iterdir())
    assert names == [segment_name(number * SEGMENT) for number in range(len(names))]
    store.door.heal()
    assert store.recover()[0].end_pos == end


def test_zeros_behind_the_end_survive_power_loss(store: Written) -> None:
    """Else new records that were not synced might end just where an old one comes back."""
    end = cut_after_the_first_record(store)
    store.door = Door(record=True)
    assert store.recover()[0].end_pos == end
    store.door.crash(1, 0.0)
    assert not any((store.log / segment_name(0)).read_bytes()[end:])


def test_after_power_loss_a_segment_is_zeroed_however_far_behind_the_end_bytes_lie(
    store: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process writes in order, and only looks behind its end for one record. Power loss keeps no order."""
    store.chosen = store_settings(store.root, maxMessageSize=500)
    for module in (recovery, segment_files):  # they read blocks of so many bytes
        monkeypatch.setattr(module, "_ZEROS", bytes(16))
    store.append(3)
    store.run_dispatch()
    store.dispatch.write_out()
    store.dispatch.sync()
    store.dispatch.sync_index()
    keeper = store.keeper()
    point = keeper.take(store.dispatch)
    keeper.save(point, point)
    store.patch(SEGMENT - 100, b"\xee" * 40)
    monkeypatch.setattr(progress, "boot_id", lambda: b"another boot id!")
    found, dispatch = store.recover()
    assert found.from_mark and found.end_pos == store.end
    assert not any(store.path.read_bytes()[store.end :])
    check(dispatch, store.records)


def test_a_record_whose_offset_was_given_out_again_is_left_from_an_earlier_cut(store: Written) -> None:
    """It is as new as those before it, but another record has its queue offset."""
    store.append(60)
    damaged, last = store.records[-2:]
    assert last.queue_offset > 0
    store.patch(damaged.pos + 88, bytes([damaged.body[0] ^ 0xFF]))
    store.patch(last.pos + 20, struct.pack(">q", 0))
    found, dispatch = store.recover()
    assert found.end_pos == damaged.pos
    check(dispatch, store.records[:-2])


def test_an_orderly_stop_needs_no_dispatch(store: Written) -> None:
    store.append(60)
    store.run_dispatch()
    store.dispatch.write_out()
    (store.root / "abort").unlink()
    found, dispatch = store.recover()
    assert found.clean
    assert found.end_pos == store.end
    assert found.start_pos == (store.end // SEGMENT - 2) * SEGMENT  # the last three segments are checked
    assert found.store_timestamp_ms == store.records[-1].store_timestamp_ms
    assert found.findings == []
    check(dispatch, store.records)


def test_what_was_not_dispatched_is(store: Written) -> None:
    store.append(40)
    store.run_dispatch(store.records[10].pos)
    store.dispatch.write_out()
    (store.root / "abort").unlink()
    found, dispatch = store.recover()
    assert found.dispatched_from == store.records[10].pos
    assert dispatch.position == store.end
    check(dispatch, store.records)


def test_a_kill_starts_where_the_checkpoint_says(store: Written) -> None:
    store.append(60)
    store.run_dispatch()
    store.dispatch.write_out()
    second = next(record for record in store.records if record.pos == SEGMENT)
    time_ms = second.store_timestamp_ms + 3000  # RocketMQ's margin
    StoreCheckpoint(time_ms, time_ms, NO_END).save(store.door, store.root / "checkpoint")
    found, dispatch = store.recover()
    assert found.start_pos == SEGMENT
    check(dispatch, store.records)


def test_a_queue_whose_file_was_lost_gets_its_units_again_from_a_replicated_log(store: Written) -> None:
    """A member lost power before the file was durable. Its folder is there, and the progress mark cannot be used."""
    store.append(60)
    store.run_dispatch()
    store.dispatch.write_out()
    last = store.records[-1]
    lost = next(queue for queue in store.offsets if queue != (last.topic, last.queue_id))
    for path in (store.root / "consumequeue" / lost[0] / str(lost[1])).iterdir():
        path.unlink()
    dispatch = new_dispatch(store.chosen, store.door)
    kept = recovery.KeptLog(end_pos=store.end, committed_pos=store.records[30].pos)
    found = recover(store.root, store.chosen, dispatch, store.door, kept=kept)
    dispatch.run(store.end, 1 << 40)
    assert found.start_pos == 0
    check(dispatch, store.records)


@pytest.mark.parametrize("byte", [0xB9, 0, ord("/")])
def test_a_record_whose_topic_was_damaged_is_in_no_queue(byte: int, store: Written) -> None:
    """The topic of a plain record has no CRC, and it is the name of a folder and text for everything else."""
    store.append(60)
    bad = store.records[20]
    store.patch(bad.pos + 88 + len(bad.body) + 1, bytes([byte]))
    _, dispatch = store.recover()
    topics = {row[0] for row in dispatch.queues()}
    assert topics == {b"A", b"B"}
    check(dispatch, store.records, lost=bad)


@pytest.mark.parametrize("byte", [0x40, 0x80])
def test_a_damaged_store_time_hides_no_other_message_from_a_search_by_time(byte: int, store: Written) -> None:
    """It would be the begin of an index file, whose entries have times that count from there."""
    store.append(30)
    first = store.records[0]
    store.patch(56, bytes([byte]))
    _, dispatch = store.recover()
    last = store.records[-1]
    for record in store.records[1:]:
        for key in index_keys(record, record.property_table()):
            found, _, _ = dispatch.lookup(index_hash(record.topic, key), 1000, FIRST_MS, last.store_timestamp_ms + 1000)
            assert record.pos in found and first.pos not in found


def test_a_dropped_index_is_made_again_from_its_begin(store: Written) -> None:
    """RocketMQ indexes again only from where the log's walk starts; what the file had before is lost there."""
    store.append(60)
    store.run_dispatch()
    store.dispatch.write_out()
    last = store.records[-1].store_timestamp_ms
    StoreCheckpoint(last, last, FIRST_MS + 2000).save(store.door, store.root / "checkpoint")
    files = len(store.dispatch.index_files())
    assert files > 2
    found, dispatch = store.recover()
    assert any(note.kind is FindingKind.REMOVED for note in found.findings)
    assert len(dispatch.index_files()) == files
    check(dispatch, store.records)


def test_a_cut_log_cuts_the_index(store: Written) -> None:
    """RocketMQ leaves entries of cut records, and then indexes nothing until the log is as long as it was."""
    store.append(30)
    store.run_dispatch()
    store.dispatch.write_out()
    store.dispatch.sync_index()
    cut = store.records[20]
    for torn in store.records[20:]:
        store.patch(torn.pos + 88, bytes([torn.body[0] ^ 0xFF]))
    # the checkpoint calls all of the index durable, so that no file is dropped
    StoreCheckpoint(0, 0, NO_END).save(store.door, store.root / "checkpoint")
    found, dispatch = store.recover()
    assert found.end_pos == cut.pos
    assert max(file[4] for file in dispatch.index_files()) < cut.pos
    check(dispatch, store.records[:20])
    del store.records[20:]
    store.end = cut.pos
    store.offsets = {(topic.decode(), queue): row[1] for topic, queue, *row in dispatch.queues()}
    store.append(5)
    dispatch.run(store.end, 1 << 40)
    check(dispatch, store.records)


def test_no_log_no_queues(store: Written) -> None:
    store.append(30)
    store.run_dispatch()
    store.dispatch.write_out()
    for path in store.log.iterdir():
        path.unlink()
    found, dispatch = store.recover()
    assert (found.min_pos, found.end_pos) == (0, 0)
    assert dispatch.queues() == [] and dispatch.index_files() == []
    assert [note.kind for note in found.findings] == [FindingKind.REMOVED]


def test_an_expired_beginning(store: Written) -> None:
    store.append(60)
    store.run_dispatch()
    store.dispatch.write_out()
    (store.log / segment_name(0)).unlink()
    found, dispatch = store.recover()
    assert found.min_pos == SEGMENT
    for topic, queue, low, *_ in dispatch.queues():
        ((pos, _, _),) = dispatch.units(topic, queue, low, 1)
        assert pos >= SEGMENT


# -- damage in what was durable ----------------------------------------------------------------------------------------


def test_damage_in_an_orderly_log_is_noted_and_not_cut(store: Written) -> None:
    store.append(60)
    store.run_dispatch()
    store.dispatch.write_out()
    (store.root / "abort").unlink()
    bad = store.records[-5]
    store.patch(bad.pos + 88, bytes([bad.body[0] ^ 0xFF]))
    found, dispatch = store.recover()
    assert found.end_pos == store.end
    assert [(note.kind, note.pos) for note in found.findings] == [(FindingKind.DAMAGE, bad.pos)]
    check(dispatch, store.records)  # offsets of the queue stay what they were


def test_zeros_between_segments_are_damage_too(store: Written) -> None:
    store.append(60)
    store.run_dispatch()
    store.dispatch.write_out()
    (store.root / "abort").unlink()
    start = store.end - store.end % SEGMENT - SEGMENT
    first = next(record for record in store.records if record.pos == start)
    store.patch(start, bytes(first.size))
    found, _ = store.recover()
    assert found.end_pos == store.end
    assert [(note.kind, note.pos) for note in found.findings] == [(FindingKind.DAMAGE, start)]


def test_after_a_kill_the_checkpoint_tells_damage_from_a_torn_end(store: Written) -> None:
    store.append(60)
    store.run_dispatch()
    store.dispatch.write_out()
    bad = store.records[30]
    store.patch(bad.pos + 88, bytes([bad.body[0] ^ 0xFF]))
    synced_ms = store.records[40].store_timestamp_ms
    StoreCheckpoint(synced_ms, 0, NO_END).save(store.door, store.root / "checkpoint")
    found, dispatch = store.recover()
    assert found.end_pos == store.end
    assert [(note.kind, note.pos) for note in found.findings] == [(FindingKind.DAMAGE, bad.pos)]
    check(dispatch, store.records)


def test_leftovers_of_an_earlier_cut_are_no_damage(store: Written) -> None:
    """RocketMQ does not zero what it cuts: sound records stand behind the end, and no queue knows them."""
    store.append(20)
    end = store.records[15].pos
    store.run_dispatch(end)
    store.dispatch.write_out()
    store.patch(end, struct.pack(">i", 5))
    (store.root / "abort").unlink()
    found, dispatch = store.recover()
    assert found.end_pos == end
    check(dispatch, store.records[:15])


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_segment_that_was_being_made_is_removed(store: Written) -> None:
    store.append(5)
    unfinished = store.log / segment_name(SEGMENT)
    unfinished.write_bytes(bytes(100))
    found, _ = store.recover()
    assert not unfinished.exists()
    assert found.end_pos == store.end
    assert [note.kind for note in found.findings] == [FindingKind.REMOVED]


def test_a_segment_made_ahead_is_removed_without_a_word(store: Written) -> None:
    store.append(5)
    ahead = store.log / segment_name(SEGMENT)
    ahead.write_bytes(bytes(SEGMENT))
    found, _ = store.recover()
    assert found.findings == []
    assert found.end_pos == store.end and found.end_pos < SEGMENT
    assert not ahead.exists()


def test_segments_of_another_size_are_refused(store: Written) -> None:
    store.append(60)
    os.truncate(store.log / segment_name(SEGMENT), SEGMENT // 2)
    with pytest.raises(RecoveryError, match="mappedFileSizeCommitLog differs from"):
        store.recover()


def test_a_last_segment_that_lost_a_part_is_refused_not_removed(store: Written) -> None:
    """Only an empty one was being made."""
    store.append(60)
    last = sorted(store.log.iterdir())[-1]
    os.truncate(last, SEGMENT // 2)
    content = last.read_bytes()
    with pytest.raises(RecoveryError, match="mappedFileSizeCommitLog"):
        store.recover()
    assert last.read_bytes() == content


def test_a_missing_segment_is_refused_not_cut(store: Written) -> None:
    store.append(60)
    (store.log / segment_name(SEGMENT)).unlink()
    before = sorted(store.log.iterdir())
    with pytest.raises(RecoveryError, match="the segment before this one is missing"):
        store.recover()
    assert sorted(store.log.iterdir()) == before


# -- the progress mark -------------------------------------------------------------------------------------------------


def marked(store: Written) -> int:
    """40 records, a mark, and 20 more that queues and index know too; returns the mark's position."""
    store.append(40)
    store.run_dispatch()
    keeper = store.keeper()
    point = keeper.take(store.dispatch)
    store.dispatch.sync()
    store.dispatch.sync_index()
    keeper.save(point, point)
    pos = store.end
    store.append(20)
    store.run_dispatch()
    store.dispatch.write_out()
    return pos


def mark_notes(found: Recovered) -> list[str]:
    return [note.reason for note in found.findings if note.kind is FindingKind.MARK]


def test_a_mark_spares_the_log_before_it(store: Written) -> None:
    pos = marked(store)
    found, dispatch = store.recover()
    assert found.from_mark
    assert (found.start_pos, found.end_pos) == (pos, store.end)
    assert found.records == 20
    assert found.store_timestamp_ms == store.records[-1].store_timestamp_ms
    assert mark_notes(found) == []
    check(dispatch, store.records)


def test_after_an_orderly_stop_nothing_is_read(store: Written) -> None:
    marked(store)
    keeper = store.keeper()
    point = keeper.take(store.dispatch)
    keeper.save(point, point)
    (store.root / "abort").unlink()
    found, dispatch = store.recover()
    assert found.from_mark and found.records == 0
    assert found.store_timestamp_ms == store.records[-1].store_timestamp_ms
    check(dispatch, store.records)


def test_damage_before_the_mark_is_not_cut(store: Written) -> None:
    marked(store)
    bad = store.records[10]
    store.patch(bad.pos + 88, bytes([bad.body[0] ^ 0xFF]))
    found, dispatch = store.recover()
    assert found.from_mark and found.end_pos == store.end
    check(dispatch, store.records)


def test_a_torn_end_behind_the_mark(store: Written) -> None:
    marked(store)
    cut = store.records[-1]
    store.patch(cut.pos + 88, bytes([cut.body[0] ^ 0xFF]))
    found, dispatch = store.recover()
    assert found.from_mark and found.end_pos == cut.pos
    check(dispatch, store.records[:-1])


def test_sound_records_behind_damage_behind_the_mark_are_kept(store: Written) -> None:
    marked(store)
    bad = store.records[50]
    store.patch(bad.pos + 4, b"\0")
    found, dispatch = store.recover()
    assert found.from_mark and found.end_pos == store.end
    assert [(each.kind, each.pos, each.size) for each in found.findings] == [(FindingKind.DAMAGE, bad.pos, bad.size)]
    check(dispatch, store.records, lost=bad)
    assert dispatch.get(b"A", 0, 0, 32, None, store.end, 1 << 40, (1 << 20, 32, 1 << 20, 32))[4] > 0


def test_offsets_of_damaged_last_records_are_not_given_out_again(store: Written) -> None:
    """The last record of a queue is damaged, and records of other queues follow: nothing but its bytes tells."""
    marked(store)
    last = {(record.topic, record.queue_id): record for record in store.records}
    bad = min(last.values(), key=lambda record: record.pos)
    assert bad.pos >= store.records[40].pos, "the mark does not know it"
    store.patch(bad.pos + 4, b"\0")
    _, dispatch = store.recover()
    assert dispatch.offsets(bad.topic.encode(), bad.queue_id)[1] == bad.queue_offset + 1


@pytest.mark.parametrize("written_out", [True, False])
def test_queues_behind_the_log_catch_up_from_the_mark(written_out: bool, store: Written) -> None:
    marked(store)
    store.append(20)
    store.run_dispatch(store.records[70].pos)
    if written_out:
        store.dispatch.write_out()
    found, dispatch = store.recover()
    assert found.from_mark
    check(dispatch, store.records)


def test_another_program_on_the_store_makes_the_mark_stale(store: Written) -> None:
    """RocketMQ writes to `lock` whenever it starts."""
    marked(store)
    (store.root / "lock").write_bytes(b"lock")
    found, dispatch = store.recover()
    assert not found.from_mark
    assert mark_notes(found) == ["another program has used this store since the mark was written"]
    assert not (store.root / FILE_NAME).exists()
    check(dispatch, store.records)


def durable_end(store: Written, how: str) -> int:
    """40 records and something that says so, 2 more that may be torn; returns where the 40 end."""
    store.append(40)
    store.run_dispatch()
    keeper = store.keeper()
    point, rows = keeper.take_with_table(store.dispatch)
    store.dispatch.sync()
    store.dispatch.sync_index()
    if how == "mark":
        keeper.save(point, point)
    else:
        save_table(store.door, store.root, store.dispatch, point, rows, (0, store.chosen.queue_segment_bytes))
    if how == "clean":
        (store.root / "abort").unlink()
    else:
        store.append(2)
        store.run_dispatch()
    return point.pos


def spoil(store: Written, record: Record, how: str) -> None:
    if how == "flip":
        store.patch(record.pos + 88, bytes([record.body[0] ^ 0xFF]))
    else:
        store.patch(record.pos, bytes(record.size))


@pytest.mark.parametrize("damage", ["flip", "zeros"])
@pytest.mark.parametrize("how", ["mark", "table", "clean"])
def test_what_was_written_is_damaged_and_never_cut_at_the_end_of_the_log(how: str, damage: str, store: Written) -> None:
    """No sound record follows the last ones, and nothing but the mark or the table tells them from a torn write."""
    end = durable_end(store, how)
    lost = store.records[38:40]
    for record in store.records[38:]:
        spoil(store, record, damage)
    told = verify(store.root)
    assert told.end_pos == end and (lost[0].pos, end - lost[0].pos) in [(each.pos, each.size) for each in told.damage]
    found, dispatch = store.recover()
    assert not found.from_mark and found.end_pos == end
    damaged = [(each.pos, each.size) for each in found.findings if each.kind is FindingKind.DAMAGE]
    assert sum(size for _, size in damaged) == end - lost[0].pos == end - damaged[0][0]
    for record in lost:
        topic = record.topic.encode()
        assert dispatch.offsets(topic, record.queue_id)[1] > record.queue_offset, "its offset would be given out again"
    if damage == "flip":
        assert store.path.read_bytes()[lost[1].pos % SEGMENT :][: lost[1].size] != bytes(lost[1].size)
    assert store.recover()[0].end_pos == end, "the next start knows it as well"


def test_a_torn_record_does_not_come_back_when_its_queue_is_rebuilt(store: Written) -> None:
    """Its body is whole, and the CRC covers nothing else: only the zeros at its end and behind it tell."""
    end = durable_end(store, "mark")
    torn, last = store.records[38:40]
    store.patch(torn.pos + torn.size - 9, bytes(9))
    spoil(store, last, "zeros")
    shutil.rmtree(store.root / "consumequeue")  # a mark that does not fit: the log is read
    found, dispatch = store.recover()
    assert found.end_pos == store.end
    assert (torn.pos, end - torn.pos) in [(each.pos, each.size) for each in found.findings]

    keeper = store.keeper()  # from now on starts begin behind the damage
    dispatch.sync()
    dispatch.sync_index()
    keeper.save(keeper.take(dispatch), keeper.take(dispatch))
    shutil.rmtree(store.root / "consumequeue" / torn.topic / str(torn.queue_id))
    found, dispatch = store.recover()
    assert found.from_mark
    assert torn.pos not in [unit[0] for unit in dispatch.units(torn.topic.encode(), torn.queue_id, 0, 1000)]
    assert dispatch.record_at(torn.pos, end) is None
    assert verify(store.root).damage, "it is still damage"


def test_queues_that_are_made_again_get_to_the_end_of_a_damaged_log(store: Written) -> None:
    """Else the dispatch of new messages would begin in front of the damage."""
    end = durable_end(store, "clean")
    spoil(store, store.records[39], "flip")
    shutil.rmtree(store.root / "consumequeue")
    found, dispatch = store.recover()
    assert found.end_pos == dispatch.position == end
    check(dispatch, store.records, lost=store.records[39])


def test_damage_before_the_mark_is_reported_during_a_rebuild(store: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark's anchor covers a part of a large record."""
    monkeypatch.setattr(progress, "ANCHOR_BYTES", 16)
    end = durable_end(store, "mark")
    bad = store.records[39]
    store.patch(bad.pos + 4, b"\0")
    shutil.rmtree(store.root / "consumequeue" / bad.topic / str(bad.queue_id))
    found, dispatch = store.recover()
    assert found.from_mark
    assert (bad.pos, end - bad.pos) in [(each.pos, each.size) for each in found.findings]
    check(dispatch, store.records, lost=bad)


def test_a_start_that_was_killed_leaves_the_next_one_the_end_of_what_was_written(
    store: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = durable_end(store, "mark")
    for record in store.records[39:]:
        spoil(store, record, "flip")

    def die(self: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr("tallystick.store.engine.recovery._Recovery._after_kill", die)
        with pytest.raises(KeyboardInterrupt):
            store.recover()
    found, _ = store.recover()
    assert not found.from_mark and found.end_pos == end


def test_a_power_loss_leaves_what_was_synced_as_the_end_of_what_was_written(
    store: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was only written may be gone."""
    store.append(40)
    store.run_dispatch()
    keeper = store.keeper()
    synced = keeper.take(store.dispatch)
    store.append(5)
    store.run_dispatch()
    keeper.save(keeper.take(store.dispatch), synced)
    for record in store.records[39:]:
        spoil(store, record, "zeros")
    monkeypatch.setattr(progress, "boot_id", lambda: b"another boot id!")
    found, _ = store.recover()
    assert not found.from_mark and found.end_pos == synced.pos


def test_an_older_copy_of_the_log_lacks_what_was_written(store: Written) -> None:
    """It continues at the mark: no position and no queue offset is given out twice."""
    pos = marked(store)
    keep = next(record for record in store.records if record.pos >= pos - 1000)
    for at in range(keep.pos, store.end):
        store.patch(at, b"\0")
    found, dispatch = store.recover()
    assert not found.from_mark and found.end_pos == pos
    assert "differs from the log of the mark" in mark_notes(found)[0]
    damaged = [(each.pos, each.size) for each in found.findings if each.kind is FindingKind.DAMAGE]
    assert damaged == [(keep.pos, pos - keep.pos)]
    sound = [record for record in store.records if record.pos < keep.pos]
    for topic, queue, _, end, *_ in dispatch.queues():
        mine = [record for record in sound if (record.topic.encode(), record.queue_id) == (topic, queue)]
        named = [unit for unit in dispatch.units(topic, queue, 0, end) if unit[0] < keep.pos and unit != BLANK]
        assert [unit[0] for unit in named] == [record.pos for record in mine]


def test_a_mark_beyond_the_files_is_ignored(store: Written) -> None:
    pos = marked(store)
    for start in range(SEGMENT, store.end, SEGMENT):
        (store.log / segment_name(start)).unlink()
    found, dispatch = store.recover()
    assert not found.from_mark and found.end_pos <= SEGMENT < pos
    check(dispatch, [record for record in store.records if record.pos < SEGMENT])


def test_a_mark_before_the_logs_beginning_is_ignored(store: Written) -> None:
    """That of an empty log has no anchor that could be missed."""
    keeper = store.keeper()
    point = keeper.take(store.dispatch)
    assert point.pos == point.anchor_bytes == 0
    keeper.save(point, point)
    store.append(60)
    (store.log / segment_name(0)).unlink()
    found, _ = store.recover()
    assert not found.from_mark
    assert "is not in the log" in mark_notes(found)[0]


def test_a_log_with_other_messages_is_not_the_marks(store: Written) -> None:
    marked(store)
    other = Written(store.root.parent / "other", seed=9)
    other.append(80)
    for path in other.log.iterdir():
        (store.log / path.name).write_bytes(path.read_bytes())
    found, _ = store.recover()
    assert not found.from_mark
    assert "differs from the log of the mark" in mark_notes(found)[0]


def test_a_lost_queue_is_noticed(store: Written) -> None:
    marked(store)
    for path in (store.root / "consumequeue" / "A" / "0").iterdir():
        path.unlink()
    found, dispatch = store.recover()
    assert found.from_mark
    assert [(each.kind, each.file) for each in found.findings] == [(FindingKind.REBUILT, "consumequeue/A/0")]
    check(dispatch, store.records)


def test_a_lost_index_is_noticed(store: Written) -> None:
    marked(store)
    for path in (store.root / "index").iterdir():
        path.unlink()
    found, dispatch = store.recover()
    assert found.from_mark
    assert [(each.kind, each.file) for each in found.findings] == [(FindingKind.REBUILT, "index")]
    check(dispatch, store.records)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("before", [0, 40])
def test_an_index_file_that_is_newer_than_the_mark_and_lost_is_made_again(
    before: int, number: int, store: Written
) -> None:
    """The mark does not count it, and a file behind it says that its records are in the index."""
    store.append(before)
    store.run_dispatch()
    store.dispatch.sync()
    store.dispatch.sync_index()
    keeper = store.keeper()
    point = keeper.take(store.dispatch)
    keeper.save(point, point)
    known = set((store.root / "index").glob("*"))
    store.append(60)
    store.run_dispatch()
    store.dispatch.write_out()
    sorted(set((store.root / "index").glob("*")) - known)[number].unlink()
    found, dispatch = store.recover()
    assert found.from_mark
    check(dispatch, store.records)


def test_an_index_without_files_is_made_by_a_start_without_a_mark(store: Written) -> None:
    """The checkpoint has no time of the index: no file of it was ever full."""
    store.append(40)
    store.run_dispatch()
    store.dispatch.write_out()
    shutil.rmtree(store.root / "index")
    last_ms = store.records[-1].store_timestamp_ms
    StoreCheckpoint(last_ms, last_ms, 0).save(store.door, store.root / "checkpoint")
    _, dispatch = store.recover()
    check(dispatch, store.records)


def test_a_newest_index_file_whose_header_is_zeroed_is_made_again(store: Written) -> None:
    """It looks like a file that was just made."""
    marked(store)
    newest = max((store.root / "index").iterdir())
    newest.write_bytes(bytes(40) + newest.read_bytes()[40:])
    point = store.keeper().take(store.dispatch)
    store.keeper().save(point, point)
    found, dispatch = store.recover()
    assert found.from_mark
    check(dispatch, store.records)


def test_an_earlier_content_of_the_newest_index_file_is_made_again(store: Written) -> None:
    """It is sound in itself: only the mark tells that the file had more entries."""
    marked(store)
    index = store.root / "index"
    store.dispatch.sync_index()
    newest, earlier = max(index.iterdir()), max(index.iterdir()).read_bytes()
    count = store.keeper().take(store.dispatch).index_count
    while (point := store.keeper().take(store.dispatch)).index_count == count:
        store.append(1)
        store.run_dispatch()
    store.dispatch.sync()
    store.dispatch.sync_index()
    point = store.keeper().take(store.dispatch)
    assert point.index_name == newest.name and point.index_count > count
    store.keeper().save(point, point)
    newest.write_bytes(earlier)
    found, dispatch = store.recover()
    assert found.from_mark
    assert [(each.kind, each.file) for each in found.findings] == [(FindingKind.REBUILT, "index")]
    check(dispatch, store.records)


@pytest.mark.parametrize("damage", ["header", "entries", "misdirected"])
def test_after_a_power_loss_damaged_entries_of_the_newest_index_file_are_not_kept(
    damage: str, store: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is cut to the entries that the mark counts, and its slots are made from them."""
    marked(store)
    point, _ = store.keeper().take_with_table(store.dispatch)
    store.keeper().save(point, point)
    newest = max((store.root / "index").iterdir())
    data, entries = newest.read_bytes(), 40 + 4 * 7 + 20
    spoiled = {
        "header": bytes(entries + 40) + data[entries + 40 :],
        "entries": data[:entries] + bytes(20) + data[entries + 20 :],
        "misdirected": data[: entries + 40] + data[entries : entries + 20] + data[entries + 60 :],
    }[damage]
    assert spoiled != data
    newest.write_bytes(spoiled)
    monkeypatch.setattr(progress, "boot_id", lambda: b"another boot id!")
    found, dispatch = store.recover()
    assert found.from_mark
    check(dispatch, store.records)


def test_after_a_power_loss_an_index_that_lacks_its_newest_file_may_lack_an_older_one(
    store: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked(store)
    point, rows = store.keeper().take_with_table(store.dispatch)
    store.keeper().save(point, point)
    save_table(store.door, store.root, store.dispatch, point, rows, (0, store.chosen.queue_segment_bytes))
    first, *_, newest = sorted((store.root / "index").iterdir())
    first.unlink()
    newest.unlink()
    monkeypatch.setattr(progress, "boot_id", lambda: b"another boot id!")
    found, dispatch = store.recover()
    assert found.from_mark
    check(dispatch, store.records)


@pytest.mark.parametrize("believed", [True, False])
@pytest.mark.parametrize("place", [16, 24])
def test_positions_in_a_damaged_index_header_do_not_say_where_to_index_again(
    place: int, believed: bool, store: Written
) -> None:
    """The file behind it is lost, and what was in it follows the last entry of the one before."""
    marked(store)
    first, second, *_ = sorted((store.root / "index").iterdir())
    data = bytearray(first.read_bytes())
    data[place : place + 8] = (1 << 60).to_bytes(8)
    first.write_bytes(data)
    second.unlink()
    if not believed:
        (store.root / FILE_NAME).unlink()
    found, dispatch = store.recover()
    assert found.from_mark is believed
    check(dispatch, store.records)


def test_other_sizes_than_the_marks(store: Written) -> None:
    marked(store)
    mark = ProgressMark.load(store.root)
    assert mark is not None
    judgement = mark.judge(store.root, mark.geometry._replace(index_slots=8), lambda pos, size: None)
    assert judgement.reason == "the sizes of the files differ from those in the mark"


def test_a_torn_slot_leaves_the_mark_before(store: Written) -> None:
    keeper = store.keeper()
    positions = []
    for _ in range(3):
        store.append(10)
        store.run_dispatch()
        keeper.save(keeper.take(store.dispatch))
        positions.append(store.end)
    mark = ProgressMark.load(store.root)
    assert mark is not None and (mark.sequence, mark.written.pos) == (3, positions[2])
    with (store.root / FILE_NAME).open("r+b") as file:
        file.seek(4096 + 100)  # the slot of odd numbers
        file.write(b"\xff")
    mark = ProgressMark.load(store.root)
    assert mark is not None and (mark.sequence, mark.written.pos) == (2, positions[1])
    found, dispatch = store.recover()
    assert found.from_mark and found.start_pos == positions[1]
    check(dispatch, store.records)


def test_slots_go_on_where_the_process_before_stopped(store: Written) -> None:
    store.append(3)
    store.run_dispatch()
    for _ in range(3):
        keeper = store.keeper()  # of a new process each time
        keeper.save(keeper.take(store.dispatch))
    mark = ProgressMark.load(store.root)
    assert mark is not None and mark.sequence == 3


def test_marks_encode_to_what_they_decode_from(store: Written) -> None:
    marked(store)
    mark = ProgressMark.load(store.root)
    assert mark is not None
    assert ProgressMark.decode(mark.encode()) == mark
    data = mark.encode()
    for at in range(len(data)):
        assert ProgressMark.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None
        assert ProgressMark.decode(data[:at]) is None


# -- the mark after power loss -----------------------------------------------------------------------------------------


def test_after_a_restart_of_the_machine_only_what_was_synced_counts(
    store: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    pos = marked(store)
    keeper = store.keeper()
    mark = ProgressMark.load(store.root)
    assert mark is not None
    keeper.save(keeper.take(store.dispatch), mark.flushed)
    monkeypatch.setattr(progress, "boot_id", lambda: b"another boot id!")
    # the index: pages of entries behind the mark did not reach the disk, pages of slots and header did
    name, count = mark.flushed.index_name, mark.flushed.index_count
    with (store.root / "index" / name).open("r+b") as file:
        file.seek(40 + 4 * 7 + 20 * count)
        file.write(bytes(20 * (32 - count)))
    found, dispatch = store.recover()
    assert found.from_mark and found.start_pos == pos
    check(dispatch, store.records)
    dispatch.write_out()
    assert verify(store.root).damage == []


def test_after_a_restart_without_a_synced_point(store: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append(10)
    store.run_dispatch()
    keeper = store.keeper()
    keeper.save(keeper.take(store.dispatch))
    monkeypatch.setattr(progress, "boot_id", lambda: b"another boot id!")
    found, dispatch = store.recover()
    assert not found.from_mark
    assert "it is unknown what was synced" in mark_notes(found)[0]
    check(dispatch, store.records)


def test_a_point_at_the_begin_of_a_segment(store: Written) -> None:
    """Behind a filler the anchor lies in the segment before."""
    store.append(1)
    while (SEGMENT - store.end % SEGMENT) != SEGMENT:
        left = SEGMENT - store.end % SEGMENT
        if left < 400:
            store._write(encode_filler(left))
            store.end += left
        else:
            store.append(1)
    store.run_dispatch()
    store.dispatch.start(store.end)
    keeper = store.keeper()
    point = keeper.take(store.dispatch)
    assert point.pos % SEGMENT == 0 and point.anchor_bytes == SEGMENT
    keeper.save(point)
    store.append(10)
    found, dispatch = store.recover()
    assert found.from_mark and found.start_pos == point.pos
    check(dispatch, store.records)


def test_an_empty_store_has_a_mark(store: Written) -> None:
    keeper = store.keeper()
    point = keeper.take(store.dispatch)
    assert point == Point(0)
    keeper.save(point, point)
    store.append(10)
    found, dispatch = store.recover()
    assert found.from_mark and found.start_pos == 0
    check(dispatch, store.records)


# -- the real thing ----------------------------------------------------------------------------------------------------


def lives(root: Path, seed: int) -> Iterator[tuple[Door, int]]:
    """A broker's lives, one after the other: puts, syncs, dispatch and marks in an order of chance, then power loss."""
    chance = random.Random(seed)
    chosen = store_settings(root)
    for life in range(4):
        door = Door(record=True)
        dispatch = new_dispatch(chosen, door)
        found = recover(root, chosen, dispatch, door)
        log = Log(
            door,
            str(chosen.commit_log_folder),
            segment_bytes=SEGMENT,
            max_message_bytes=4000,
            store_host=bytes(8),
            suffix=b"",
            region="",
        )
        log.start(found.end_pos, found.store_timestamp_ms)
        for topic, queue, _, max_offset, _, _ in dispatch.queues():
            log.set_next_offset(topic, queue, max_offset)
        if not (root / "abort").exists():
            door.write_file(root / "abort", b"")
            door.sync_dir(root)
        keeper = ProgressKeeper(door, root, geometry_of(chosen), found.store_timestamp_ms)
        point = None
        for number in range(chance.randrange(5, 120)):
            match chance.randrange(6):
                case 0:
                    log.sync()
                case 1:
                    point = keeper.take(dispatch)
                    log.sync()
                    dispatch.sync()
                    dispatch.sync_index()
                    keeper.save(keeper.take(dispatch), point)
                case 2:
                    keeper.save(keeper.take(dispatch))
                case _:
                    body, keys = chance.randbytes(chance.randrange(1, 200)), f"KEYS\x01k{number % 5}\x02"
                    now_ms = FIRST_MS + 1_000_000 * life + number
                    log.append(
                        chance.choice([b"A", b"B"]),
                        chance.randrange(2),
                        body,
                        f"UNIQ_KEY\x01{life}-{number}\x02{keys}".encode(),
                        now_ms=now_ms,
                        born_timestamp=0,
                        born_host=bytes(8),
                    )
                    log.write_out()
                    dispatch.run(log.written, 1 << 40)
        yield door, log.flushed


@pytest.mark.parametrize("seed", range(25))
def test_power_is_lost_again_and_again(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was flushed is there, what is there is sound, and queues and index say so, whatever else was lost."""
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    (root / "lock").write_bytes(b"lock")
    known: list[Record] = []
    for number, (door, flushed) in enumerate(lives(root, seed)):
        with SegmentFiles(root / "commitlog") as log:
            known = [step.record for step in walk(log) if step.record is not None]
        door.crash(seed * 10 + number)
        monkeypatch.setattr(progress, "boot_id", lambda number=number: b"boot id" + bytes([number]) * 9)
        chosen = store_settings(root)
        fresh = Door()
        dispatch = new_dispatch(chosen, fresh)
        found = recover(root, chosen, dispatch, fresh)
        assert found.end_pos >= flushed
        survived = [record for record in known if record.pos < found.end_pos]
        lost = [(each.pos, each.pos + each.size) for each in found.findings if each.kind is FindingKind.DAMAGE]
        sound = [record for record in survived if not any(begin <= record.pos < end for begin, end in lost)]
        assert all(record in sound for record in survived if record.pos < flushed)
        check_placed(dispatch, sound)
        if not lost:
            with SegmentFiles(root / "commitlog") as log:
                assert [step.record for step in walk(log) if step.record is not None] == survived
            check(dispatch, survived)
        dispatch.write_out()
        assert [each for each in verify(root).damage if not each.file.startswith("commitlog/")] == []
        if lost:
            return  # what the next life appends does not go on from a walk over all records
